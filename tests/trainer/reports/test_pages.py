"""Pages of reports as HTML."""

import base64
import html.parser
import re
from pathlib import Path

import pytest

from pe_jax.common import markdown
from pe_jax.trainer.reports import (
    comparison,
    distillation_report,
    finetuning_report,
    pretraining_report,
)
from pe_jax.trainer.reports.pages import _GLOSSARY, page, terms_in, to_html, write_page
from pe_jax.trainer.reports.tables import number_table


class Page(html.parser.HTMLParser):
    """Reads the tags with their classes, the sources of images, and the text of each tag."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.images, self.texts = [], [], {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs).get("class")))
        self.images += [value for name, value in attrs if name == "src"]

    def handle_data(self, data):
        if data.strip():
            self.texts.setdefault(self.tags[-1], []).append(data.strip())


def test_a_page_is_one_file(tmp_path):
    """Numbers are aligned with their headings, figures are inside; no file is loaded."""
    (tmp_path / "a b.png").write_bytes(b"a figure")
    rows = [["rope|<i>", 0.5, -1.25], ["none", None, 1e6]]
    lines = number_table(["encoding", ("TI", ".3f"), ("loss", "+,.2f")], rows)
    text = "\n".join(
        [
            "# A & B",
            "",
            *lines,
            "",
            "![of it](<a b.png>)",
            "",
            "![gone](gone.png) <script>",
            "",
        ]
    )
    assert write_page(tmp_path / "report.md", text) == text
    assert (tmp_path / "report.md").read_text() == text
    page = Page((tmp_path / "report.html").read_text())
    figure = base64.b64encode(b"a figure").decode()
    assert page.images == [f"data:image/png;base64,{figure}"]
    assert "gone" in page.texts["p", None][0]
    assert page.texts["title", None] == page.texts["h1", None] == ["A & B"]
    assert page.texts["th", "number"] == ["TI", "loss"]
    assert page.texts["td", "number"] == ["0.500", "-1.25", "–", "+1,000,000.00"]
    assert page.texts["td", None] == ["rope|<i>", "none"]
    assert [kind for tag, kind in page.tags if kind == "wide"] == ["wide"] * 2
    assert not {"script", "i", "link"} & {tag for tag, _ in page.tags}
    assert page.texts["dt", None] == ["TI"]


NAMES = [
    "run![a](%2Fetc%2Fhostname)", "run![a](../secret.png)", "run![a](..%2Fsecret.png)",
    "run![a](//evil.example/x.png)", "run<![a](https:&#47;&#47;evil.example&#47;x.png)",
    "![a](secret.png)", "![a][b]", "[b]: secret.png", "![a](data:image/svg+xml,<svg/>)",
    "run[click](javascript:alert(1))", "[x](https:&#47;&#47;evil)", "<https://evil.example>",
    "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<style>@import 'x'</style>",
    "<!-- comment", "</title><script>x</script>", "a](x", "\\![a\\](x)", "\\", "a\\|b", "|",
    "a|b|c", "run\n\n# Injected heading", "a\r\n- item", "---", "===", "# H", "> q", "- x", "1. x",
    "1) x", "    code", "```", "``a`b``", "`", "*a* _b_ **c** __d__", "a_b_c", "~~a~~", "$x$",
    "C#", "&amp;", "&lt;b&gt;", "&#x6a;", "{{body}}", "{{title}}", "\u001b[2J\u001b]0;title\u0007",
    "\u202eabc", "\u0000", "\u2028", "t5(buckets=32)+alibi", "learned_absolute", "50 %", "0.5",
    "–", "α ≤ β", "",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text(tmp_path, name):
    """In titles, cells, headings, prose, lists and descriptions of images: nothing is loaded or
    linked, and it reads as it is, but for escapes of what cannot be printed."""
    out = tmp_path / "report"
    out.mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (out / "figure.png").write_bytes(b"figure")
    expected = markdown.printable(name).strip()
    blocks = (
        number_table([name, "loss"], [[name, "1.0"], ["end", "2.0"]]),
        markdown.table([name, "loss"], [[name, "1.0"]]),
        markdown.text(name), f"Of {markdown.text(name)}.", [f"- {markdown.text(name)}"],
        markdown.image(name, "figure.png"),
    )  # fmt: skip
    text = write_page(out / "report.md", page(f"Run {name}", *blocks))
    html_text = (out / "report.html").read_text()
    read = Page(html_text)
    figure = base64.b64encode(b"figure").decode()
    assert read.images == [f"data:image/png;base64,{figure}"]
    inside = html_text.split("<body>")[1].split("<h2>Glossary")[0]
    tags = set(re.findall(r"<([a-z1-6]+)", inside))
    assert tags <= {
        "h1",
        "p",
        "ul",
        "li",
        "img",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    shown = [html.unescape(part) for part in re.findall(r">([^<>]*)<", inside)]
    spaces = " ".join(expected.split())
    assert shown.count(expected) + shown.count(spaces) >= 4 + (
        name != ""
    )  # Cells and a paragraph.
    assert f"Of {spaces}." in [" ".join(part.split()) for part in shown]
    title = re.search(r"<title>([^<]*)</title>", html_text)[1]
    assert html.unescape(title).split() == f"Run {expected}".split()
    assert html.unescape(re.search(r' alt="([^"]*)"', inside)[1]) == expected

    told = markdown.for_terminal(text)
    assert "\x1b" not in told and "figure.png" not in told
    assert f"# Run {expected}".split() == told.split("\n")[0].split()


@pytest.mark.parametrize(
    "source", ["../secret.png", "%2e%2e%2Fsecret.png", "..\\\\secret.png", "/etc/hostname",
               "link.png", "notes.txt", "folder/x.png", "file:///etc/hostname", "https://evil.example/x.png",
               "//evil.example/x.png", "data:image/png;base64,AAAA", "."],
)  # fmt: skip
def test_only_figures_of_the_report_are_embedded(tmp_path, source):
    """Also where a page has an image itself; the description is in its place."""
    out = tmp_path / "report"
    (out / "folder").mkdir(parents=True)
    for file in ("secret.png", "report/notes.txt", "report/folder/x.png"):
        (tmp_path / file).write_bytes(b"secret")
    (out / "link.png").symlink_to(tmp_path / "secret.png")
    page = to_html(f"# T\n\n![a *description*](<{source}>)\n", out)
    assert Page(page).images == [] and "c2VjcmV0" not in page  # "secret" in base64.
    assert "description" in page


def test_a_browser_loads_nothing_for_a_page(tmp_path):
    """Even if a page had an image or a script, its policy forbids to load them."""
    policy = re.search(
        r'Content-Security-Policy"\s+content="([^"]*)"', to_html("# T\n", tmp_path)
    )[1]
    assert "default-src 'none'" in policy and "img-src data:;" in policy
    assert "script-src" not in policy and "http" not in policy


def test_the_glossary_has_the_terms_of_a_page():
    page = "| mono. 5 | R², last | ω |\n\nTitle, monotone: MLM accuracy of rows; Σ‖h′‖²"
    assert [*terms_in(page)] == ["mono.", "R²", "ω"]
    for term, (pattern, _) in _GLOSSARY.items():
        example = {"loss, nats": "nats", "ψ(m)": "ψ"}.get(term, term)
        assert term in terms_in(f"of {example}, and"), (term, pattern)


def test_the_glossary_of_the_measures_is_that_of_reports():
    page = (Path(__file__).parents[3] / "docs/measures/README.md").read_text(
        encoding="utf-8"
    )
    rows = re.findall(
        r"^\| (\S.*?) \| (.*) \|$", page.split("## Terms")[1].split("\n## ")[0], re.M
    )
    assert len(rows) > 10
    assert [(term, _GLOSSARY[term][1]) for term, _ in rows[1:]] == rows[1:]


def test_a_comparison_says_what_its_seeds_allow():
    def rows(**losses):
        return [
            {"position": name, "seed": seed, "masked_lm_loss": loss}
            for name, values in losses.items()
            for seed, loss in enumerate(values)
        ]

    text = comparison._spread_over_seeds(rows(none=[5.0], rope=[4.0]))
    assert text.startswith("Each encoding has one seed.") and "`--config.seed`" in text
    # Variances 0.01 and 0.03, of 2 degrees of freedom each: 0.02; 2 √(0.02 · 2 / 3).
    values = {"none": [5.0, 5.1, 5.2], "rope": [4.0, 4.3, 4.3]}
    text = comparison._spread_over_seeds(rows(**values))
    assert "Seeds: none 3, rope 3." in text
    assert "deviation of 0.141, of 4 degrees of freedom. Means of 3 seeds each" in text
    assert "differ by about 0.231," in text
    text = comparison._spread_over_seeds(rows(**values, __t5__=[4.0]))
    assert r"rope 3, \_\_t5\_\_ 1." in text and "Means of 1 seed each" in text
    assert "differ by about 0.400," in text


def test_results_at_chance_say_so():
    numbers = dict(
        dataset="glue/cola", trained_on="glue/cola", position="rope", select="last", steps=[9, 9],
        seeds=[0, 1], scores={"f1": [60.0, 70.0], "matthews": [-1.0, 1.0]},
        baseline={"f1": 64.0, "matthews": 0.0, "other": 1.0},
    )  # fmt: skip
    line = "No better than the baseline: matthews.\n"
    assert line in finetuning_report._readable(numbers, [])
    numbers["baseline"] = {"matthews": -0.5}
    assert line not in finetuning_report._readable(numbers, [])

    scores = dict(
        masked_lm_loss=5.0, unigram_loss=5.5, next_sentence_accuracy=0.53, pairs=1000
    )
    scores["next_sentence_majority"] = 0.5
    assert pretraining_report._not_learned(scores) == ["next-sentence accuracy"]
    assert pretraining_report._not_learned({**scores, "pairs": 2000}) == []
    scores = dict(masked_lm_loss=5.0, unigram_loss=5.0)  # A run on packed rows.
    assert pretraining_report._not_learned(scores) == ["masked-LM loss"]

    layers = {"none": [0.5, 0.4], "before": [], "after": [0.9, 0.4]}
    numbers = dict(position="rope", step=9, teacher="T", r2={"64": layers}, order={})
    numbers["order"] = {key: {} for key in ("teacher", "before", "after")}
    line = "The last layer is no nearer to the teacher's than without positions."
    assert line in distillation_report._readable(numbers)
    layers["after"] = [0.1, 0.5]
    assert line not in distillation_report._readable(numbers)

    rows = [
        {
            "position": name,
            "loss_difference": difference,
            "loss_difference_standard_error": 0.1,
        }
        for name, difference in (("none", 0.0), ("rope", -0.3), ("alibi", 0.2))
    ]
    line = "No difference from none seen in the loss: alibi."
    assert comparison._undecided(rows, "none") == line
    assert comparison._undecided(rows[:2], "none") == ""
