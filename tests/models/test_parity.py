"""Import and export give the outputs of PyTorch's BERT, also for a real model if available.

`PE_JAX_MINILM` is the folder of all-MiniLM-L6-v2 (docs/checkpoints.md has the download command).
"""

import dataclasses
import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.published_bert import WORDS

from pe_jax.interop import load_encoder, load_position_table, save_encoder
from pe_jax.models import (
    BertConfig,
    BertForClassification,
    BertForPretraining,
    BertForSpans,
    hidden_states,
)
from pe_jax.trainer.data import load_tokenizer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("torch")
            and importlib.util.find_spec("transformers")
        ),
        reason="PyTorch and transformers, the extra parity, are not installed",
    ),
]
MINILM = os.environ.get("PE_JAX_MINILM", "")
CLOSE = {"atol": 1e-4, "rtol": 0}
SHAPES = {
    "small": dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    ),
    "one head": dict(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=1, type_vocab_size=1
    ),
    "deep": dict(
        hidden_size=64,
        num_hidden_layers=12,
        num_attention_heads=16,
        layer_norm_eps=1e-5,
    ),
    "wide": dict(
        hidden_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000
    ),
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def random_bert(torch, transformers, folder, name="BertForPreTraining", **sizes):
    """A model with weights, biases too, larger than at initialization; written to `folder`."""
    torch.manual_seed(0)
    sizes = (
        dict(vocab_size=60, max_position_embeddings=40, intermediate_size=48) | sizes
    )
    model = getattr(transformers, name)(transformers.BertConfig(**sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return model


def inputs(config, rows=5, length=24):
    """Tokens, token types, and a mask of valid tokens: each row is shorter than the one before."""
    rng = np.random.default_rng(0)
    valid = np.arange(length) < np.linspace(length, length // 8, rows).round()[:, None]
    tokens = np.where(valid, rng.integers(0, config.vocab_size, valid.shape), 0)
    token_type_ids = np.where(
        valid & (np.arange(length) > 2), config.num_token_types - 1, 0
    )
    return tokens, token_type_ids, valid


def theirs(torch, model, tokens, token_type_ids, valid):
    with torch.inference_mode():
        return model(
            input_ids=torch.tensor(tokens),
            token_type_ids=torch.tensor(token_type_ids),
            attention_mask=torch.tensor(valid),
            output_hidden_states=True,
        )


def states(outputs):
    return np.stack([state.numpy() for state in outputs.hidden_states])


@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_states_and_logits(torch, transformers, tmp_path, shape):
    """Of every layer, also at padding."""
    model = random_bert(torch, transformers, tmp_path, **SHAPES[shape])
    encoder = load_encoder(tmp_path)
    config, params, absent, unread = (
        encoder.config,
        encoder.params,
        encoder.absent,
        encoder.unread,
    )
    assert absent == unread == ()
    tokens, token_type_ids, valid = inputs(config)
    want = theirs(torch, model, tokens, token_type_ids, valid)
    mask = jnp.asarray(valid)
    got = hidden_states(config, params["bert"], tokens, token_type_ids, mask)
    np.testing.assert_allclose(got, states(want), **CLOSE)
    everywhere = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    run = BertForPretraining(config).apply
    logits = run(
        {"params": params}, tokens, token_type_ids, mask, masked_positions=everywhere
    )
    np.testing.assert_allclose(logits.masked_lm, want.prediction_logits, **CLOSE)
    np.testing.assert_allclose(
        logits.next_sentence, want.seq_relationship_logits, **CLOSE
    )


@pytest.mark.skipif(
    not MINILM, reason="PE_JAX_MINILM does not name the folder of a real BERT"
)
def test_a_real_bert(torch, transformers):
    model = transformers.BertModel.from_pretrained(MINILM).eval()
    encoder = load_encoder(MINILM)
    config, params = encoder.config, encoder.params
    tokens, token_type_ids, valid = inputs(config, rows=4, length=128)
    want = states(theirs(torch, model, tokens, token_type_ids, valid))
    got = hidden_states(
        config, params["bert"], tokens, token_type_ids, jnp.asarray(valid)
    )
    np.testing.assert_allclose(got, want, **CLOSE)


@pytest.mark.parametrize(
    "position",
    [
        "none",
        "learned_absolute",
        "sinusoidal_absolute",
        "learnable_sinusoidal_absolute",
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        (BertForPretraining, {}, "BertForPreTraining"),
        (BertForClassification, {"outputs": 3}, "BertForSequenceClassification"),
        (BertForClassification, {"outputs": 1}, "BertForSequenceClassification"),
        (BertForSpans, {}, "BertForQuestionAnswering"),
    ],
    ids=["pretraining", "classes", "value", "spans"],
)
def test_an_exported_model_has_the_same_outputs_in_pytorch(
    torch, transformers, tmp_path, position, case
):
    model, arguments, name = case
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    words = load_tokenizer(tmp_path / "vocab.txt")
    sizes = dict(
        hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, max_length=30
    )
    config = dataclasses.replace(
        BertConfig(vocab_size=len(WORDS), **sizes), position=position
    )
    ours = model(config, **arguments)
    one = jnp.zeros((1, 1), jnp.int32)
    heads = {"masked_positions": one} if model is BertForPretraining else {}
    params = ours.init(jax.random.key(0), one, **heads)["params"]
    params = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), params
    )
    assert save_encoder(tmp_path / "out", config, params, words) == name
    loaded, report = getattr(transformers, name).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(
        report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    tokens, token_type_ids, valid = inputs(config)
    want = theirs(torch, loaded.eval(), tokens, token_type_ids, valid)
    mask = jnp.asarray(valid)
    got = hidden_states(config, params["bert"], tokens, token_type_ids, mask)
    np.testing.assert_allclose(got, states(want), **CLOSE)
    bare = transformers.BertModel.from_pretrained(tmp_path / "out").eval()
    np.testing.assert_allclose(
        got, states(theirs(torch, bare, *inputs(config))), **CLOSE
    )
    if model is BertForSpans:
        start, end = ours.apply({"params": params}, tokens, token_type_ids, mask)
        np.testing.assert_allclose(start[valid], want.start_logits[valid], **CLOSE)
        np.testing.assert_allclose(end[valid], want.end_logits[valid], **CLOSE)
    if model is BertForClassification:
        logits = ours.apply({"params": params}, tokens, token_type_ids, mask)
        np.testing.assert_allclose(logits, want.logits, **CLOSE)
        kind = (
            "regression" if arguments["outputs"] == 1 else "single_label_classification"
        )
        assert loaded.config.problem_type == kind


@pytest.mark.parametrize(
    "which", ["AutoTokenizer", "BertTokenizerFast", "BertTokenizer"]
)
def test_the_exported_tokenizer(transformers, tmp_path, which):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    words = load_tokenizer(tmp_path / "vocab.txt")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=12,
        num_layers=1,
        num_heads=3,
        intermediate_size=20,
        max_length=10,
    )
    ours = BertForSpans(config)
    params = ours.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    save_encoder(tmp_path / "out", config, params, words)
    got = getattr(transformers, which).from_pretrained(tmp_path / "out")
    texts = "A bc, dé", "e [MASK] Ab"
    want = [
        "[CLS]",
        "a",
        "b",
        "##c",
        "[UNK]",
        "[UNK]",
        "[SEP]",
        "e",
        "[MASK]",
        "a",
        "##b",
        "[SEP]",
    ]
    encoded = got(*texts)
    assert got.convert_ids_to_tokens(encoded["input_ids"]) == want
    assert encoded["token_type_ids"] == [0] * 7 + [1] * 5
    assert (got.model_max_length, got.pad_token_id, got.mask_token) == (10, 0, "[MASK]")


@pytest.mark.parametrize(
    ("name", "config", "family", "first_row"),
    [
        ("GPT2Model", "GPT2Config", "gpt2", 0),
        ("GPT2LMHeadModel", "GPT2Config", "gpt2", 0),
        ("RobertaModel", "RobertaConfig", "roberta", 2),
        ("RobertaForMaskedLM", "RobertaConfig", "roberta", 2),
        ("BertForMaskedLM", "BertConfig", "bert", 0),
    ],
)
def test_position_tables_of_real_names(
    transformers, tmp_path, name, config, family, first_row
):
    sizes = dict(
        vocab_size=30, hidden_size=12, num_hidden_layers=1, num_attention_heads=2
    )
    sizes |= {"n_positions" if family == "gpt2" else "max_position_embeddings": 20}
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    model.save_pretrained(tmp_path)
    table = load_position_table(tmp_path)
    assert (table.family, table.first_row) == (family, first_row)
    module = "wpe." if family == "gpt2" else "position_embeddings."
    (want,) = (w for n, w in model.named_parameters() if module in n)
    np.testing.assert_array_equal(table.vectors, want.detach().numpy()[first_row:])
