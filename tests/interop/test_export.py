"""Export to a Hugging Face folder: its content, the way back, and what is refused."""

import dataclasses
import functools
import json
import os

import jax
import numpy as np
import pytest
from helpers.byte_level import byte_level
from helpers.full_disk import files_of_at_most
from helpers.initial_params import shapes_of
from helpers.published_bert import (
    BERT,
    WORDS,
    D,
    N,
    V,
    numpy_bert,
    whole_tensors,
    write,
)
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pe_jax.common.schema import as_dict
from pe_jax.interop import bert_export, load_encoder, save_encoder
from pe_jax.interop.bert_export import position_table
from pe_jax.interop.export_folder import with_special_tokens
from pe_jax.models import (
    BertConfig,
    BertForClassification,
    BertForPretraining,
    BertForSpans,
    BertForTokens,
    hidden_states,
)
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.reports import run_export as runs
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource

MODEL = BertConfig(
    vocab_size=V,
    hidden_size=D,
    num_layers=2,
    num_heads=3,
    intermediate_size=20,
    max_length=N,
)


@pytest.fixture
def tokenizer(tmp_path):
    file = tmp_path / "words" / "vocab.txt"
    file.parent.mkdir()
    file.write_text("\n".join(WORDS) + "\n")
    return load_tokenizer(file)


@functools.cache
def random_params(model, config=MODEL, **arguments):
    """Random parameters of a model, biases among them."""
    shapes = shapes_of(model(config, **arguments))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes
    )


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("model", "arguments", "labels", "architecture"),
    [
        (BertForPretraining, {}, (), "BertForPreTraining"),
        (
            BertForClassification,
            {"outputs": 2},
            ("no", "yes"),
            "BertForSequenceClassification",
        ),
        (BertForClassification, {"outputs": 1}, (), "BertForSequenceClassification"),
        (BertForSpans, {}, (), "BertForQuestionAnswering"),
        (
            BertForTokens,
            {"outputs": 3},
            ("O", "B-x", "I-x"),
            "BertForTokenClassification",
        ),
    ],
    ids=["pretraining", "classes", "value", "spans", "tokens"],
)
def test_an_exported_model_loads_unchanged(
    tokenizer, tmp_path, model, arguments, labels, architecture
):
    params = random_params(model, **arguments)
    assert (
        save_encoder(tmp_path / "out", MODEL, params, tokenizer, labels=labels)
        == architecture
    )
    back = load_encoder(tmp_path / "out")
    assert back.config == MODEL and back.unread == ()
    assert jax.tree.structure(back.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
    written = read(tmp_path / "out" / "config.json")
    assert written["architectures"] == [architecture]
    if "outputs" in arguments:
        assert written["id2label"] == dict(zip("012", labels or ["LABEL_0"]))
        assert written["label2id"][written["id2label"]["0"]] == 0
        kind = "single_label_classification" if labels else "regression"
        assert written.get("problem_type", kind) == kind
        assert ("problem_type" in written) == (model is BertForClassification)


def test_a_published_model_is_exported_unchanged(tokenizer, tmp_path):
    """The same tensors, and no others."""
    tensors = whole_tensors()
    encoder = load_encoder(write(tmp_path / "in", tensors, BERT))
    config, params = encoder.config, encoder.params
    save_encoder(tmp_path / "out", config, params, tokenizer)
    out = load_file(tmp_path / "out" / "model.safetensors")
    assert out.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(out[name], tensor, strict=True)
    written = read(tmp_path / "out" / "config.json")
    assert (
        BERT.items() - {"position_embedding_type": "absolute"}.items()
        <= written.items()
    )
    encoder = {key: params[key] for key in ("bert", "pooler")}
    assert save_encoder(tmp_path / "bare", config, encoder, tokenizer) == "BertModel"
    assert load_encoder(tmp_path / "bare").absent == ("masked_lm", "next_sentence")


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "sinusoidal_absolute(scale=0.5)",
        "learnable_sinusoidal_absolute",
        "learned_absolute",
    ],
)
def test_encodings_that_only_embed_become_a_table(tokenizer, tmp_path, name):
    """A BERT with a position table then has the same outputs."""
    config = dataclasses.replace(MODEL, position=name)
    params = random_params(BertForPretraining, config)
    save_encoder(tmp_path / "out", config, params, tokenizer)
    tokens = np.random.default_rng(1).integers(0, V, (2, N))
    got = jax.jit(hidden_states, static_argnums=0)(config, params["bert"], tokens)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    theirs = read(tmp_path / "out" / "config.json")
    want = numpy_bert(
        tensors, theirs, tokens, np.zeros_like(tokens), np.ones_like(tokens)
    )
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=0)
    if name == "none":
        assert not tensors["bert.embeddings.position_embeddings.weight"].any()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "learned_relative",
            "learned_relative adds terms to the attention logits, learned_rel",
        ),
        (
            "learned_absolute+sinusoidal_relative",
            "cannot represent .*: sinusoidal_relative adds terms",
        ),
    ],
)
def test_encodings_that_do_more_are_refused(tokenizer, tmp_path, name, match):
    config = dataclasses.replace(MODEL, position=name)
    with pytest.raises(ValueError, match=match):
        save_encoder(
            tmp_path / "out",
            config,
            random_params(BertForPretraining, config),
            tokenizer,
        )
    with pytest.raises(ValueError, match="adds position vectors to the values"):
        position_table(config, {})


def test_the_refusal_names_what_can_be_exported(tokenizer, tmp_path):
    config = dataclasses.replace(MODEL, position="own(t5)")
    way_out = (
        "differs between layers. Export it with --config.format=onnx "
        "or stablehlo .* or a model"
    )
    with pytest.raises(
        ValueError, match=f"{way_out} with an absolute encoding, `rope` or none"
    ):
        save_encoder(tmp_path / "out", config, {}, tokenizer)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "sinusoidal_concatenated",
        "normalized_index",
        "randomized(sinusoidal_absolute)",
        "cape(sinusoidal_absolute, centered=True)",
    ],
)
def test_encodings_that_embed_otherwise_than_a_table_are_refused(
    tokenizer, tmp_path, name
):
    config = dataclasses.replace(MODEL, position=name)
    with pytest.raises(
        ValueError, match="cannot represent .* the hidden states differ by"
    ):
        save_encoder(
            tmp_path / "out",
            config,
            random_params(BertForPretraining, config),
            tokenizer,
        )
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_is_exported(tokenizer, tmp_path):
    tokenizer.enable_truncation(3)
    save_encoder(tmp_path / "out", MODEL, random_params(BertForSpans), tokenizer)
    assert (tmp_path / "out" / "vocab.txt").read_text().splitlines() == WORDS
    written = read(tmp_path / "out" / "tokenizer_config.json")
    assert written["do_lower_case"] and written["model_max_length"] == N
    out = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    pair = out.encode("A bc d", "e")
    assert pair.tokens == ["[CLS]", "a", "b", "##c", "d", "[SEP]", "e", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 0, 0, 1, 1]
    assert tokenizer.truncation  # The argument is unchanged.


def test_parts_that_do_not_fit_are_listed(tokenizer, tmp_path):
    params = jax.tree.map(np.array, random_params(BertForClassification, outputs=3))
    del params["bert"]["layer_1"]["up"]
    params["bert"]["extra"] = np.ones(2)
    params["pooler"]["dense"]["bias"] = np.ones(D + 1)
    config = BertConfig(**{**vars(MODEL), "vocab_size": V - 1})
    with pytest.raises(ValueError, match="do not make one BERT") as caught:
        save_encoder(tmp_path / "out", config, params, tokenizer, labels=("a", "b"))
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "bert/extra: is not part of such a model",
        "bert/token/embedding: (13, 12), (12, 12) expected",
        "bert/layer_1/up/kernel: missing",
        "bert/layer_1/up/bias: missing",
        "pooler/dense/bias: (13,), (12,) expected",
        "the tokenizer has 13 tokens, the model 12 rows of embeddings",
        "2 labels for a classifier of 3 outputs",
    ]
    with pytest.raises(ValueError, match="the parts bert, head, spans"):
        save_encoder(
            tmp_path / "out",
            MODEL,
            {**random_params(BertForSpans), "head": {}},
            tokenizer,
        )
    assert not (tmp_path / "out").exists()


def test_a_folder_appears_whole_or_not_at_all(tokenizer, tmp_path, monkeypatch):
    params, out = random_params(BertForSpans), tmp_path / "out"
    out.mkdir()
    umask = os.umask(0o027)
    save_encoder(out, MODEL, params, tokenizer)  # An empty folder is accepted.
    os.umask(umask)
    assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {0o640}
    assert out.stat().st_mode & 0o777 == 0o750
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(ValueError, match="out is not empty. Export to a new folder"):
        save_encoder(out, MODEL, params, tokenizer)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    with pytest.raises(ValueError, match="gs://bucket/out is not a local folder"):
        save_encoder("gs://bucket/out", MODEL, params, tokenizer)
    listing = set(os.listdir(tmp_path))

    def full(*args):
        raise OSError("No space left on device")

    with (
        files_of_at_most(5_000),  # Of which safetensors has an error of its own.
        pytest.raises(OSError, match=r"other was not written: .*File too large"),
    ):
        save_encoder(tmp_path / "other", MODEL, params, tokenizer)
    monkeypatch.setattr(bert_export, "save_json", full)
    with pytest.raises(OSError, match="No space"):
        save_encoder(tmp_path / "other", MODEL, params, tokenizer)
    assert set(os.listdir(tmp_path)) == listing


# --- runs -----------------------------------------------------------------------------------------


def write_run(folder, config, params, tokenizer, monkeypatch):
    """Writes the folder of a run, and patches the reading of its checkpoint."""
    config = dataclasses.replace(config, model=MODEL)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    monkeypatch.setattr(runs, "newest_params", lambda folder: (5, params))


def test_a_run_and_a_start_from_it(tokenizer, tmp_path, monkeypatch):
    """An exported run is a published BERT to start from, with the same vocabulary and weights."""
    params = random_params(BertForPretraining)
    write_run(tmp_path / "run", PretrainingConfig(), params, tokenizer, monkeypatch)
    text = runs.export(tmp_path / "run", tmp_path / "out")
    assert text.startswith(
        f"BertForPreTraining of {tmp_path / 'run'}, step 5. In Python"
    )
    start = PretrainedSource(str(tmp_path / "out"))
    jax.tree.map(
        np.testing.assert_array_equal,
        start.params(lambda _: jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        params,
    )
    restored = dataclasses.replace(start.model, vocab_size=MODEL.vocab_size)
    assert restored.encoding().name == MODEL.encoding().name
    assert dataclasses.replace(restored, position=MODEL.position) == MODEL
    assert load_tokenizer(start.tokenizer()).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ValueError, match=r"a run of seed 0, but config.seed is 3"):
        runs.export(tmp_path / "run", tmp_path / "seed", 3)
    with pytest.raises(
        ValueError, match=r"config.dtype='float16' needs config.format='onnx'"
    ):
        runs.export(tmp_path / "run", tmp_path / "half", dtype="float16")


def test_one_seed_of_several(tokenizer, tmp_path, monkeypatch):
    """Class labels are those of the task."""
    config = FinetuningConfig(task="rte", seeds=(3, 7))
    first = random_params(BertForClassification, outputs=2)
    second = jax.tree.map(lambda leaf: leaf + 1, first)
    both = jax.tree.map(lambda *leaves: np.stack(leaves), first, second)
    write_run(tmp_path / "run", config, both, tokenizer, monkeypatch)
    runs.export(tmp_path / "run", tmp_path / "out", 7)
    jax.tree.map(
        np.testing.assert_array_equal, load_encoder(tmp_path / "out").params, second
    )
    labels = {"0": "entailment", "1": "not_entailment"}
    assert read(tmp_path / "out" / "config.json")["id2label"] == labels
    for seed in (None, 4):
        with pytest.raises(
            ValueError, match=r"config.seed must be one of the run's seeds, 3, 7"
        ):
            runs.export(tmp_path / "run", tmp_path / "other", seed)


# --- the class of the tokenizer -------------------------------------------------------------------


def normal(text):
    return normalizers.Sequence(
        [normalizers.Replace(text, " "), normalizers.Lowercase()]
    )


def byte_level_special(tokenizer):
    """ModernBERT's names in a byte-level BPE."""
    return byte_level(
        tokenizer.get_vocab_size(), ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    )


def unigram(tokenizer):
    pieces = [
        (token, -float(number)) for token, number in tokenizer.get_vocab().items()
    ]
    pieces.sort(key=lambda piece: -piece[1])
    copy = Tokenizer(models.Unigram(pieces, 1))
    copy.pre_tokenizer = pre_tokenizers.Metaspace()
    copy.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return copy


def with_another_prefix(tokenizer):
    vocab = tokenizer.get_vocab()
    copy = Tokenizer(
        models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix="@@")
    )
    copy.normalizer = normalizers.BertNormalizer()
    copy.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return copy


def changed(**parts):
    def change(tokenizer):
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    return change


BERT_NORMALIZER = functools.partial(normalizers.BertNormalizer, lowercase=False)
SEP_TWICE = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
TEXT = "A bc_d a.b"
# By what is changed in a tokenizer of BERT, and whether transformers' BertTokenizer is still that.
TOKENIZERS = {
    "nothing": (changed(), True),
    "case": (changed(normalizer=BERT_NORMALIZER()), True),
    "accents": (changed(normalizer=BERT_NORMALIZER(strip_accents=True)), True),
    "control characters": (changed(normalizer=BERT_NORMALIZER(clean_text=False)), False),
    "normalizer": (changed(normalizer=normal("_")), False),
    "no normalizer": (changed(normalizer=None), False),
    "pre-tokenizer": (changed(pre_tokenizer=pre_tokenizers.Whitespace()), False),
    "template": (changed(post_processor=SEP_TWICE), False),
    "prefix": (with_another_prefix, False),
    "byte-level": (byte_level_special, False),
    "Unigram": (unigram, False),
}  # fmt: skip


def save_changed(tokenizer, folder, name):
    changed_tokenizer = TOKENIZERS[name][0](tokenizer)
    rows = max(V, changed_tokenizer.get_vocab_size())
    config = dataclasses.replace(MODEL, vocab_size=rows)
    save_encoder(folder, config, random_params(BertForSpans, config), changed_tokenizer)
    return changed_tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bert_tokenizer_is_written_where_it_is_the_same(name, tokenizer, tmp_path):
    exported = save_changed(tokenizer, tmp_path / "out", name)
    is_bert = TOKENIZERS[name][1]
    written = read(tmp_path / "out" / "tokenizer_config.json")
    kind = "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"
    assert written["tokenizer_class"] == kind
    assert (tmp_path / "out" / "vocab.txt").exists() == is_bert
    assert written["padding_side"] == written["truncation_side"] == "right"
    assert written["model_max_length"] == N
    names = {
        role: written[f"{role}_token"] for role in ("pad", "unk", "cls", "sep", "mask")
    }
    assert names == {
        "pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"
    }  # fmt: skip
    # Ours reads them as they were.
    files = ["tokenizer.json", "vocab.txt"] if is_bert else ["tokenizer.json"]
    for file in files:
        back = load_tokenizer(tmp_path / "out" / file)
        encodings = [t.encode(TEXT, add_special_tokens=False) for t in (back, exported)]
        assert encodings[0].ids == encodings[1].ids


def test_added_tokens_are_exported(tokenizer, tmp_path):
    tokenizer.add_tokens(["[E1]"])
    config = dataclasses.replace(MODEL, vocab_size=V + 1)
    save_encoder(
        tmp_path / "out", config, random_params(BertForSpans, config), tokenizer
    )
    assert (
        read(tmp_path / "out" / "tokenizer_config.json")["tokenizer_class"]
        != "BertTokenizer"
    )
    back = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    assert back.token_to_id("[E1]") == V and back.get_vocab_size() == V + 1


def test_the_length_of_a_tokenizer_leaves_out_rows_of_no_position(tmp_path):
    """RoBERTa's table has rows for padding before the first position."""
    tokenizer = byte_level(V + 30)
    config = dataclasses.replace(
        MODEL, vocab_size=V + 30, num_token_types=1, positions_from_mask=True
    )
    save_encoder(tmp_path / "out", config, random_params(BertForSpans, config), tokenizer,
              family="roberta")  # fmt: skip
    written = read(tmp_path / "out" / "tokenizer_config.json")
    assert read(tmp_path / "out" / "config.json")["max_position_embeddings"] == N + 1
    assert written["model_max_length"] == N
    assert written["model_input_names"] == ["input_ids", "attention_mask"]


@pytest.mark.torch
@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_exported_tokenizer_is_the_same_in_transformers(name, tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = with_special_tokens(save_changed(tokenizer, tmp_path / "out", name))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == ours.get_vocab_size()
    for text in ("a bc_d A. b", "  a\tb\x07c \u00e9", "a [E1] d"):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
        assert theirs(text, "b a")["input_ids"] == ours.encode(text, "b a").ids
    assert theirs.model_max_length == N and theirs.padding_side == "right"
