"""What `pip install .` brings is enough for encodings, attention, properties and the suite."""

import importlib
import importlib.util
import json
import re
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What a bare install has: the dependencies and what they depend on.
BARE = {
    *("jax", "jaxlib", "jaxtyping", "ml_dtypes", "numpy", "opt_einsum", "scipy"),
    *("wadler_lindig", "pe_jax"),
}


def top_level(imports):
    """Packages that statements bring in one after the other, a set for each."""
    lines = "\n".join(f"{line}\nseen()" for line in imports)
    code = f"""
import json, sys
sets, known = [], set(sys.stdlib_module_names)
def seen():
    new = {{name.partition(".")[0] for name in sys.modules}} - known
    known.update(new)
    sets.append(sorted(name for name in new if not name.startswith("_")))
{lines}
print(json.dumps(sets))"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT
    )
    return list(map(set, json.loads(run.stdout)))


def test_what_an_import_brings():
    """Beyond JAX, which imports what it finds (etils, absl) where that is installed."""
    _, encodings, others = top_level(
        [
            "import jax",
            "from pe_jax import encodings",
            "from pe_jax import attention, properties",
        ]
    )
    assert encodings == {"pe_jax", "jaxtyping"}
    assert not others


USED = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = name.startswith("_") or name.partition(".")[0] in ALLOWED
        return PathFinder.find_spec(name, path, target) if found else None

ALLOWED = {*sys.stdlib_module_names, *sys.argv[1].split()}
sys.meta_path = [Bare if finder is PathFinder else finder for finder in sys.meta_path]

import jax, jax.numpy as jnp
from pe_jax.interop.hf_registry import FAMILIES
from pe_jax import encodings, interop, properties, testing
from pe_jax.attention import attention, devices

encoding = encodings.from_name("rope", hidden_size=8, head_size=4, num_heads=2, max_length=16)
q = jnp.ones((1, 6, 2, 4))
assert attention(q, q, q, encoding, encoding.init(jax.random.key(0))).shape == q.shape
with devices.emulated_devices():
    assert attention(q, q, q, encoding, {}, implementation="kernel").shape == q.shape
phi = jnp.eye(5)
assert properties.symmetry(phi) == properties.sweep(properties.symmetry, phi[None])[0] == 0
columns = {"a": [1.0, 2.0, 3.0, 5.0]}
assert properties.correlate(columns, columns)[0].pearson == 1
assert testing.CHECKS["name"](testing.Subject(encoding)) == "ok"
assert FAMILIES["llama"].theta == 10_000
assert interop.from_hf({"model_type": "modernbert"}).layer(0).name == "rope(base=160000)"
"""


def test_a_bare_install_is_enough():
    subprocess.run([sys.executable, "-c", USED, " ".join(BARE)], check=True, cwd=ROOT)


def test_dependencies_are_those_above():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        line.partition(">")[0].replace("-", "_") for line in project["dependencies"]
    }
    assert named == {"jax", "jaxtyping", "numpy", "scipy"} <= BARE
    assert project["scripts"] == {"pe-jax": "pe_jax.trainer.commands:main"}
    extras = project["optional-dependencies"]
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert "pe_jax[flax]" in extras["train"] and "pe_jax[train]" in extras["test"]


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_command_without_its_extra_names_it(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_collections", None)
    for module in (
        f"commands.{Path(script).stem}",
        "console.command",
        "console.config_files",
    ):
        monkeypatch.delitem(sys.modules, f"pe_jax.trainer.{module}", raising=False)
    with pytest.raises(
        SystemExit, match=r"ml_collections is not installed.* pip install '\.\[train\]'"
    ):
        runpy.run_path(str(ROOT / script))


@pytest.mark.parametrize("module", ["pe_jax.linen", "pe_jax.nnx"])
def test_modules_without_flax_name_the_extra(module, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"flax is not installed.* of the extra 'flax'"
    ):
        importlib.import_module(module)


def test_models_without_flax(monkeypatch):
    """Their sizes can be read, and others name the extra."""
    for name in [name for name in sys.modules if name.startswith("pe_jax.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax", None)
    models = importlib.import_module("pe_jax.models")
    assert models.PRESETS["tiny"]["hidden_size"] == 128
    with pytest.raises(
        ModuleNotFoundError, match=r"flax is not installed.* of the extra 'flax'"
    ):
        _ = models.Bert
    with pytest.raises(AttributeError, match="no attribute 'Brt'. Did you mean Bert"):
        _ = models.Brt


def test_a_missing_extra_is_one_line_of_a_command(tmp_path):
    """Of what a command imports late, as `pe-jax explore` imports Flax."""
    line = f"--encodings=rope --out={tmp_path / 'page.html'}"
    program = f"""
import sys
sys.modules["flax"] = None
sys.argv = ["pe-jax", "explore", *{line.split()}]
from pe_jax.trainer.commands import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"error: flax is not installed\..*'flax'.*\n", done.stderr), (
        done.stderr
    )


def test_data_of_fine_tuning_names_its_extra(monkeypatch):
    """Scores need more than tfds, which is enough for a corpus."""
    from pe_jax.trainer.data import open_corpus
    from pe_jax.trainer.data.glue import load_glue
    from pe_jax.trainer.data.questions import load_questions

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    install = r"tensorflow_datasets is not installed\..* pip install '\.\[{}\]'\.$"
    for load in (
        lambda: load_glue("cola", "train"),
        lambda: load_questions("squad/v1.1", "train"),
    ):
        with pytest.raises(ValueError, match=install.format("finetuning")):
            load()
    with pytest.raises(ValueError, match=install.format("tfds")):
        open_corpus("tfds:wiki40b/en:train")


@pytest.mark.parametrize("missing", ["onnxruntime", "jax2onnx"])
def test_the_export_to_onnx_names_all_that_it_needs(monkeypatch, missing):
    from pe_jax.interop import onnx_export
    from pe_jax.models import BertConfig

    installed = types.ModuleType("onnxruntime.transformers.float16")
    installed.convert_float_to_float16 = None
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    monkeypatch.setitem(
        sys.modules, "onnxruntime.transformers", types.ModuleType("transformers")
    )
    monkeypatch.setitem(sys.modules, "onnxruntime.transformers.float16", installed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if missing == "onnxruntime":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = (
        rf"^{missing} is not installed\..* pip install '\.\[onnx\]'[.,] [Tt]hen "
        r"pip install --no-deps jax2onnx==0\.17\.1\.$"
    )
    with pytest.raises(ValueError, match=message):
        onnx_export._program(BertConfig(), {}, "float32")


def test_interop_imports_what_needs_the_extra_when_it_is_used(monkeypatch):
    from pe_jax import interop

    assert all(hasattr(interop, name) for name in interop.__all__)
    monkeypatch.delattr(interop, "load_encoder")  # Kept since its first use.
    for name in [name for name in sys.modules if name.startswith("pe_jax.interop.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        ModuleNotFoundError, match="safetensors is not installed.* extra 'train'"
    ):
        _ = interop.load_encoder
    with pytest.raises(
        AttributeError, match=r"'pe_jax.interop' has no attribute 'load_berd'"
    ):
        _ = interop.load_berd
