"""The site builds without a warning, and the examples in docstrings run."""

import doctest
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import pe_jax

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(f"pe_jax.{page.stem}" for page in ROOT.glob("docs/api/*.md"))


@pytest.mark.skipif(not importlib.util.find_spec("furo"), reason="needs the extra docs")
@pytest.mark.slow
def test_the_site_builds(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-b",
        "html",
        "docs",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    reference = (tmp_path / "api" / "attention.html").read_text(encoding="utf-8")
    assert 'id="pe_jax.attention.attention"' in reference
    assert f"pe_jax {pe_jax.__version__}" in reference


def public():
    """Docstrings of the packages that the site has, and of what they export."""
    for package in map(importlib.import_module, PACKAGES):
        names = getattr(package, "__all__", None) or [
            name
            for name, one in vars(package).items()
            if getattr(one, "__module__", None) == package.__name__ and name[0] != "_"
        ]
        yield package.__name__, package.__doc__
        yield from (
            (f"{package.__name__}.{name}", getattr(package, name).__doc__)
            for name in names
        )


EXAMPLES = {name: text for name, text in public() if text and ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings(name):
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, None, 0)
    told = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        .run(test, out=told.append)
        .failed
    )
    assert not failed, "".join(told)
