"""docs/catalogue.md has the cards of encodings as they are, and measurements agree with them."""

import functools
import re
from pathlib import Path

import catalogue
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import catalogue_page as page
from references import EXCUSED

from pe_jax import encodings
from pe_jax.console.markdown import table
from pe_jax.encodings import Metadata, Part, PositionEncoding, Traits

PAGE = Path(__file__).parents[2] / "docs/catalogue.md"
OUTDATED = "docs/catalogue.md is out of date: python tools/write_catalogue.py"
ROWS = catalogue.rows()
SMALL = dict(hidden_size=8, head_size=4, num_heads=2, max_length=256)


@functools.cache
def on_the_page(header):
    """Cells of the table with these columns, by the first one."""
    text = PAGE.read_text(encoding="utf-8")
    lines = next(part.splitlines() for part in text.split("\n\n") if _cells(part)[0] == [*header])
    return {row[0].strip("[]"): dict(zip(header, row)) for row in map(_split, lines[2:])}


def _cells(part):
    return [_split(line) for line in part.strip().splitlines()] or [[]]


def _split(line):
    cells = re.split(r"(?<!\\)\|", line)[1:-1]
    return [cell.strip().replace(r"\|", "|") for cell in cells]


# --- the page is up to date -----------------------------------------------------------------------


def test_the_page_is_written_from_its_results():
    results = catalogue.read(PAGE.with_suffix(".json"))
    assert list(results.rows) == [row.title for row in ROWS], OUTDATED
    assert catalogue.page(ROWS, results.rows, results.none_ms) == PAGE.read_text("utf-8"), OUTDATED


def test_every_name_links_to_its_docstring():
    text = PAGE.read_text(encoding="utf-8")
    targets = dict(re.findall(r"^(\[`.*`\]): (.*)$", text, re.M))
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) > 400 and all(_split(row)[0] in targets for row in rows)
    for title, path in targets.items():
        key = re.match(r"\w+", title[2:])[0]
        assert re.search(rf"\b(def|=) {key}\b|\b{key} = ", (PAGE.parent / path).read_text("utf-8"))


def test_results():
    for title, row in catalogue.read(PAGE.with_suffix(".json")).rows.items():
        assert set(row.checks.values()) <= {"ok", "no", "–"}
        assert 0 < row.cost.low <= row.cost.ratio <= row.cost.high, title


def test_results_are_read_as_they_were_written(tmp_path):
    results = catalogue.read(PAGE.with_suffix(".json"))
    catalogue.write(tmp_path / "again.json", results)
    assert (tmp_path / "again.json").read_text("utf-8") == PAGE.with_suffix(".json").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("name", ["sinusoidal_absolute", "alibi"])
def test_measured_values(name):
    row = next(row for row in ROWS if row.name == name)
    properties, required = catalogue.measure(row)
    for header, measured in (
        (page.PROPERTIES, (properties.invariance, properties.symmetry)),
        (page.MONOTONICITY, (properties.monotonicity, properties.near)),
        (page.REQUIREMENTS, required[1:]),
    ):
        cells = on_the_page(header)[f"`{name}`"].values()
        found = [float(cell) for cell in cells if re.fullmatch(r"\d+\.\d+", cell)]
        np.testing.assert_allclose(found, measured, rtol=0.01, atol=0.0011, err_msg=OUTDATED)


@pytest.mark.parametrize("name", ["fire", "path_attention+causal", "learned_absolute"])
def test_linear_memory_was_measured(name):
    """PaTH alone keeps an array of all pairs of tokens."""
    row = next(row for row in ROWS if row.name == name)
    measured = catalogue.linear(row)
    assert measured == catalogue.read(PAGE.with_suffix(".json")).rows[row.title].linear, OUTDATED
    assert measured == (2 * (not name.startswith("path"),))


# --- what was measured fits what is said ----------------------------------------------------------


# Positions do not change them, but the first tokens of a row have fewer neighbours to convolve.
CONVOLVED = {"`selective_rope`", "`path_attention+causal`", "`dape_v2`"}


@pytest.mark.parametrize(
    ("says", "measured", "header"),
    [
        ("invariant", "TI", page.PROPERTIES),
        ("monotone", "all", page.MONOTONICITY),
        ("symmetric", "symm.", page.PROPERTIES),
    ],
)
def test_what_is_said_was_measured(says, measured, header):
    for name, cells in on_the_page(header).items():
        if cells[says] == "yes" and (says, name in CONVOLVED) != ("invariant", True):
            assert cells[measured] == "0.000", name
        if cells[says] == "no" and says != "invariant":  # P·Pᵀ may be invariant by itself.
            assert cells[measured] == "–" or float(cells[measured]) > 0, name


def test_excuses_are_those_of_the_tests():
    told = set(re.findall(r"^- `.*`, \w+: (.*)\.$", PAGE.read_text(encoding="utf-8"), re.M))
    known = {reason for reasons in EXCUSED.values() for reason in reasons.values()}
    assert told <= known, OUTDATED


# --- rows -----------------------------------------------------------------------------------------


def test_a_new_encoding_is_a_new_row(monkeypatch):
    @encodings.named
    def decoder_only(*, head_size: int, factor: float) -> Part:
        return Part(traits=Traits(causal_only="it looks back"), metadata=Metadata("f(x)", "here"))

    monkeypatch.setitem(encodings.ENCODINGS, "decoder_only", decoder_only)
    row = next(row for row in catalogue.rows(SMALL) if row.key == "decoder_only")
    assert row.name == "decoder_only(factor=4)+causal"
    link = "[`decoder_only(…)+causal`]"
    assert page.sources([row])[2].replace(" ", "") == f"|{link}|here|"
    assert page.parameters([row])[2].replace(" ", "") == f"|{link}|0|0|any|"

    @encodings.named
    def by_bytes(*, alphabet: int) -> Part:
        return Part()

    monkeypatch.setitem(encodings.ENCODINGS, "by_bytes", by_bytes)
    with pytest.raises(ValueError, match=r"'by_bytes' requires the options \['alphabet'\]"):
        catalogue.rows(SMALL)


def test_a_part_that_says_nothing():
    row = catalogue.Entry("mute", PositionEncoding((Part(name="mute"),)))
    with pytest.raises(ValueError, match=r"\['mute'\] have no metadata"):
        page.sources([row])


def test_examples_are_not_in_titles():
    row = next(row for row in ROWS if row.key == "rope_longrope")
    assert row.title == "rope_longrope(…)"
    told = page.options([row])[2]
    assert "| `short=(…)`\\*, `long=(…)`\\*, `factor=4`\\*, " in told and "`base=10000`" in told


# --- measurements of what is known ----------------------------------------------------------------


def added(vectors):
    """An encoding that adds `vectors(positions) -> [L, 1]` to the input."""
    embed = lambda params, x, context: x + vectors(jnp.asarray(context.arrays()[0]))
    metadata = Metadata(
        kind="absolute", vectors=lambda params, x: jnp.asarray(x, jnp.float32)[..., None]
    )
    part = Part(name="added", embed=embed, metadata=metadata)
    return catalogue.Entry("added", PositionEncoding((part,)))


def test_the_bare_index_grows_and_shifts():
    index = added(lambda at: at[:, None].astype(jnp.float32))
    properties, required = catalogue.measure(index, SMALL)
    assert properties.by == "P·Pᵀ" and required.points == "P_x"
    assert required.growth == pytest.approx(255 / 63) and required.distinctness > 0
    assert required.length == 0 and required.shift > 1
    assert properties.symmetry == 0 and properties.invariance > 0.1


def test_the_share_of_the_length_depends_on_it():
    share = added(lambda at: at[:, None] / at.shape[0])
    _, required = catalogue.measure(share, SMALL)
    assert required.length > 0.1 and required.growth == pytest.approx(255 / 256 / (63 / 64))


def test_costs():
    rows = [catalogue.Entry("alibi", encodings.alibi(num_heads=2))]
    costs, milliseconds = catalogue.costs(rows, rounds=1, sizes=SMALL)
    (cost,) = costs.values()
    assert 0 < cost.low == cost.ratio == cost.high and milliseconds > 0


def test_the_page_of_one_encoding():
    row = catalogue.Entry("alibi", encodings.alibi(num_heads=12), {"learnable": False})
    results = catalogue.Measured(
        catalogue.Properties("logits", 0.0, 0.0, 0.0, None),
        catalogue.Requirements("logits", 0.1234, 1.0, float("nan"), 1234.5, float("inf")),
        dict.fromkeys(catalogue.CHECKS, "ok"),
        {"shift": "a reason"},
        catalogue.Cost(1.234, 1.1, 1.3),
        (True, False),
        "a machine",
    )
    text = catalogue.page([row], {"alibi": results}, {"a machine": 12.3})
    assert "| [`alibi`] | logits | yes       | 0.000 | yes       | –     |" in text
    assert "| [`alibi`] | yes      | 0.000 | 0.000 |" in text
    assert "Costs are of a machine, where `none` takes 12 ms." in text
    assert re.search(r"\| logits \| 0.123 +\| 1.000 \| – +\| 1,234 +\| ∞ +\|", text)
    assert "| ranges | 1.23 (1.10–1.30)" in text and "- `alibi`, shift: a reason." in text
    assert "\n".join(table(page.OPTIONS, [["[`alibi`]", "`learnable=False`"]])) in text
