"""The pages of all encodings have the cards as they are, and measurements agree with them."""

import json
import re
from pathlib import Path

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import card, declared, drawings, trained
from catalogue.typeset import latex
from references import EXCUSED

from pe_jax import encodings, testing
from pe_jax.encodings import Metadata, Part, PositionEncoding, Traits

DOCS = Path(__file__).parents[2] / "docs"
OUTDATED = "The pages are out of date: python tools/write_catalogue.py"
RESULTS = catalogue.read(DOCS / "catalogue.json")
ROWS = catalogue.rows()
KEYS = list(dict.fromkeys(row.key for row in ROWS))
SMALL = dict(hidden_size=8, head_size=4, num_heads=2, max_length=256)
GALLERY = {path.stem: path.read_text("utf-8") for path in DOCS.glob("gallery/*.md")}
CARDS = {
    part.partition("`")[0]: part for text in GALLERY.values() for part in text.split("\n## `")[1:]
}


def code(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


# --- the pages are up to date ---------------------------------------------------------------------


def test_the_pages_are_written_from_their_results():
    assert list(RESULTS.rows) == [row.title for row in ROWS], OUTDATED
    pages = catalogue.pages(ROWS, RESULTS)
    for name, text in pages.items():
        assert text == (DOCS / name).read_text("utf-8"), OUTDATED
    assert {f"gallery/{name}.md" for name in GALLERY} == pages.keys() - {"catalogue.md"}, OUTDATED


def test_every_encoding_has_a_card_with_advice_code_and_source():
    assert sorted(CARDS) == sorted(KEYS) == sorted(card.ADVICE)
    for key, text in CARDS.items():
        assert ("```math" in text) == (key != "none"), key
        (path,) = re.findall(r"Code: \[`\w+`\]\(\.\./\.\./(.*)\)", text)
        assert re.search(rf"\bdef {key}\b", (DOCS.parent / path).read_text("utf-8")), key
    links = re.findall(r"\]\(gallery/(\w+)\.md#(\w+)\)", (DOCS / "catalogue.md").read_text("utf-8"))
    assert len(links) == len(ROWS) and all(f"## `{key}`" in GALLERY[name] for name, key in links)


@pytest.mark.parametrize("key", KEYS)
def test_the_code_of_cards_runs(key):
    (block,) = code(CARDS[key])
    assert len(list(filter(None, block.splitlines()))) <= 5

    def out():
        found = {}
        exec(block, found)
        return found["out"]

    assert jax.eval_shape(out).shape in {(1, 128, 4, 64), (1, 128, 256)}


@pytest.mark.parametrize("key", ["learned_absolute", "alibi", "fox"])
def test_the_code_of_cards_gives_numbers(key):
    exec(*code(CARDS[key]), found := {})
    assert np.isfinite(found["out"]).all()


@pytest.mark.parametrize(
    ("formula", "typeset"),
    [
        ("S(ω, x), ω_i = 10000^(−2i/D)", r"S(\omega , x),\quad \omega _{i} = 10000^{-2i/D}"),
        ("P_(row, column) free", r"P_{\text{row}, \text{column}}\text{ free}"),
        ("s·log max(1, n/√d) or a chunk of x", None),
        ("q_in², t from key to query", r"q_{in}^2,\quad t\text{ from key to query}"),
        ("(q+u)·k / √(2d), not divided by √d, R and C free, Σ_a ω_a", None),
    ],
)
def test_formulas_are_typeset(formula, typeset):
    text = latex(formula)
    assert typeset in (None, text)
    if "chunk" in formula:
        assert text == r"s \cdot \log \max (1, n/\sqrt {d})\text{ or a chunk of }x"
    if "2d" in formula:
        assert text.startswith("\\begin{gathered}\n(q+u) \\cdot k / \\sqrt {2d},\\quad \\text{not")


def test_every_formula_is_ascii_with_closed_braces():
    for row in ROWS:
        for metadata in (part.metadata for part in row.encoding.parts):
            text = latex(metadata.formula)
            assert text.isascii() and text.count("{") == text.count("}"), text
            assert not re.search(r"(?<![\w\\{])[a-z]{5,}", re.sub(r"\\text{.*?}", "", text)), text


# --- images ---------------------------------------------------------------------------------------


def test_images_show_the_models_that_are_trained():
    pictures = trained.read_lines("pictures.jsonl")
    after = {key: name for key in KEYS if (name := card.picture_name(key, pictures))}
    files = {path.stem: path for path in (DOCS / card.IMAGES).iterdir()}
    assert files.keys() == {*KEYS, *(f"{key}_trained" for key in after)}, OUTDATED
    assert sum(path.stat().st_size for path in files.values()) < 1_500_000
    for key, name in after.items():
        curve = drawings.curve_of(pictures[name][0]["picture"])
        assert drawings.carried(files[f"{key}_trained"]) == curve, OUTDATED


@pytest.mark.parametrize("key", ["learned_absolute", "alibi", "window"])
def test_images_show_encodings_as_they_are(key):
    row = next(row for row in ROWS if row.key == key)
    curve = drawings.curve_of(drawings.untrained(row))
    shown = drawings.carried(DOCS / card.IMAGES / f"{key}.png")
    assert shown["by"] == curve["by"] and shown["offset"] == curve["offset"]
    numbers = (np.array(c["mean"], float) for c in (shown, curve))
    np.testing.assert_allclose(*numbers, atol=0.005, err_msg=OUTDATED)


def test_an_image_is_drawn_with_the_curve_before(tmp_path):
    numbers = drawings.untrained(next(row for row in ROWS if row.key == "learned_absolute"))
    path = tmp_path / "one.png"
    assert drawings.carried(path) is None
    drawings.save(numbers, "learned_absolute", path, drawings.curve_of(numbers))
    assert drawings.carried(path) == drawings.curve_of(numbers)


# --- trained models -------------------------------------------------------------------------------


def test_scores_of_trained_models(tmp_path):
    lines = [
        {"position": "rope", "seed": seed, "loss/128": loss, "accuracy/128": 0.25, "loss/512": 5.0}
        for seed, loss in enumerate((4.0, 4.2))
    ]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    scores = trained.read_lines("results.jsonl", tmp_path)
    assert trained.cells(scores["rope"]) == ["4.10 ± 0.14", "25.0%", "5.00", "–", "–", "–"]
    assert trained.cells(lines[:1])[0] == "4.00"
    assert not trained.read_lines("pictures.jsonl", tmp_path)
    page = card.family_page("rotary", ROWS, RESULTS.rows, dict.fromkeys(KEYS, ""), scores, scores)
    text = page.split("\n## `")[1]
    assert "| `rope`  | 4.10 ± 0.14" in text and "rope_trained.png" in text
    assert "`rope(fraction=0.5)`" in text.partition(trained.NOT_MEASURED)[0]
    assert "rope_yarn_trained.png" not in page


def test_names_of_trained_models():
    assert trained.names_of("ssmax") == ["rope+ssmax"] and not trained.names_of("rope_yarn")
    assert trained.names_of("xpos") == ["xpos+causal"] and trained.names_of("rove") == [
        "rove(rope)"
    ]
    assert {"rope", "rope(fraction=0.5)"} < {*trained.names_of("rope")}


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
    assert (tmp_path / "again.json").read_text("utf-8") == (DOCS / "catalogue.json").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("name", ["sinusoidal_absolute", "alibi"])
def test_measured_values(name):
    row = next(row for row in ROWS if row.name == name)
    known = RESULTS.rows[row.title]
    for found, stored in zip(catalogue.measure(row), (known.properties, known.requirements)):
        assert found[0] == stored[0]
        np.testing.assert_allclose(found[1:], stored[1:], rtol=0.01, atol=0.0011, err_msg=OUTDATED)


@pytest.mark.parametrize("name", ["fire", "path_attention+causal", "learned_absolute"])
def test_linear_memory_was_measured(name):
    """PaTH alone keeps an array of all pairs of tokens."""
    row = next(row for row in ROWS if row.name == name)
    measured = catalogue.linear(row)
    assert measured == RESULTS.rows[row.title].linear, OUTDATED
    assert measured == (2 * (not name.startswith("path"),))


@pytest.mark.parametrize("name", ["rope", "learned_absolute", "convolutional"])
def test_exports_were_measured(name):
    row = next(row for row in catalogue.rows(testing.SIZES) if row.name == name)
    assert catalogue.exports(row) == RESULTS.rows[row.title].exports, OUTDATED


# Positions do not change them, but the first tokens of a row have fewer neighbours to convolve.
CONVOLVED = {"selective_rope", "path_attention", "dape_v2"}


def test_what_is_said_was_measured():
    for row in ROWS:
        found = RESULTS.rows[row.title].properties
        for name, says, violation in (
            ("invariant", declared.invariant(row), found.invariance),
            ("monotone", declared.monotone(row), found.monotonicity),
            ("symmetric", declared.symmetric(row), found.symmetry),
        ):
            if says and not (name == "invariant" and row.key in CONVOLVED):
                assert violation == pytest.approx(0, abs=5e-4), (row.title, name)
            if says is False and name != "invariant":  # P·Pᵀ may be invariant by itself.
                assert violation != 0, (row.title, name)


# --- rows -----------------------------------------------------------------------------------------


def test_a_new_encoding_is_a_new_row(monkeypatch):
    @encodings.named
    def decoder_only(*, head_size: int, factor: float) -> Part:
        return Part(traits=Traits(causal_only="it looks back"), metadata=Metadata("f(x)", "here"))

    monkeypatch.setitem(encodings.ENCODINGS, "decoder_only", decoder_only)
    row = next(row for row in catalogue.rows(SMALL) if row.key == "decoder_only")
    assert row.name == "decoder_only(factor=4)+causal" and row.title == "decoder_only(…)+causal"
    assert card.source(row) == "here"

    @encodings.named
    def by_bytes(*, alphabet: int) -> Part:
        return Part()

    monkeypatch.setitem(encodings.ENCODINGS, "by_bytes", by_bytes)
    with pytest.raises(ValueError, match=r"'by_bytes' requires the options \['alphabet'\]"):
        catalogue.rows(SMALL)


def test_a_part_that_says_nothing():
    row = catalogue.Entry("mute", PositionEncoding((Part(name="mute"),)))
    with pytest.raises(ValueError, match=r"\['mute'\] have no metadata"):
        card.source(row)


def test_options_have_defaults_and_meanings():
    assert "- `short=(…)`, required" in CARDS["rope_longrope"]
    assert "- `base=10000`: of the frequencies\n" in CARDS["rope"]
    assert "- `beta_slow=1`: rotations within L at the ends of the ramp\n" in CARDS["rope_yarn"]


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
    assert catalogue.memory(rows[0], SMALL) >= 0.9
    short = catalogue.Entry(
        "learned_absolute", encodings.learned_absolute(max_length=9, hidden_size=8)
    )
    assert np.isnan(catalogue.memory(short, SMALL))


def test_the_facts_of_one_encoding():
    row = catalogue.Entry("alibi", encodings.alibi(num_heads=12), {"learnable": False})
    results = catalogue.Measured(
        catalogue.Properties("logits", 0.0, 0.0, 0.0, None),
        catalogue.Requirements("logits", 0.1234, 1.0, float("nan"), 1234.5, float("inf")),
        dict.fromkeys(catalogue.CHECKS, "ok"),
        {"shift": "a reason"},
        catalogue.Cost(1.234, 1.1, 1.3),
        (True, False),
        "a machine",
        float("nan"),
        ["BERT"],
    )
    lines = card.facts([row], {"alibi": results})
    told = dict(re.findall(r"\| (.+?) +\| (.+?) +\|", "\n".join(lines)))
    assert told["invariant: TI of logits"] == "yes: 0.000" and told["symmetric"] == "yes: –"
    assert told["logits: distinct, size, growth"] == "0.123, 1.000, –"
    assert told["change by length, shift"] == "1,234, ∞" and told["linear memory"] == "ranges"
    assert told["time × `none`"] == "1.23 (1.10–1.30)" and told["memory × `none`"] == "–"
    assert told["export"] == "BERT" and told["TPU kernel, cuDNN"] == "yes, yes"
