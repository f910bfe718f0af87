"""Pages of reports as HTML."""

import base64
import html.parser
import re
from pathlib import Path

from pe_jax.reports import (
    comparison,
    distillation_report,
    finetuning_report,
    pretraining_report,
)
from pe_jax.reports.pages import _GLOSSARY, terms_in, write_page
from pe_jax.reports.tables import number_table


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
    """Numbers are aligned with their headings, figures are inside, other files stay links."""
    (tmp_path / "a b.png").write_bytes(b"a figure")
    rows = [["rope|<i>", 0.5, -1.25], ["none", None, 1e6]]
    lines = number_table(["encoding", ("TI", ".3f"), ("loss", "+,.2f")], rows)
    text = "\n".join(
        ["# A & B", "", *lines, "", "![of it](<a b.png>)", "", "![gone](gone.png) <script>", ""]
    )
    assert write_page(tmp_path / "report.md", text) == text
    assert (tmp_path / "report.md").read_text() == text
    page = Page((tmp_path / "report.html").read_text())
    figure = base64.b64encode(b"a figure").decode()
    assert page.images == [f"data:image/png;base64,{figure}", "gone.png"]
    assert page.texts["title", None] == page.texts["h1", None] == ["A & B"]
    assert page.texts["th", "number"] == ["TI", "loss"]
    assert page.texts["td", "number"] == ["0.500", "-1.25", "–", "+1,000,000.00"]
    assert page.texts["td", None] == ["rope|<i>", "none"]
    assert [kind for tag, kind in page.tags if kind == "wide"] == ["wide"] * 2
    assert not {"script", "i", "link"} & {tag for tag, _ in page.tags}
    assert page.texts["dt", None] == ["TI"]


def test_the_glossary_has_the_terms_of_a_page():
    page = "| mono. 5 | R², last | ω |\n\nTitle, monotone: MLM accuracy of rows; Σ‖h′‖²"
    assert [*terms_in(page)] == ["mono.", "R²", "ω"]
    for term, (pattern, _) in _GLOSSARY.items():
        example = {"loss, nats": "nats", "ψ(m)": "ψ"}.get(term, term)
        assert term in terms_in(f"of {example}, and"), (term, pattern)


def test_the_glossary_of_the_measures_is_that_of_reports():
    page = (Path(__file__).parents[2] / "docs/measures/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S.*?) \| (.*) \|$", page.split("## Terms")[1].split("\n## ")[0], re.M)
    assert len(rows) > 10
    assert [(term, _GLOSSARY[term][1]) for term, _ in rows[1:]] == rows[1:]


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

    scores = dict(masked_lm_loss=5.0, unigram_loss=5.5, next_sentence_accuracy=0.53, pairs=1000)
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
        {"position": name, "loss_difference": difference, "loss_difference_standard_error": 0.1}
        for name, difference in (("none", 0.0), ("rope", -0.3), ("alibi", 0.2))
    ]
    line = "No difference from none seen in the loss: alibi."
    assert comparison._undecided(rows, "none") == line
    assert comparison._undecided(rows[:2], "none") == ""
