"""The gallery has a card for each encoding: formula, code that runs, images, results, options."""

import json
import re
from pathlib import Path

import catalogue
import jax
import numpy as np
import pytest
from catalogue import card, drawings, trained
from catalogue.formatting import latex

from research.which_encoding.results import read_lines

DOCS = Path(__file__).parents[2] / "docs"
OUTDATED = "The cards are out of date: python tools/write_catalogue.py"
ROWS = catalogue.rows()
PICTURES = drawings.read()
KEYS = list(dict.fromkeys(row.key for row in ROWS))
GALLERY = {path.stem: path.read_text("utf-8") for path in DOCS.glob("gallery/*.md")}
CARDS = {
    part.partition("`")[0]: part
    for text in GALLERY.values()
    for part in text.split("\n## `")[1:]
}


def code(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_every_encoding_has_a_card_with_advice_code_and_source():
    assert sorted(CARDS) == sorted(KEYS) == sorted(card.ADVICE)
    for key, text in CARDS.items():
        assert ("```math" in text) == (key != "none"), key
        (path,) = re.findall(r"Code: \[`\w+`\]\(\.\./\.\./(.*)\)", text)
        assert re.search(rf"\bdef {key}\b", (DOCS.parent / path).read_text("utf-8")), (
            key
        )
    links = re.findall(
        r"\]\(gallery/(\w+)\.md#(\w+)\)", (DOCS / "catalogue.md").read_text("utf-8")
    )
    assert len(links) == len(ROWS) and all(
        f"## `{key}`" in GALLERY[name] for name, key in links
    )


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
        (
            "S(ω, x), ω_i = 10000^(−2i/D)",
            r"S(\omega , x),\quad \omega _{i} = 10000^{-2i/D}",
        ),
        ("P_(row, column) free", r"P_{\text{row}, \text{column}}\text{ free}"),
        ("s·log max(1, n/√d) or a chunk of x", None),
        ("MLP_h(|m|)", r"\operatorname{MLP}_{h}(|m|)"),
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
        assert text.startswith(
            "\\begin{gathered}\n(q+u) \\cdot k / \\sqrt {2d},\\quad \\text{not"
        )


def test_every_formula_is_ascii_with_closed_braces():
    for row in ROWS:
        for metadata in (part.metadata for part in row.encoding.parts):
            text = latex(metadata.formula)
            assert text.isascii() and text.count("{") == text.count("}"), text
            assert not re.search(r"\\text{[^}]*\\", text), text
            assert not re.search(
                r"(?<![\w\\{])[a-z]{5,}", re.sub(r"\\text{.*?}", "", text)
            ), text


def test_options_have_defaults_and_meanings():
    assert "- `short=(…)`, required" in CARDS["rope_longrope"]
    assert "- `base=10000`: base of the frequencies\n" in CARDS["rope"]
    assert "- `layout='half'`: which dimensions make a pair" in CARDS["rope_linear"]
    for line in re.findall(r"^- `\w+=.*", "".join(GALLERY.values()), re.M):
        assert re.search(r"`.*?`(, required)?: \S", line), line


def test_an_option_without_a_meaning(monkeypatch):
    row = next(row for row in ROWS if row.key == "learned_relative")
    monkeypatch.delitem(card.OPTIONS, "learned_relative")
    message = r"learned_relative: the options \['max_distance', 'separate'"
    with pytest.raises(ValueError, match=message):
        card._options(row)
    assert (
        "- `beta_slow=1`: rotations within L at the ends of the ramp\n"
        in CARDS["rope_yarn"]
    )


# --- images ---------------------------------------------------------------------------------------


def test_every_card_has_its_pictures():
    assert list(PICTURES) == KEYS, OUTDATED
    trained_pictures = read_lines("pictures.jsonl")
    for key, text in CARDS.items():
        after = trained.picture_name(key, trained_pictures)
        files = [f"{key}.png", *([f"{key}_trained.png"] if after else [])]
        shown = re.findall(rf"<!-- !\[.+\]\(\.\./{card.IMAGES}/(\S+)\) -->", text)
        assert shown == files, OUTDATED


@pytest.mark.parametrize("key", ["learned_absolute", "alibi", "window"])
def test_pictures_show_encodings_as_they_are(key):
    row = next(row for row in ROWS if row.key == key)
    computed, stored = drawings.untrained(row), PICTURES[key]
    assert stored["by"] == computed["by"]
    assert stored["curve"]["offset"] == computed["curve"]["offset"]
    means = (np.array(each["curve"]["mean"], float) for each in (stored, computed))
    np.testing.assert_allclose(*means, atol=0.005, err_msg=OUTDATED)


def test_images_are_drawn_before_and_after_training(tmp_path):
    rows = [row for row in ROWS if row.key in ("alibi", "rope_yarn")]
    drawings.draw(rows, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["alibi.png", "alibi_trained.png", "rope_yarn.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


# --- trained models -------------------------------------------------------------------------------


def test_scores_of_trained_models(tmp_path):
    lines = [
        {
            "position": "rope",
            "ratio": 1.0,
            "seed": seed,
            "loss/64": loss,
            "accuracy/64": 0.25,
            "loss/512": 5.0,
        }
        for seed, loss in enumerate((4.0, 4.2))
    ]
    (tmp_path / "results.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines)
    )
    scores = read_lines("results.jsonl", tmp_path)
    assert trained.cells("rope", scores["rope"]) == [
        "4.10 ± 0.14",
        "25.0%",
        "–",
        "5.00",
        "–",
    ]
    assert trained.cells("rope", lines[:1])[0] == "4.00"
    assert not read_lines("pictures.jsonl", tmp_path)
    results = catalogue.read(DOCS / "catalogue.json")
    rows = [row for row in ROWS if row.key in ("rope", "rope_yarn")]
    page = card.family_page(
        "rotary", rows, results.rows, dict.fromkeys(KEYS, ""), scores, scores
    )
    text = page.split("\n## `")[1]
    assert (
        "| `rope` " in text and "| 4.10 ± 0.14 " in text and "rope_trained.png" in text
    )
    assert (
        "loss, 512" in text and "loss, 256" not in text
    )  # Columns without a value are left out.
    assert "`rope(fraction=0.5)`" in text.partition(trained.NOT_MEASURED)[0]
    assert "rope_yarn_trained.png" not in page


def test_names_of_trained_models():
    assert trained.names_of("ssmax") == ["rope+ssmax"] and not trained.names_of(
        "rope_yarn"
    )
    assert trained.names_of("xpos") == ["xpos+causal"] and trained.names_of("rove") == [
        "rove(rope)"
    ]
    assert {"rope", "rope(fraction=0.5)"} < {*trained.names_of("rope")}


# --- the table in a browser -----------------------------------------------------------------------


def page_with_table(chromium, folder, section, text):
    """A page whose section has this Markdown and the script of tables, and the script's errors."""
    render = pytest.importorskip("markdown_it").MarkdownIt().enable("table").render
    script = (DOCS / "static/table.js").as_uri()
    file = folder / "page.html"
    file.write_text(
        f'<section id="{section}">{render(text)}</section><script src="{script}"></script>'
    )
    page, errors = chromium.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    return page, errors


@pytest.mark.browser
def test_the_table_is_filtered_and_sorted(chromium, tmp_path):
    text = (DOCS / "catalogue.md").read_text("utf-8")
    page, errors = page_with_table(chromium, tmp_path, "all-position-encodings", text)
    header = page.locator("th").all_inner_texts()
    cells = lambda name: page.locator(
        f"tbody tr:visible td:nth-child({header.index(name) + 1})"
    ).all_inner_texts()
    assert page.locator("output").inner_text() == f"{len(ROWS)} of {len(ROWS)} rows"
    family = page.get_by_role("combobox", name="family")
    family.select_option("rotary")
    assert set(cells("family")) == {"rotary"} and cells("encoding")[0] == "rope"
    page.get_by_label("search").fill("onnx causal")
    assert cells("encoding") == ["xpos+causal"]
    page.get_by_label("search").fill("")
    family.select_option("")
    for name in ("time", "parameters"):
        for reverse in (False, True):
            page.get_by_role("button", name=name, exact=True).click()
            numbers = [float(text.replace(",", "")) for text in cells(name)]
            assert len(numbers) == len(ROWS) and numbers == sorted(
                numbers, reverse=reverse
            )
    # Hidden columns are left out until they are chosen, and those that are shown can be hidden.
    shown = page.locator("th:visible")
    assert "export" in header and "export" not in shown.all_inner_texts()
    page.locator(".table-columns summary").click()
    page.get_by_role("checkbox", name="export").check()
    page.get_by_role("checkbox", name="time").uncheck()
    names = shown.all_inner_texts()
    assert names[-1] == "export" and "time" not in names
    assert (
        page.locator(".table-columns summary").inner_text()
        == f"Columns: 6 of {len(header)}"
    )
    assert not errors


@pytest.mark.browser
def test_model_types_are_filtered(chromium, tmp_path):
    text = (
        (DOCS / "huggingface.md").read_text("utf-8").partition("## All model types")[2]
    )
    page, errors = page_with_table(chromium, tmp_path, "all-model-types", text)
    page.get_by_label("search").fill("gpt_oss")
    names = page.locator("tbody tr:visible td:nth-child(1)").all_inner_texts()
    assert names == ["gpt_oss"]
    page.get_by_label("search").fill("")
    page.get_by_role("combobox", name="result").select_option("refused")
    results = page.locator("tbody tr:visible td:nth-child(2)").all_inner_texts()
    assert set(results) == {"refused"} and len(results) == 107
    assert page.locator("details").count() == 0 and not errors
