"""`import pe_jax` gives its modules, each when it is first used."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pe_jax


def test_modules_are_imported_when_used():
    code = """
import sys, time
import pe_jax
assert "jax" not in sys.modules and not any(name.startswith("pe_jax.") for name in sys.modules)
assert set(pe_jax.MODULES) <= set(dir(pe_jax))
import jax
start = time.perf_counter()
pe_jax.encodings.rope, pe_jax.attention.attention, pe_jax.properties, pe_jax.testing
print(time.perf_counter() - start)
assert "flax" not in sys.modules
pe_jax.models.Bert, pe_jax.linen, pe_jax.nnx, pe_jax.adapters, pe_jax.interop, pe_jax.golden
pe_jax.trainer.load_run
assert set(pe_jax.MODULES) <= set(vars(pe_jax))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 5  # Half a second on an idle machine.


def test_the_stub_names_every_module():
    stub = Path(pe_jax.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert re.findall(r"import (\w+) as \1", stub) == list(pe_jax.MODULES)


def test_an_unknown_module():
    with pytest.raises(
        AttributeError, match="module 'pe_jax' has no attribute 'encoding'"
    ):
        _ = pe_jax.encoding


def test_the_folders_of_tests_are_those_of_the_package():
    package = Path(pe_jax.__file__).parent
    tests = Path(__file__).parents[1]
    # Tests of the whole project, and what tests share.
    others = {"project", "helpers", "published", "references"}
    for file in tests.rglob("test_*.py"):
        folder = file.parent.relative_to(tests)
        if others.isdisjoint(folder.parts):
            assert (package / folder).is_dir(), folder
    modules = {file.stem.removeprefix("test_") for file in tests.glob("test_*.py")}
    assert modules <= {file.stem for file in package.glob("*.py")}


def test_the_package_does_not_import_research():
    """It is not in the wheel. Names in texts, which are resolved later, count as well."""
    package = Path(pe_jax.__file__).parent
    pattern = re.compile(r"^\s*(from|import) research\b|\bresearch(\.\w+)*[.:]\w", re.M)
    files = [path for path in package.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    assert len(files) > 100
    assert not [
        path for path in files if pattern.search(path.read_text(encoding="utf-8"))
    ]
    configuration = tomllib.loads(
        (package.parent / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert configuration["tool"]["setuptools"]["packages"]["find"]["include"] == [
        "pe_jax*"
    ]
