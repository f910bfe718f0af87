"""The explorer: its numbers, its page, and the page in a browser."""

import dataclasses
import json
import re
import shutil
import sys

import numpy as np
import pytest
import write_explorer
from helpers import tiny_run, tiny_subject
from helpers.commands import call

from pe_jax import encodings, properties
from pe_jax.trainer.reports import explorer, explorer_page

COMMAND = "pe_jax/trainer/commands/explore.py"
OUTDATED = "docs/explorer.json is out of date: python tools/write_explorer.py"
SIZES = {"hidden_size": 16, "head_size": 8, "num_heads": 2, "max_length": 32}


def entry(title, name="", **options):
    picture = properties.picture(encodings.from_name(title, **SIZES), lengths=[12])
    picture = explorer_page.without_repetition(picture)
    return explorer_page.Entry(
        name=name or title, options=options, title=title, note="", picture=picture
    )


@pytest.fixture(scope="module")
def entries():
    return [
        entry("rope", base=10000.0),
        entry("rope(base=10)", "rope", base=10.0),
        entry("alibi"),
        entry("learned_absolute+causal"),
    ]


def test_layers_of_runs(monkeypatch):
    """On lengths that they can read; by logits, whose parts the metrics tell apart."""
    monkeypatch.setattr(explorer, "LENGTHS", (8, 12))
    found = {}
    for position in ("alibi", "learned_absolute+rope"):
        subject = dataclasses.replace(tiny_subject.subject(position), step=1000)
        found[position] = layers = explorer.layers_of_run(subject)
        assert [each["options"] for each in layers] == [{"layer": 0}, {"layer": 1}]
        assert (
            layers[1]["title"] == f"{position}, layer 1"
            and "step 1,000" in layers[1]["note"]
        )
    biases, table = (layers[0]["picture"] for layers in found.values())
    assert biases["properties"].keys() == {"8", "12"} and table[
        "properties"
    ].keys() == {"8"}
    assert (
        biases["properties"]["12"]["translation_invariance"] == 0
        and biases["heat"] is None
    )
    assert (
        table["properties"]["8"]["translation_invariance"] > 0.01
        and table["heat"] is not None
    )
    assert biases["psi"] is None and table["psi"][0] == 1


def test_an_encoding_of_few_positions():
    found = explorer.untrained("learned_2d(height=4, width=4)")
    assert found["picture"]["properties"].keys() == {"16"}


def test_heat_maps_of_offsets_alone_are_left_out(entries):
    assert [each["picture"]["heat"] is None for each in entries] == [
        True,
        True,
        True,
        False,
    ]


def test_the_page_holds_its_numbers_and_library(entries):
    named = [{**entries[0], "note": "</script><!--<script>"}]
    text = explorer_page.page(named, title="<b>", about="a & b", plotly="var Plotly;")
    assert "<title>&lt;b&gt;</title>" in text and "<p>a &amp; b</p>" in text
    assert "<script>var Plotly;</script>" in text and "{{" not in text
    data = re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.S)[1]
    assert json.loads(data) == named
    assert not re.search(r'(src|href)="(?!data:,)', text)  # One file.
    beside = explorer_page.page(named, title="", about="")
    assert re.findall(r'src="([^"]*)"', beside) == ["plotly.min.js"]


def test_numbers_of_the_site_are_up_to_date():
    stored = {each["title"]: each for each in write_explorer.read()}
    chosen = list(write_explorer.choices())
    assert list(stored) == [title for title, *_ in chosen], OUTDATED
    for title, each in stored.items():
        assert each["note"] == explorer.formulas(explorer.base_size(title)), OUTDATED
    assert write_explorer.FILE.stat().st_size < 1e6
    for title in ("rope(base=500)", "learned_absolute"):
        expected = properties.picture(explorer.base_size(title), lengths=[64])
        found = stored[title]["picture"]
        assert found["by"] == expected["by"] and bool(found["psi"]) == bool(
            expected["psi"]
        ), OUTDATED
        for get in (
            lambda numbers: numbers["psi"] or 0,
            lambda numbers: numbers["curve"]["mean"],
            lambda numbers: numbers["curve"]["spread"],
        ):
            np.testing.assert_allclose(
                get(found), get(expected), atol=2e-3, err_msg=OUTDATED
            )


def test_the_command(tmp_path, monkeypatch):
    config = tiny_run.config(tmp_path, **{"model.position": "learned_absolute"})
    tiny_run.save_untrained(config, tmp_path / "a/run")
    for copy in ("a/other", "b/run"):
        shutil.copytree(tmp_path / "a/run", tmp_path / copy)
    out = tmp_path / "page.html"
    code, printed, err = call(COMMAND, f"--runs={tmp_path}/[ab]/*", f"--out={out}")
    assert code == 0 and f"Wrote {out}" in printed, err
    text = out.read_text("utf-8")
    entries = json.loads(
        re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.S)[1]
    )
    names = [
        "other",
        f"{tmp_path}/a/run",
        f"{tmp_path}/b/run",
    ]  # Folders of one name by path.
    assert [each["name"] for each in entries] == names
    found = entries[0]
    assert found["options"] == {"layer": 0}
    assert found["picture"]["properties"].keys() == {"48"}  # Rows of its table.
    assert found["picture"]["properties"]["48"]["translation_invariance"] > 0.5
    for arguments, says in [
        ([f"--out={out}"], "Give --runs='RUNS/*'"),
        (["--encodings=,", f"--out={out}"], "Give --runs='RUNS/*'"),
        ([f"--runs={tmp_path}/a/r*"], "and --out=PAGE.html"),
        ([f"--runs={tmp_path}/x*", f"--out={out}"], "No runs match"),
        (
            ["--encodings=alibi,ropee", f"--out={out}"],
            "error: Cannot read the position encoding: 'ropee' is unknown",
        ),
    ]:
        code, _, err = call(COMMAND, *arguments)
        assert code == 1 and says in err and "Measuring" not in err, err
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    code, _, err = call(COMMAND, "--encodings=rope", f"--out={out}")
    assert code == 1 and "pip install '.[explore]'" in err


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(chromium, entries, tmp_path, width):
    file, errors = tmp_path / "page.html", []
    plotly = explorer_page.plotly_source()
    file.write_text(
        explorer_page.page(entries, title="T", about="", plotly=plotly), "utf-8"
    )
    page = chromium.new_page(viewport={"width": width, "height": 844})
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(120_000)  # Milliseconds, on a busy machine.
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".heat .heatmaplayer image").count() == 4
    drawn = lambda: {
        each: page.locator(each).inner_html() for each in ("#heat-0", "#curve", "#psi")
    }
    before = drawn()
    assert page.locator("#numbers th[colspan]").all_inner_texts() == [
        "rope", "alibi", "learned_absolute+causal", "rope(base=10)"
    ]  # fmt: skip
    page.locator("#slot-0 .options select").select_option(label="10")
    after = drawn()
    assert all(before[each] != after[each] for each in before)
    page.locator("#slot-3 .options select").select_option(label="10000")
    page.locator("#slot-1 .name select").select_option(label="(nothing)")
    shown = ["rope(base=10)", "learned_absolute+causal", "rope"]
    assert page.locator("#numbers th[colspan]").all_inner_texts() == shown
    page.reload()  # The address keeps the choice.
    assert page.locator("#numbers th[colspan]").all_inner_texts() == shown
    assert page.locator(".heat .heatmaplayer image").count() == 3
    assert "alibi" not in page.locator("#without").inner_text()
    assert page.locator("#heat-3").is_hidden()  # Nothing is chosen there.
    # No address of the page: it shows the first ones. A reload there fails in some browsers.
    page.goto("about:blank")
    page.goto(f"{file.as_uri()}#100%")
    assert page.locator(".heat .heatmaplayer image").count() == 4
    assert not errors
