"""The page of a study: what was found, and the table of claims, from its results file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pe_jax.common.markdown import raw_table
from research.reproduction.claims import judge
from research.reproduction.effects import (
    ARTICLE,
    ONE_MODEL,
    OURS,
    PAPER,
    NotMeasured,
    Ranks,
    Verdict,
)
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import CLASSIFICATION, LOSS, Values, values
from research.reproduction.results_file import SQUAD_F1, Results
from research.reproduction.verdict_tables import number

PICTURE = "figures/summary.png"
TEMPLATE = "summary.md"  # Beside the page: its text, written by hand, with fields for its numbers.
_PLAIN = """\
# The paper's comparison, on a small scale

Scores, methods and figures are in the [appendix](./appendix.md).

## Claims

{claims}
"""
_DECIDED = ("reproduced", "contradicted")
_ORDER = (*_DECIDED, *(word + ONE_MODEL for word in _DECIDED), "equivalent", "mixed", "undecided",
          "not judged")  # fmt: skip
_ARMS = {SCRATCH: "scratch", REPLACED: "replaced"}


def summary(results: Results, out: Path) -> str:
    """Return the text of the page of a study.

    Args:
      results: the content of a results file (`research.reproduction.results_file`).
      out: the folder of the page, with its text in `summary.md`, if there is one. Fields of it are
        `{effect[2]}`, mean and interval of claim 2; `{mean[2]}`, `{outcome[2]}`;
        `{members[2][NAME]}`; `{f1[MODEL]}`, `{cola[MODEL]}`, `{loss[MODEL]}`, means over seeds;
        `{counts[SOURCE]}`, verdicts by source; `{spread[MEASURE]}`, the root mean square difference
        between two distillations; and `{claims}`, the tables.
    """
    every = values(results)
    verdicts = judge(
        every, list(dict.fromkeys(name.partition("/")[0] for name in results["runs"]))
    )
    template = out / TEMPLATE
    text = template.read_text(encoding="utf-8") if template.is_file() else _PLAIN
    scores = {"f1": SQUAD_F1, "cola": CLASSIFICATION}
    return text.format(
        effect=["", *map(_effect, verdicts)],
        mean=["", *(_mean(verdict.effect) for verdict in verdicts)],
        outcome=["", *(verdict.outcome for verdict in verdicts)],
        members=[{}, *({name: _mean(one.mean) for name, one in verdict.members.items()}
                       for verdict in verdicts)],
        counts={source: _counts(verdicts, source) for source in (PAPER, ARTICLE, OURS)},
        spread={name: f"{(2 * every.spreads[measure].variance) ** 0.5:.1f}"
                for name, measure in scores.items()},
        claims="\n".join(_claims(verdicts)),
        loss=_scores(every, SCRATCH, LOSS, 2),
        **{name: _scores(every, REPLACED, measure, 1) for name, measure in scores.items()},
    )  # fmt: skip


def _scores(every: Values, arm: str, measure: str, digits: int) -> dict[str, str]:
    return {
        model: f"{sum(column.values()) / len(column):.{digits}f}"
        for model in every.models(arm)
        if (column := every.by_seed(arm, model, measure))
    }


def _counts(verdicts: Sequence[Verdict], source: str) -> str:
    """Return the number of each outcome among the verdicts on claims of a source."""
    outcomes = [
        verdict.outcome.partition(" within")[0]
        for verdict in verdicts
        if verdict.claim.source == source
    ]
    counts = sorted(Counter(outcomes).items(), key=lambda item: _ORDER.index(item[0]))
    return ", ".join(f"{count} {outcome}" for outcome, count in counts)


def _claims(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a table of verdicts for each source of claims."""
    texts = [
        verdict.claim.text for verdict in verdicts
    ]  # One claim's arms follow each other.
    numbered = sorted(
        enumerate(verdicts, 1), key=lambda row: texts.index(row[1].claim.text)
    )
    lines = []
    for source, title in ((PAPER, "The paper's"), (OURS, "Ours")):
        rows = [
            [str(n), verdict.claim.text, _ARMS[verdict.claim.arm], _effect(verdict),
             _range(verdict), f"**{verdict.outcome}**"]
            for n, verdict in numbered if verdict.claim.source == source
        ]  # fmt: skip
        header = [
            "",
            title,
            "models",
            "mean (95 % interval)",
            "members, range",
            "verdict",
        ]
        lines += [*raw_table(header, rows), ""] if rows else []
    return [*lines, *_article(numbered)]


def _article(numbered: Sequence[tuple[int, Verdict]]) -> list[str]:
    """Return a table of the rank correlations of the article: a row for each violation."""
    cells: dict[str, dict[str, str]] = {}
    for n, verdict in numbered:
        if verdict.claim.source == ARTICLE and isinstance(verdict.claim.effect, Ranks):
            text, _, probe = verdict.claim.text.rstrip(")").partition(" (")
            column = f"{_ARMS[verdict.claim.arm]}, {probe}"
            outcome = (
                "" if verdict.outcome == "undecided" else f", **{verdict.outcome}**"
            )
            cells.setdefault(text, {})[column] = (
                f"{_mean(verdict.effect)} ({n}){outcome}"
            )
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    rows = [
        [text, *(row.get(column, "–") for column in columns)]
        for text, row in cells.items()
    ]
    return (
        raw_table(["The article's rank correlations (claim)", *columns], rows)
        if rows
        else []
    )


def _effect(verdict: Verdict) -> str:
    if verdict.effect is None:
        effect = verdict.claim.effect
        return effect.reason if isinstance(effect, NotMeasured) else "runs are missing"
    interval = (
        f" ({_mean(verdict.low)}, {_mean(verdict.high)})"
        if verdict.low is not None
        else ""
    )
    return _mean(verdict.effect) + interval


def _mean(value: float | None) -> str:
    if value is not None and abs(value) < 1:  # From 1 on, `number` alone rounds.
        value = round(value, 3)
    return number(value).replace("-", "−")


def _range(verdict: Verdict) -> str:
    means = [member.mean for member in verdict.members.values()]
    return f"{_mean(min(means))}, {_mean(max(means))}" if means else ""
