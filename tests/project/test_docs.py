"""The site builds without a warning, docstrings are shown as written, and their examples run."""

import doctest
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import pe_jax

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    name
    for page in ROOT.glob("docs/api/*.md")
    for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
)
# Sphinx ends a summary at the first full stop before a space, except after these.
ABBREVIATIONS = ("et al.", "e.g.", "i.e.", "vs.")
# An argument that starts so becomes a list of one empty item: docutils reads an enumerator.
ENUMERATOR = re.compile(r"(\(?([a-zA-Z]|[ivxlcdmIVXLCDM]+|\d+|#)[.)]|[-*+•])(\s|$)")


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
    """Docstrings of the modules that the site has, of what they export, and of public methods."""
    for module in map(importlib.import_module, MODULES):
        names = getattr(module, "__all__", None) or [
            name
            for name, one in vars(module).items()
            if getattr(one, "__module__", None) == module.__name__ and name[0] != "_"
        ]
        yield module.__name__, module.__doc__
        for name in names:
            exported = getattr(module, name)
            if not (inspect.isroutine(exported) or inspect.isclass(exported)):
                continue  # A constant has the docstring of its type.
            yield f"{module.__name__}.{name}", exported.__doc__
            if inspect.isclass(exported):
                for member, value in vars(exported).items():
                    described = inspect.isfunction(value) or isinstance(value, property)
                    if described and member[0] != "_":
                        yield f"{module.__name__}.{name}.{member}", value.__doc__


def summary(docstring):
    """The summary that Sphinx shows in a table, and the rest of the paragraph."""
    paragraph = inspect.cleandoc(docstring).partition("\n\n")[0]
    sentences = re.split(r"\.\s+", " ".join(paragraph.splitlines()))
    for end in range(1, len(sentences)):
        shown = ". ".join(sentences[:end]) + "."
        if not shown.endswith(ABBREVIATIONS):
            return shown, ". ".join(sentences[end:])
    return ". ".join(sentences), ""


def is_whole(shown, rest=""):
    """Whether a summary ends where a sentence does."""
    pairs = all(shown.count(left) == shown.count(right) for left, right in ("()", "[]"))
    quoted = shown.count("`") % 2 or shown.count('"') % 2
    ends = shown.endswith((".", ":")) and not shown.endswith((" .", " .."))
    return pairs and not quoted and ends and not re.match(r"[a-z0-9]", rest)


def split_arguments(docstring):
    """The lines of a docstring that docutils reads as an argument and a list."""
    lines = inspect.cleandoc(docstring).splitlines()
    arguments = (re.match(r" +[\w, *]+: (.*)", line) for line in lines)
    return [x[0].strip() for x in arguments if x and ENUMERATOR.match(x[1])]


def test_summaries_are_whole_sentences():
    cut = {}
    for name, docstring in public():
        if docstring and not is_whole(*summary(docstring)):
            cut[name] = summary(docstring)[0]
    assert not cut, f"Sphinx cuts these summaries; end a sentence earlier: {cut}"


def test_arguments_are_not_split_into_lists():
    split = {name: split_arguments(text or "") for name, text in public()}
    split = {name: lines for name, lines in split.items() if lines}
    assert not split, f"Sphinx shows these arguments as lists: {split}"


@pytest.mark.parametrize(
    ("docstring", "whole"),
    [
        ("Rotary encoding (Su et al. 2021, eqs. 14-16).", False),
        ("Return w_i for i = 0 .. dim/2 - 1, radians per position.", False),
        ("bias_h(m), h = 1 .. H.\n\nChi et al. 2023.", False),
        ("Rotary encoding (Su et al. 2021). Logits depend on j - i.", True),
        ("One free vector per position: BERT's own encoding.", True),
    ],
)
def test_cut_summaries_are_found(docstring, whole):
    assert is_whole(*summary(docstring)) == whole


def test_split_arguments_are_found():
    docstring = """Rotate.

    Args:
      head_size: d.
      axes: A. Positions are `[L, A]`.
      size: (i) or (ii).
      dim: even.
    """
    assert split_arguments(docstring) == [
        "head_size: d.", "axes: A. Positions are `[L, A]`.", "size: (i) or (ii).",
    ]  # fmt: skip


@pytest.mark.skipif(not importlib.util.find_spec("furo"), reason="needs the extra docs")
@pytest.mark.slow
def test_the_reference_is_shown_as_written(tmp_path):
    """The pages of docs/api, built by themselves: summaries and arguments."""
    source = tmp_path / "source"
    (source / "api").mkdir(parents=True)
    for page in ROOT.glob("docs/api/*.md"):
        text = page.read_text(encoding="utf-8")
        (source / "api" / page.name).write_text(text, encoding="utf-8")
    (source / "index.md").write_text("# API\n\n```{toctree}\n:glob:\n\napi/*\n```\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "xml"]
    command += ["-c", str(ROOT / "docs"), str(source), str(tmp_path / "built")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    faults, summaries = [], 0
    for page in sorted((tmp_path / "built/api").glob("*.xml")):
        tree = ElementTree.parse(page).getroot()
        for items in tree.iter("enumerated_list"):
            if any(not "".join(item.itertext()).strip() for item in items):
                faults.append(f"{page.stem}: an argument is an empty list")
        for row in tree.iter("row"):
            cells = ["".join(cell.itertext()).strip() for cell in row.iter("entry")]
            summaries += len(cells) == 2
            if len(cells) == 2 and not is_whole(cells[1]):
                faults.append(f"{page.stem}: {cells[0]} has the summary {cells[1]!r}")
    assert not faults, faults
    assert summaries > 200


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
