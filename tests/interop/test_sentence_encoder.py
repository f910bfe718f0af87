"""Vectors and scores of texts by published encoders, as their folders describe them."""

import functools
import importlib.util
import json
import shlex
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.sentence_folders import (
    LENGTH,
    SIZE,
    TEXTS,
    encoder_folder,
    module,
    sentence_folder,
    write_json,
)
from safetensors.numpy import load_file, save_file
from scipy.special import erf

from pe_jax import encodings
from pe_jax.interop import load_encoder
from pe_jax.interop.published_encoder import PublishedEncoder
from pe_jax.interop.sentence_files import POOLINGS
from pe_jax.interop.sentence_vectors import padded_length, rows_of_length, vectors
from pe_jax.models import hidden_states

ROOT = Path(__file__).parents[2]
needs_sentence_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("sentence_transformers"),
    reason="sentence-transformers is not installed",
)
WEIGHT = np.random.default_rng(0).normal(size=(5, SIZE)).astype(np.float32)
BIAS = np.arange(5, dtype=np.float32)
DENSE = (
    "Dense",
    {
        "in_features": SIZE,
        "out_features": 5,
        "activation_function": "torch.nn.modules.activation.Tanh",
    },
    {"linear.weight": WEIGHT, "linear.bias": BIAS},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    prompts = {"query": "ab: ", "document": ""}
    return sentence_folder(
        tmp_path_factory.mktemp("models") / "mean", "Normalize", prompts=prompts
    )


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(folder)


@functools.partial(jax.jit, static_argnums=0)
def last_states(config, params, tokens, mask):
    return hidden_states(config, params, tokens, None, mask)[-1, 0]


def states(encoder, text, max_length=17):
    """The last hidden states of one text, without those of padding."""
    ids = encoder.folder.tokenizer(max_length).encode(text).ids
    tokens = np.zeros((1, LENGTH), np.int32)
    tokens[0, : len(ids)] = ids
    mask = np.arange(LENGTH) < len(ids)
    hidden = last_states(encoder.config, encoder.params["bert"], tokens, mask[None])
    return np.asarray(hidden, np.float64)[mask]


POOLED = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: np.average(x, 0, np.arange(1, len(x) + 1)),
    "lasttoken": lambda x: x[-1],
}


def normalized(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# --- vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POOLINGS)
def test_poolings_are_those_of_states_without_padding(encoder, mode):
    got = encoder.encode(TEXTS, pooling=mode)
    want = [POOLED[mode](states(encoder, text)) for text in TEXTS]
    assert got.shape == (len(TEXTS), SIZE) and got.dtype == np.float32
    np.testing.assert_allclose(got, normalized(np.stack(want)), atol=1e-6)


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode": "cls"}, ["cls"]),
        ({"pooling_mode": ["mean", "max"]}, ["mean", "max"]),
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ["cls", "max"]),
        ({"pooling_mode_cls_token": False}, ["mean"]),
    ],
)  # fmt: skip
def test_the_pooling_is_the_published_one(tmp_path, config, modes):
    encoder = load_encoder(sentence_folder(tmp_path / "model", pooling=config))
    x = states(encoder, TEXTS[0])
    want = np.concatenate([POOLED[mode](x) for mode in modes])
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), want, atol=1e-5)


def test_the_modules_after_the_pooling_follow_in_their_order(tmp_path):
    norm = {"norm.weight": np.full(5, 2, np.float32), "norm.bias": BIAS}
    modules = (DENSE, ("LayerNorm", {}, norm), "Normalize", "Dropout")
    folder = sentence_folder(tmp_path / "model", *modules)
    encoder = load_encoder(folder)
    y = np.tanh(WEIGHT @ states(encoder, TEXTS[0]).mean(0) + BIAS)
    y = 2 * (y - y.mean()) / np.sqrt(y.var() + 1e-5) + BIAS
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), normalized(y), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "function"),
    [("GELU", lambda x: x * (1 + erf(x / np.sqrt(2))) / 2), ("linear.Identity", lambda x: x)],
)  # fmt: skip
def test_dense_layers_have_a_residual_connection_and_activations(
    tmp_path, name, function
):
    config = {
        **DENSE[1],
        "bias": False,
        "use_residual": True,
        "activation_function": f"torch.nn.modules.{name}",
    }
    tensors = {"linear.weight": WEIGHT, "residual.weight": WEIGHT[::-1].copy()}
    encoder = load_encoder(
        sentence_folder(tmp_path / "model", ("Dense", config, tensors))
    )
    x = states(encoder, TEXTS[0]).mean(0)
    want = function(WEIGHT @ x) + WEIGHT[::-1] @ x
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), want, atol=1e-5)


@pytest.mark.parametrize(
    "case", [pytest.param("mpnet", marks=pytest.mark.slow), "modernbert"]
)
def test_batches_and_padding_change_nothing(tmp_path, case):
    encoder = load_encoder(sentence_folder(tmp_path / "model", "Normalize", case=case))
    texts = TEXTS * 3
    want = np.stack([encoder.encode(text) for text in texts])
    for batch_size in (5, 32):
        got = encoder.encode(texts, batch_size=batch_size)
        np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_array_equal(
        encoder.encode(texts[::-1])[::-1], encoder.encode(texts)
    )


def test_one_text_gives_one_vector_and_no_text_none(encoder):
    assert encoder.encode("ab").shape == (SIZE,)
    assert encoder.encode([]).shape == (0, SIZE)
    assert encoder.encode(("ab", "cd")).shape == (2, SIZE)
    with pytest.raises(TypeError, match=r"texts\[1\] must be a str, got int"):
        encoder.encode(["ab", 1])
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        encoder.encode("ab", batch_size=0)


def test_prompts_come_before_the_text(encoder, folder):
    want = encoder.encode(["ab: cd", "ab: a"])
    np.testing.assert_array_equal(
        encoder.encode(["cd", "a"], prompt_name="query"), want
    )
    np.testing.assert_array_equal(encoder.encode(["cd", "a"], prompt="ab: "), want)
    with pytest.raises(
        ValueError, match=r"\(query, document\), got 'quer'. Did you mean query"
    ):
        encoder.encode("cd", prompt_name="quer")
    with pytest.raises(ValueError, match="either prompt or prompt_name"):
        encoder.encode("cd", prompt_name="query", prompt="")


def test_the_default_prompt_need_not_be_pooled(tmp_path):
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    general = {"prompts": {"query": "ab cd "}, "default_prompt_name": "query"}
    encoder = load_encoder(
        sentence_folder(tmp_path / "model", pooling=pooling, **general)
    )
    skipped = len(encoder.tokenizer.encode("ab cd ").ids) - 1  # All but </s>.
    want = states(encoder, "ab cd j i")[skipped:].mean(0)
    np.testing.assert_allclose(encoder.encode("j i"), want, atol=1e-6)
    want = states(encoder, "j i").mean(0)
    np.testing.assert_allclose(encoder.encode("j i", prompt=""), want, atol=1e-6)


def test_long_texts_are_cut(tmp_path, encoder):
    long = "ab " * 99
    np.testing.assert_allclose(
        encoder.encode(long, pooling="mean"), encoder.encode(long)
    )
    want = normalized(states(encoder, long, 17).mean(0))
    np.testing.assert_allclose(encoder.encode(long), want, atol=1e-6)
    want = normalized(states(encoder, long, 9).mean(0))
    np.testing.assert_allclose(encoder.encode(long, max_length=9), want, atol=1e-6)
    # The table of positions has fewer rows than the files allow.
    other = load_encoder(
        sentence_folder(tmp_path / "model", transformer={"max_seq_length": 512})
    )
    want = states(other, long, LENGTH).mean(0)
    np.testing.assert_allclose(other.encode(long), want, atol=1e-6)


def test_without_a_length_of_the_module_the_tokenizer_has_it(tmp_path):
    folder = sentence_folder(tmp_path / "model", transformer={"do_lower_case": True})
    file = folder / "tokenizer_config.json"
    write_json(file, {**json.loads(file.read_text()), "model_max_length": 7})
    encoder = load_encoder(folder)
    assert encoder.folder.settings.max_length == 7
    np.testing.assert_array_equal(encoder.encode("AB CD"), encoder.encode("ab cd"))


def test_a_folder_without_modules_needs_a_pooling(tmp_path):
    encoder = load_encoder(encoder_folder(tmp_path / "model"))
    with pytest.raises(ValueError, match=r'no modules.json.*Pass pooling="mean"'):
        encoder.encode("ab")
    got = encoder.encode("ab", pooling="mean")
    np.testing.assert_allclose(got, states(encoder, "ab", LENGTH).mean(0), atol=1e-6)
    assert (
        abs(np.linalg.norm(encoder.encode("ab", pooling="cls", normalize=True)) - 1)
        < 1e-6
    )
    with pytest.raises(ValueError, match="pooling must be one of cls, .*got 'men'"):
        encoder.encode("ab", pooling="men")


def test_old_folders_have_the_model_in_a_folder_of_its_own(tmp_path):
    folder = sentence_folder(tmp_path / "model")
    want = load_encoder(folder).encode(TEXTS)
    tokenizer = ("tokenizer.json", "tokenizer_config.json")
    names = (
        "config.json",
        "model.safetensors",
        "sentence_bert_config.json",
        *tokenizer,
    )
    (folder / "0_Transformer").mkdir()
    for name in names:
        (folder / name).rename(folder / "0_Transformer" / name)
    modules = [
        module(0, "Transformer", "0_Transformer"),
        module(1, "Pooling", "1_Pooling"),
    ]
    write_json(folder / "modules.json", modules)
    np.testing.assert_array_equal(load_encoder(folder).encode(TEXTS), want)


def test_bfloat16_is_near(encoder):
    got = encoder.encode(TEXTS, dtype="bfloat16")
    assert got.dtype == np.float32
    assert 1e-5 < np.abs(got - encoder.encode(TEXTS)).max() < 0.1
    with pytest.raises(ValueError, match="dtype must be"):
        encoder.encode(TEXTS, dtype="float16")


def test_vectors_may_have_fewer_dimensions(tmp_path):
    encoder = load_encoder(sentence_folder(tmp_path / "model", truncate_dim=4))
    want = states(encoder, "ab").mean(0)[:4]
    np.testing.assert_allclose(encoder.encode("ab"), want, atol=1e-6)


def test_lengths_are_padded_to_few_shapes(encoder):
    lengths = {padded_length(length) for length in range(1, 513)}
    above = [80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512]
    assert sorted(lengths) == [*range(8, 65, 8), *above]
    assert rows_of_length(64, 32) == 32 and rows_of_length(512, 32) == 4
    assert rows_of_length(512, 2) == 1
    assert all(length <= padded_length(length) for length in range(1, 2000))
    assert padded_length(230, 250) == 250 and padded_length(300, 250) == 300
    encoder.encode(TEXTS)
    compiled = vectors._cache_size()
    encoder.encode(TEXTS[::-1])
    assert vectors._cache_size() == compiled


def test_a_progress_bar_is_shown_on_request(encoder, capsys):
    encoder.encode(TEXTS, progress=True)
    assert "Encode: 100%" in capsys.readouterr().err
    encoder.encode(TEXTS)
    assert not capsys.readouterr().err


# --- what is refused ------------------------------------------------------------------------------


def test_modules_that_are_not_supported_are_named(tmp_path):
    cases = {
        "weights": ([("Dense", DENSE[1], {})], "2_Dense has no weights"),
        "cnn": (["CNN"], "sentence_transformers.models.CNN.*not support"),
        "activation": (
            [("Dense", {**DENSE[1], "activation_function": "evil.Code"}, DENSE[2])],
            r"activation_function must be one of torch.nn.Identity.*got 'evil.Code'",
        ),
        "place": (
            [("Normalize", {"module_input_name": "token_embeddings"}, {})],
            "module_input_name of Normalize must be 'sentence_embedding'",
        ),
        "tensors": (
            [("Dense", {**DENSE[1], "bias": False}, DENSE[2])],
            "must have the tensors linear.weight, .*got linear",
        ),
    }  # fmt: skip
    for name, (modules, message) in cases.items():
        encoder = load_encoder(sentence_folder(tmp_path / name, *modules))
        with pytest.raises(ValueError, match=message):
            encoder.encode("ab")
        assert len(encoder.tokenizer.encode("ab").ids) == 3  # The rest is read.


def test_pickles_and_code_of_the_model_are_not_opened(tmp_path):
    folder = sentence_folder(tmp_path / "model", ("Dense", DENSE[1], {}))
    (folder / "2_Dense/pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        ValueError, match="only a pickle, which is never opened.*save_pretrained"
    ):
        load_encoder(folder).encode("ab")
    write_json(
        folder / "modules.json", [{**module(0, "x"), "type": "custom_st.Transformer"}]
    )
    with pytest.raises(
        ValueError, match="'custom_st.Transformer', whose code comes with"
    ):
        load_encoder(folder)
    write_json(
        folder / "modules.json",
        [module(0, "Transformer"), module(1, "Pooling", "../x")],
    )
    with pytest.raises(ValueError, match="outside of the folder"):
        load_encoder(folder).encode("ab")
    write_json(folder / "modules.json", {"a": 1})
    with pytest.raises(ValueError, match="must be a list of modules"):
        load_encoder(folder)


def test_unknown_poolings_are_named(tmp_path):
    folder = sentence_folder(tmp_path / "model", pooling={"pooling_mode_median": True})
    with pytest.raises(
        ValueError, match="pooling must be one of .* got 'pooling_mode_median'"
    ):
        load_encoder(folder).encode("ab")


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
    folder = sentence_folder(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    encoder = load_encoder(folder)
    with pytest.raises(ValueError, match="no tokenizer.json or vocab.txt"):
        encoder.encode("ab")
    with pytest.raises(ValueError, match="was not loaded from a folder"):
        encoder.replace(folder=None).encode("ab")


def test_adapters_and_quantised_weights_are_refused_by_name(tmp_path):
    folder = encoder_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {**config, "quantization_config": {"quant_method": "gptq"}},
    )
    with pytest.raises(ValueError, match="'gptq'.*quantised weights.*dequantize"):
        load_encoder(folder)
    with_code = {**config, "model_type": "odd", "auto_map": {"AutoModel": "a.B"}}
    write_json(folder / "config.json", with_code)
    with pytest.raises(
        ValueError, match="needs code that comes with the model.*never run"
    ):
        load_encoder(folder)
    write_json(folder / "config.json", config)
    name = "bert.encoder.layer.0.attention.self.query.lora_A.default.weight"
    lora = {name: np.zeros((2, 12), np.float32)}
    save_file({**tensors, **lora}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="of an adapter.*merge_and_unload"):
        load_encoder(folder)
    codes = {"bert.encoder.layer.0.output.dense.weight.absmax": np.zeros(2, np.float32)}
    save_file({**tensors, **codes}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="absmax' of quantised weights"):
        load_encoder(folder)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "a/b"}
    write_json(folder / "adapter_config.json", adapter)
    with pytest.raises(
        ValueError, match=r"holds an adapter .*'LORA'\) for the model 'a/b'"
    ):
        load_encoder(folder)


# --- scores ---------------------------------------------------------------------------------------

PAIRS = [("ab cd", "a b"), ("j", "ab " * 20), ("ab " * 20, "j"), ("", "a")]


def test_one_label_gives_scores_of_pairs(tmp_path):
    folder = encoder_folder(tmp_path / "model", classes=1, labels=("score",))
    encoder = load_encoder(folder)
    got = encoder.predict(PAIRS)
    assert got.shape == (4,) and ((got > 0) & (got < 1)).all()
    logits = encoder.predict(PAIRS, activation="identity")
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-logits)), atol=1e-6)
    np.testing.assert_allclose(
        [encoder.predict(pair) for pair in PAIRS], got, atol=1e-6
    )
    np.testing.assert_allclose(encoder.predict([list(pair) for pair in PAIRS]), got)
    assert encoder.predict([]).shape == (0,)
    assert encoder.predict("ab").shape == () and encoder.predict(
        ["ab", "cd"]
    ).shape == (2,)
    with pytest.raises(TypeError, match=r"inputs\[0\] must be a text or a pair"):
        encoder.predict([("a", "b", "c")])
    config = json.loads((folder / "config.json").read_text())
    for section in (
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.linear.Identity"
            }
        },
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ):
        write_json(folder / "config.json", {**config, **section})
        np.testing.assert_array_equal(load_encoder(folder).predict(PAIRS), logits)
    with pytest.raises(ValueError, match="activation must be one of"):
        encoder.predict(PAIRS, activation="softmax")


def test_several_labels_give_logits(tmp_path):
    folder = encoder_folder(tmp_path / "model", classes=3, labels=tuple("abc"))
    encoder = load_encoder(folder)
    assert encoder.predict(PAIRS).shape == (4, 3)
    assert encoder.predict(PAIRS[0]).shape == (3,)
    assert encoder.predict([]).shape == (0, 3)
    assert encoder.encode("ab", pooling="cls").shape == (SIZE,)


def test_another_head_is_named_and_never_read_as_a_classifier(tmp_path, encoder):
    with pytest.raises(
        ValueError,
        match="saved as BertForMaskedLM, and its heads are masked_lm.*use encode",
    ):
        encoder.predict(PAIRS)
    folder = encoder_folder(tmp_path / "model", classes=3, labels=tuple("abc"))
    config = json.loads((folder / "config.json").read_text())
    write_json(
        folder / "config.json",
        {**config, "architectures": ["BertForTokenClassification"]},
    )
    with pytest.raises(ValueError, match="saved as BertForTokenClassification, and"):
        load_encoder(folder).predict(PAIRS)


# --- as a pytree, with other positions ------------------------------------------------------------


def test_an_encoder_is_a_pytree_of_its_params(encoder):
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(encoder))
    assert len(jax.tree.leaves(encoder)) == len(jax.tree.leaves(encoder.params))
    halved = jax.tree.map(lambda x: x / 2, encoder)
    assert isinstance(halved, PublishedEncoder) and halved.config == encoder.config
    total = jax.jit(lambda e: sum(x.sum() for x in jax.tree.leaves(e.params)))
    np.testing.assert_allclose(total(halved), total(encoder) / 2, rtol=1e-4)
    device = jax.devices()[1]
    moved = jax.device_put(encoder, device)
    assert jax.tree.leaves(moved)[0].devices() == {device}
    np.testing.assert_allclose(moved.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    again = load_encoder(encoder.folder.path)
    assert jax.tree.structure(again) == jax.tree.structure(encoder)
    old = PublishedEncoder(config=encoder.config, params={}, absent=(), unread=())
    assert old.folder is None and old.untrained == ()


def test_new_positions_keep_the_other_weights(encoder):
    other = encoder.with_position("learned_relative")
    assert other.config.encoding().name == "learned_relative"
    assert other.untrained == ("bert/position/learned_relative/table",)
    without = lambda params: {
        k: x for k, x in params["bert"].items() if k != "position"
    }
    assert jax.tree.structure(without(other.params)) == jax.tree.structure(
        without(encoder.params)
    )
    jax.tree.map(
        np.testing.assert_array_equal, without(other.params), without(encoder.params)
    )
    again, different = (
        encoder.with_position("learned_relative", seed=n) for n in (0, 1)
    )
    table = lambda e: e.params["bert"]["position"]["learned_relative"]["table"]
    np.testing.assert_array_equal(table(again), table(other))
    assert (table(different) != table(other)).any()
    with pytest.warns(UserWarning, match="learned_relative.* are untrained"):
        assert other.encode(TEXTS).shape == (len(TEXTS), SIZE)
    with pytest.raises(ValueError, match="rop"):
        encoder.with_position("rop")


def test_position_parameters_that_both_have_are_kept(encoder):
    both = encoder.with_position("learned_absolute+alibi")
    table = lambda e: e.params["bert"]["position"]["learned_absolute"]["table"]
    np.testing.assert_array_equal(table(both), table(encoder))
    assert both.untrained == ("learned_absolute+alibi",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = encoder.with_position("learned_absolute")
        np.testing.assert_array_equal(same.encode(TEXTS), encoder.encode(TEXTS))
    none = encoder.with_position("none")
    assert "position" not in none.params["bert"] and none.untrained == ("none",)
    trained = encoder.replace(config=both.config, params=both.params)
    assert trained.untrained == ()
    longer = "ab " * 99
    free = encoder.with_position("rope").replace(untrained=())
    assert free.encode(longer, max_length=60).shape == (SIZE,)


def test_new_positions_keep_the_windows_of_layers(tmp_path):
    encoder = load_encoder(encoder_folder(tmp_path / "model", "modernbert"))
    before = [encoder.config.encoding().layer(i) for i in range(4)]
    assert [layer.window.left for layer in before] == [None, 3, 3, None]
    windows = "cycle(none, window(max_distance=3), window(max_distance=3))"
    for position in ("t5", encodings.t5(num_heads=3)):
        other = encoder.with_position(position)
        assert other.config.encoding().name == f"t5+{windows}"
        after = [other.config.encoding().layer(i) for i in range(4)]
        assert [layer.window for layer in after] == [layer.window for layer in before]
    assert isinstance(encoder.with_position("t5").config.position, str)
    assert f"--config.model.position=t5+{windows}" in shlex.split(
        encoder.with_position("t5").training_commands()
    )
    again = other.with_position("alibi")
    assert again.config.encoding().name == f"alibi+{windows}"
    assert encoder.with_position("t5", keep_windows=False).config.position == "t5"
    own = "cycle(alibi, alibi+window(max_distance=2))"
    for keep_windows in (True, False):
        other = encoder.with_position(own, keep_windows=keep_windows)
        assert other.config.position == own
    with pytest.raises(ValueError, match="has none of the windows.*keep_windows=False"):
        encoder.with_position("cycle(alibi, rope)")
    assert encoder.with_position("cycle(alibi, rope)", keep_windows=False)


def test_the_ways_on_are_commands(encoder):
    other = encoder.with_position("rope(fraction=0.5)")
    commands = other.training_commands(text="my text/*.txt", workdir="W")
    words = [shlex.split(command) for command in commands.splitlines()]
    settings = [
        f"--config.init={encoder.folder.path}",
        "--config.model.position=rope(fraction=0.5)",
        "--config.data.source=my text/*.txt",
    ]
    distill, pretrain = words
    assert distill[:3] == [
        "python",
        "train.py",
        "--config=configs/distill_positions.py",
    ]
    assert distill[3:] == [*settings, "--workdir=W/distilled"]
    assert pretrain[2] == "--config=configs/pretrain_base.py"
    held_out = "--config.data.held_out=0.05"
    assert pretrain[3:] == [*settings, held_out, "--workdir=W/pretrained"]
    assert (ROOT / "configs/distill_positions.py").is_file()
    assert "--config.data.source=pydoc " in other.training_commands()


# --- sentence-transformers ------------------------------------------------------------------------


def theirs_of(folder, kind="SentenceTransformer"):
    library = pytest.importorskip("sentence_transformers")
    return getattr(library, kind)(str(folder), device="cpu")


@needs_sentence_transformers
@pytest.mark.torch
@pytest.mark.parametrize("mode", POOLINGS)
def test_vectors_are_those_of_sentence_transformers(tmp_path, mode):
    pooling = {
        "pooling_mode": mode,
        "include_prompt": False,
    }
    folder = sentence_folder(
        tmp_path / "model",
        DENSE,
        "Normalize",
        pooling=pooling,
        prompts={"query": "ab: "},
    )
    encoder, theirs = load_encoder(folder), theirs_of(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode(TEXTS, prompt_name="query"),
        theirs.encode(TEXTS, prompt_name="query"),
        atol=1e-5,
    )
    got = encoder.encode(TEXTS[0], normalize=True)
    want = theirs.encode(TEXTS[0], normalize_embeddings=True)
    np.testing.assert_allclose(got, want, atol=1e-5)


@needs_sentence_transformers
@pytest.mark.torch
@pytest.mark.parametrize(
    "case", ["bert", "roberta", "mpnet", "distilbert", "modernbert"]
)
def test_a_folder_that_they_save_is_read(tmp_path, case):
    folder = sentence_folder(tmp_path / "model", "Normalize", case=case)
    theirs_of(folder).save_pretrained(str(tmp_path / "again"))
    theirs = theirs_of(tmp_path / "again")
    got = load_encoder(tmp_path / "again").encode(TEXTS)
    np.testing.assert_allclose(got, theirs.encode(TEXTS), atol=1e-5)


@needs_sentence_transformers
@pytest.mark.torch
@pytest.mark.parametrize(
    ("case", "classes"), [("bert", 1), ("bert", 3), ("roberta", 1)]
)
def test_scores_are_those_of_a_cross_encoder(tmp_path, case, classes):
    labels = tuple("abc"[:classes])
    folder = encoder_folder(tmp_path / "model", case, classes, labels)
    theirs = theirs_of(folder, "CrossEncoder")
    got, want = load_encoder(folder).predict(PAIRS), theirs.predict(PAIRS)
    np.testing.assert_allclose(got, want, atol=1e-5)


# --- the check command ----------------------------------------------------------------------------


def test_the_check_says_that_there_is_nothing_to_compare_with(
    folder, monkeypatch, capsys
):
    from pe_jax.interop import check

    found = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "transformers" else found(name, *rest)
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert check.main([str(folder)]) == 2
    assert (
        "transformers is not installed, so nothing was compared"
        in capsys.readouterr().out
    )
    assert check.main([str(folder / "none")]) == 1
    assert "No checkpoint at" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="transformers is not installed"
)
def test_the_check_compares_states_heads_and_vectors(folder, tmp_path, capsys):
    from pe_jax.interop import check

    assert check.main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert "hidden states 4" in out and "masked_lm" in out and "more than" not in out
    classifier = encoder_folder(tmp_path / "model", classes=3, labels=tuple("abc"))
    assert check.main([str(classifier)]) == 0
    assert "classifier" in capsys.readouterr().out
    different = functools.partial(check.difference, "x")
    assert different([1.0], [1.0]).is_rounding
    assert (
        not different([1.0], [1.1]).is_rounding
        and not different([1.0], [1.0, 2.0]).is_rounding
    )
    assert not different([np.nan], [1.0]).is_rounding
