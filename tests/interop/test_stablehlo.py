"""Export as StableHLO: the program alone gives what the model gives, for any batch and length."""

import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from pe_jax import encodings
from pe_jax.encodings.parser import expand_names
from pe_jax.interop import save_stablehlo, stablehlo
from pe_jax.interop.model_function import check_program
from pe_jax.models import Bert, BertConfig, BertForClassification, BertForSpans

SIZES = dict(vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import models

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(35))]
    ids = {word: number for number, word in enumerate(words)}
    return Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))


def made(model):
    """A model's parameters."""
    return model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]


def inputs(rows, length):
    rng = np.random.default_rng(rows)
    tokens = rng.integers(40, size=(rows, length)).astype(np.int32)
    mask = np.arange(length) < rng.integers(2, length + 1, size=(rows, 1))
    return tokens, np.zeros_like(tokens), mask


def program(folder):
    return jax.export.deserialize(bytearray((folder / "model.stablehlo").read_bytes())).call


@pytest.mark.parametrize("name", ["learned_absolute", "learned_relative+window(reach=3)"])
def test_hidden_states(tmp_path, tokenizer, name):
    config = BertConfig(**SIZES, position=name, max_length=40)
    model = Bert(config)
    params = made(model)
    text = save_stablehlo(tmp_path / "out", config, {"bert": params}, tokenizer)
    assert text == "hidden [B, L, 16]"
    run = program(tmp_path / "out")
    for rows, length in ((1, 2), (3, 40)):
        arguments = inputs(rows, length)
        (got,) = run(*arguments)
        want = model.apply({"params": params}, *arguments)
        seen = arguments[2][..., None]
        np.testing.assert_allclose(got * seen, want * seen, atol=2e-5)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["position"] == config.encoding().name
    assert about["max_length"] == (40 if name == "learned_absolute" else None)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md", "model.json", "model.stablehlo", "tokenizer.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (BertForClassification(BertConfig(**SIZES, position="rope"), 3), {"logits": (2, 3)}),
        (BertForSpans(BertConfig(**SIZES, position="rope")), {"start": (2, 9), "end": (2, 9)}),
    ],
)
def test_heads(tmp_path, tokenizer, model, shapes):
    params = made(model)
    labels = ("no", "yes", "maybe") if "logits" in shapes else ()
    save_stablehlo(tmp_path / "out", model.config, params, tokenizer, labels=labels)
    got = program(tmp_path / "out")(*inputs(2, 9))
    want = jax.tree.leaves(model.apply({"params": params}, *inputs(2, 9)))
    for one, other, shape in zip(got, want, shapes.values(), strict=True):
        assert one.shape == shape
        np.testing.assert_allclose(one, other, atol=2e-5)
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert list(about["outputs"]) == list(shapes) and about["labels"] == list(labels)


def test_the_readme_of_the_folder_runs(tmp_path, tokenizer, monkeypatch):
    config = BertConfig(**SIZES, position="alibi")
    save_stablehlo(tmp_path / "out", config, {"bert": made(Bert(config))}, tokenizer)
    monkeypatch.chdir(tmp_path / "out")
    (block,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    exec(block, found := {})
    assert found["outputs"][0].shape == (*found["tokens"].shape, 16)
    assert "pe_jax" not in block and "flax" not in block


def test_what_is_refused(tmp_path, tokenizer, monkeypatch):
    config = BertConfig(**SIZES, position="convolutional(width=3, groups=4)")
    params = {"bert": made(Bert(config))}
    with pytest.raises(ValueError, match="needs a length that is known at compile time"):
        save_stablehlo(tmp_path / "out", config, params, tokenizer)
    config = BertConfig(**SIZES, position="rope")
    params = {"bert": made(Bert(config))}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        save_stablehlo(tmp_path / "full", config, params, tokenizer)
    monkeypatch.setattr(stablehlo, "check_program", partial(check_program, tolerance=-1.0))
    with pytest.raises(ValueError, match="differs from the model by .*: nothing is written"):
        save_stablehlo(tmp_path / "out", config, params, tokenizer)
    assert not (tmp_path / "out").exists()


NAMES = [name for name in expand_names("all") if name not in ("cycle", "per_layer")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_encoding(tmp_path, tokenizer, name):
    encoding = encodings.from_name(name, hidden_size=16, head_size=8, num_heads=2, max_length=40)
    if encoding.axes > 1:
        pytest.skip("positions of several axes are an argument of Bert that is not exported")
    config = BertConfig(**SIZES, position=name, max_length=40)
    try:
        params = {"bert": made(Bert(config))}
    except ValueError as error:
        pytest.skip(f"no encoder: {error}")
    if name.partition("+")[0] in ("convolutional", "selective_rope", "path_attention"):
        with pytest.raises(ValueError, match="needs a length that is known at compile time"):
            save_stablehlo(tmp_path / "out", config, params, tokenizer)
        return
    save_stablehlo(tmp_path / "out", config, params, tokenizer)
