"""The pages of all encodings have the cards as they are, and measurements agree with them."""

import re
from pathlib import Path

import catalogue
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import card, entries
from references import EXCUSED

from pe_jax import encodings
from pe_jax.encodings import Metadata, Part, PositionEncoding, Traits
from pe_jax.testing.subject import SIZES

DOCS = Path(__file__).parents[2] / "docs"
OUTDATED = "The pages are out of date: python tools/write_catalogue.py"
RESULTS = catalogue.read(DOCS / "catalogue.json")
ROWS = catalogue.rows()
SMALL = dict(hidden_size=8, head_size=4, num_heads=2, max_length=256)

# --- the pages are up to date ---------------------------------------------------------------------


def test_the_pages_are_written_from_their_results():
    assert list(RESULTS.rows) == [row.title for row in ROWS], OUTDATED
    pages = catalogue.pages(ROWS, RESULTS)
    for name, text in pages.items():
        assert text == (DOCS / name).read_text("utf-8"), OUTDATED
    cards = {f"gallery/{path.name}" for path in DOCS.glob("gallery/*")}
    assert cards == pages.keys() - {"catalogue.md"}, OUTDATED


# --- what was measured fits what is said ----------------------------------------------------------


def test_results():
    for title, row in RESULTS.rows.items():
        assert set(row.checks.values()) <= {"ok", "no", "–"}
        assert 0 < row.cost.low <= row.cost.ratio <= row.cost.high, title
        assert set(row.exports) <= {"ONNX, StableHLO", "BERT", "RoFormer"}
    told = {reason for row in RESULTS.rows.values() for reason in row.excuses.values()}
    known = {reason for reasons in EXCUSED.values() for reason in reasons.values()}
    assert told <= known, OUTDATED


def test_results_are_read_as_they_were_written(tmp_path):
    catalogue.write(tmp_path / "again.json", RESULTS)
    assert (tmp_path / "again.json").read_text("utf-8") == (
        DOCS / "catalogue.json"
    ).read_text("utf-8")


@pytest.mark.parametrize("name", ["sinusoidal_absolute", "alibi"])
def test_measured_values(name):
    row = next(row for row in ROWS if row.name == name)
    known = RESULTS.rows[row.title]
    for found, stored in zip(
        catalogue.measure(row), (known.properties, known.requirements)
    ):
        assert found[0] == stored[0]
        np.testing.assert_allclose(
            found[1:], stored[1:], rtol=0.01, atol=0.0011, err_msg=OUTDATED
        )


@pytest.mark.parametrize("name", ["fire", "path_attention+causal", "learned_absolute"])
def test_linear_memory_was_measured(name):
    """PaTH alone keeps an array of all pairs of tokens."""
    row = next(row for row in ROWS if row.name == name)
    measured = catalogue.linear(row)
    assert measured == RESULTS.rows[row.title].linear, OUTDATED
    assert measured == (2 * (not name.startswith("path"),))


@pytest.mark.parametrize("name", ["rope", "learned_absolute", "convolutional"])
def test_exports_were_measured(name):
    row = next(row for row in catalogue.rows(SIZES) if row.name == name)
    assert catalogue.exports(row) == RESULTS.rows[row.title].exports, OUTDATED


# Positions do not change them, but the first tokens of a row have fewer neighbours to convolve.
CONVOLVED = {"selective_rope", "path_attention", "dape_v2"}


def test_what_is_said_was_measured():
    for row in ROWS:
        found = RESULTS.rows[row.title].properties
        for name, says, violation in (
            ("invariant", entries.invariant(row), found.invariance),
            ("monotone", entries.monotone(row), found.monotonicity),
            ("symmetric", entries.symmetric(row), found.symmetry),
        ):
            if says and not (name == "invariant" and row.key in CONVOLVED):
                assert violation == pytest.approx(0, abs=5e-4), (row.title, name)
            if (
                says is False and name != "invariant"
            ):  # P·Pᵀ may be invariant by itself.
                assert violation != 0, (row.title, name)


# --- rows -----------------------------------------------------------------------------------------


def test_a_new_encoding_is_a_new_row(monkeypatch):
    @encodings.define_encoding
    def decoder_only(*, head_size: int, factor: float) -> Part:
        return Part(
            traits=Traits(causal_only="it looks back"),
            metadata=Metadata(formula="f(x)", source="here"),
        )

    monkeypatch.setitem(encodings.ENCODINGS, "decoder_only", decoder_only)
    row = next(row for row in catalogue.rows(SMALL) if row.key == "decoder_only")
    assert (
        row.name == "decoder_only(factor=4)+causal"
        and row.title == "decoder_only(…)+causal"
    )
    assert card.source(row) == "here"

    @encodings.define_encoding
    def by_bytes(*, alphabet: int) -> Part:
        return Part()

    monkeypatch.setitem(encodings.ENCODINGS, "by_bytes", by_bytes)
    with pytest.raises(
        ValueError, match=r"'by_bytes' requires the options \['alphabet'\]"
    ):
        catalogue.rows(SMALL)


def test_a_part_that_says_nothing():
    row = catalogue.Entry("mute", PositionEncoding(parts=(Part(name="mute"),)))
    with pytest.raises(ValueError, match=r"\['mute'\] have no metadata"):
        card.source(row)


# --- measurements of what is known ----------------------------------------------------------------


def added(vectors):
    """An encoding that adds `vectors(positions) -> [L, 1]` to the input."""
    embed = lambda params, x, context: x + vectors(jnp.asarray(context.arrays()[0]))
    metadata = Metadata(
        kind="absolute",
        vectors=lambda params, x: jnp.asarray(x, jnp.float32)[..., None],
    )
    part = Part(name="added", embed=embed, metadata=metadata)
    return catalogue.Entry("added", PositionEncoding(parts=(part,)))


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
    assert required.length > 0.1 and required.growth == pytest.approx(
        255 / 256 / (63 / 64)
    )


def test_costs():
    rows = [catalogue.Entry("alibi", encodings.alibi(num_heads=2))]
    costs, milliseconds = catalogue.costs(rows, rounds=1, sizes=SMALL)
    (cost,) = costs.values()
    assert 0 < cost.low == cost.ratio == cost.high and milliseconds > 0
    assert catalogue.memory(rows[0], SMALL) >= 0.9
    short = catalogue.Entry(
        "learned_absolute", encodings.learned_absolute(max_length=9, hidden_size=8)
    )
    assert np.isnan(catalogue.memory(short, SMALL))


def test_the_facts_of_one_encoding():
    row = catalogue.Entry("alibi", encodings.alibi(num_heads=12), {"learnable": False})
    results = catalogue.Measured(
        catalogue.Properties("logits", 0.0, 0.0, 0.0, None),
        catalogue.Requirements(
            "logits", 0.1234, 1.0, float("nan"), 1234.5, float("inf")
        ),
        dict.fromkeys(catalogue.CHECKS, "ok"),
        {"shift": "a reason"},
        catalogue.Cost(1.234, 1.1, 1.3),
        (True, False),
        "a machine",
        float("nan"),
        ["BERT"],
    )
    lines = card.facts([row], {"alibi": results})
    told = dict(re.findall(r"\| \[(.+?)\]\S+ +\| (.+?) +\|", "\n".join(lines)))
    assert (
        told["translation invariant"] == "yes (0.000)"
        and told["symmetric"] == "yes (–)"
    )
    assert [told[x] for x in ("smallest distance", "size", "growth")] == [
        "0.123",
        "1.000",
        "–",
    ]
    assert (
        told["change in a longer input"] == "1,234"
        and told["linear memory"] == "consecutive"
    )
    assert told["change at a later position"] == "∞" and told["exports to"] == "BERT"
    assert (
        told["time / `none`"] == "1.23 (1.10–1.30)" and told["memory / `none`"] == "–"
    )
    assert told["kernels"] == "TPU, cuDNN" and told["passes"].startswith(
        "packing, padding"
    )


def test_what_attention_costs_without_the_kernel(monkeypatch, tmp_path):
    times = tmp_path / "layers.json"
    times.write_text('{"none": {"ms": 0.25}, "fire": {"ms": 11}, "rope": {"ms": 1}}')
    monkeypatch.setattr(card, "TPU_LAYERS", times)

    def cell(name):
        encoding = encodings.from_name(name, **catalogue.SIZES)
        return card.kernel_cell(catalogue.Entry(name, encoding))

    assert [cell(name) for name in ("rope", "fire", "fox")] == [
        "yes",
        "no (44 ×)",
        "no",
    ]


@pytest.mark.parametrize(
    ("name", "hooks"),
    [("rope", "q, k"), ("rove(rope)", "q, k, v"), ("shifted(rope)", "positions, q, k")],
)
def test_where_an_encoding_acts(name, hooks):
    assert entries.acts(next(row for row in ROWS if row.name == name)) == hooks
