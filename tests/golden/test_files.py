"""Files of golden vectors: damaged ones, those of other configs, and files of something else."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from helpers.commands import call
from safetensors.numpy import load_file, save

from pe_jax import golden

COMMAND = "pe_jax/trainer/commands/golden.py"
CONFIG = {
    "model_type": "llama", "head_dim": 8, "num_attention_heads": 2, "hidden_size": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    golden.write([CONFIG], folder)
    (folder / "code.py").write_text("def rotate(q, k):\n    return q, k\n")
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy to damage."""
    return shutil.copytree(written, tmp_path / "golden")


def rewrite(folder, **changes):
    """Change values of the description."""
    file = folder / "llama.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rewrite_arrays(folder, change):
    """Change arrays, and the checksum with them."""
    file = folder / "llama.safetensors"
    arrays = change(load_file(file))
    data = arrays if isinstance(arrays, bytes) else save(arrays)
    file.write_bytes(data)
    rewrite(folder, sha256=hashlib.sha256(data).hexdigest())


def with_array(name, change):
    return lambda arrays: arrays | {name: change(arrays[name])}


def truncate(folder):
    file = folder / "llama.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def flip(folder):
    file = folder / "llama.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


DAMAGE = {
    "truncated": (truncate, "llama.safetensors is damaged (its SHA-256"),
    "empty": (
        lambda folder: (folder / "llama.safetensors").write_bytes(b""),
        "llama.safetensors is damaged (its SHA-256",
    ),
    "a bit": (flip, "llama.safetensors is damaged (its SHA-256"),
    "other bytes": (
        lambda folder: rewrite_arrays(folder, lambda arrays: b"x" * 5000),
        "llama.safetensors is damaged (",
    ),
    "missing arrays": (
        lambda folder: rewrite_arrays(
            folder,
            lambda arrays: {
                k: x for k, x in arrays.items() if k != "causal/layer_0/out"
            },
        ),
        "llama.safetensors is damaged (causal/layer_0/out is missing)",
    ),
    "another shape": (
        lambda folder: rewrite_arrays(folder, with_array("q", lambda x: x[0].copy())),
        "(q must be float32 [2, 6, 4, 8], got float32 [6, 4, 8])",
    ),
    "another dtype": (
        lambda folder: rewrite_arrays(
            folder, with_array("packed/layer_0/logits", lambda x: x.astype(np.float64))
        ),
        "(packed/layer_0/logits must be float32 [2, 4, 6, 6], got float64 [2, 4, 6, 6])",
    ),
    "not finite": (
        lambda folder: rewrite_arrays(folder, with_array("k", lambda x: x * np.nan)),
        "(k is not finite)",
    ),
    "other positions": (
        lambda folder: rewrite_arrays(
            folder, with_array("chunk/positions", lambda x: x + 1)
        ),
        "(chunk/positions is not that of its config)",
    ),
    "no description": (
        lambda folder: (folder / "llama.json").unlink(),
        "llama.json is missing; llama.safetensors is of no use alone.",
    ),
    "no tensors": (
        lambda folder: (folder / "llama.safetensors").unlink(),
        "llama.safetensors has no golden vectors",
    ),
    "half a description": (
        lambda folder: (folder / "llama.json").write_text('{"format": 2, "con'),
        "llama.json is damaged (",
    ),
    "a list": (
        lambda folder: (folder / "llama.json").write_text("[1]"),
        "llama.json is damaged (it is not a JSON object)",
    ),
    "a config": (
        lambda folder: (folder / "llama.json").write_text('{"model_type": "llama"}'),
        "llama.json has format None; this version reads 2.",
    ),
    "the format before": (
        lambda folder: rewrite(folder, format=1),
        "llama.json has format 1; this version reads 2. Write it again with pe-jax golden.",
    ),
    "no config": (
        lambda folder: rewrite(folder, config=3),
        "llama.json is damaged (config is 3)",
    ),
    "no known config": (
        lambda folder: rewrite(folder, config={"model_type": "lama"}),
        "llama.json is damaged (config: model_type 'lama' is not known.",
    ),
    "another config": (
        lambda folder: rewrite(folder, config=CONFIG | {"head_dim": 16}),
        "llama.safetensors is damaged (q must be float32 [2, 6, 4, 16], got float32 [2, 6, 4, 8])",
    ),
    "no cases": (
        lambda folder: rewrite(folder, cases={}),
        "llama.json is damaged (cases must be",
    ),
    "cases of another kind": (
        lambda folder: rewrite(folder, cases="causal"),
        "llama.json is damaged (cases must be",
    ),
    "other layers": (
        lambda folder: rewrite(folder, layers={"layer_1": {}}),
        "llama.json is damaged (layers must be ['layer_0'] for its config, got ['layer_1'])",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_file(folder, damage):
    apply, says = DAMAGE[damage]
    apply(folder)
    code, printed, err = call(
        COMMAND,
        f"--check={folder / 'code.py'}:rotate",
        f"--golden={folder / 'llama.safetensors'}",
    )
    assert code == 1 and not printed
    assert says in err and str(folder) in err and err.count("\n") == 1, err
    assert "pe-jax golden" in err


def test_files_that_cannot_be_golden_vectors_are_refused(folder):
    with pytest.raises(ValueError, match="llama.json must be a .safetensors file"):
        golden.check(lambda q, k: (q, k), folder / "llama.json")


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_same_config_is_written_again(folder):
    before = contents(folder)
    truncate(folder)
    golden.write([CONFIG, CONFIG], folder)
    assert contents(folder) == before
    (folder / "llama.json").write_text("{")
    golden.write([CONFIG], folder)
    assert contents(folder) == before


def test_configs_of_one_type_have_files_of_their_own(tmp_path):
    bases = [1e4, 2e4, 3e4]
    configs = [CONFIG | {"rope_theta": base} for base in bases]
    files = golden.write(configs, tmp_path)
    assert [file.stem for file in files] == ["llama", "llama~2", "llama~3"]
    for file, base in zip(files, bases):
        assert (
            json.loads(file.with_suffix(".json").read_text())["config"]["rope_theta"]
            == base
        )


def test_nothing_is_written_over_files_of_something_else(folder):
    before = contents(folder)
    other = CONFIG | {"rope_theta": 2e4}
    bloom = {"model_type": "bloom", "hidden_size": 16, "n_head": 4}
    with pytest.raises(
        ValueError, match="llama.json is of another config, .* another folder"
    ):
        golden.write([bloom, other], folder)
    assert contents(folder) == before
    config = {
        "rope_theta": 2e4,
        "head_dim": 8,
        "num_attention_heads": 2,
        "hidden_size": 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json is not of golden vectors"):
        golden.write([config], folder)
    (folder / "README.md").write_text("# My model\n")
    with pytest.raises(ValueError, match="README.md is not of golden vectors"):
        golden.write([CONFIG], folder)
    assert (folder / "README.md").read_text() == "# My model\n"
