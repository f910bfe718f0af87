"""Violations of properties against scores, over runs: the article's heat map."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import to_path
from pe_jax.reports.property_report.identical_words import probe
from pe_jax.reports.property_report.measures import columns, measure
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.training.metrics_writer import read_metrics


def correlation(subjects: list[Subject], settings: Settings) -> Section | None:
    """Pearson's and Spearman's correlations of the violations of Ā with the runs' scores.

    Scores are the last held-out ones of each run, or those of the CSV file `config.scores`: a
    header, then a row for each run that begins with its name; more is better.

    Raises:
      ValueError: for a CSV file that lacks runs, or has a cell that is not a number.
    """
    runs = [subject for subject in subjects if subject.folder]
    if len(runs) < properties.MINIMUM_RUNS:
        return None
    config = settings.config
    if config.scores:
        scores = _from_csv(to_path(config.scores), [r.name for r in runs])
    else:
        scores = _from_metrics([run.folder for run in runs if run.folder])
    names = columns(settings.windows)
    measured = [measure(probe(run, settings, "logits").mean(0), settings.windows) for run in runs]
    shared = [name for name in names if all(name in one for one in measured)]
    violations = {names[name]: [one[name] for one in measured] for name in shared}
    found = properties.correlate(violations, scores)
    text = lambda value, form: "–" if value is None else format(value, form)
    rows = [
        [one.violation, one.score, str(one.n),
         text(one.pearson, "+.2f"), text(one.pearson_p, ".3f"),
         text(one.spearman, "+.2f"), text(one.spearman_p, ".3f")]
        for one in found
    ]  # fmt: skip
    lines = [
        "Over the runs, violations by the logits of identical words against scores. More is",
        "better: below 0, more violation goes with worse scores. p-values are two-sided, not",
        f"corrected for the {len(found)} pairs. A dash: one of the two is constant.",
        "",
        *table(["violation", "score", "n", "Pearson", "p", "Spearman", "p"], rows),
    ]
    numbers = {
        "runs": [run.name for run in runs],
        "violations": violations,
        "scores": scores,
        "correlations": [one._asdict() for one in found],
    }
    title = f"Violations against scores over {len(runs)} runs"
    paths = [
        heat_map(kind, found, settings.figure(f"correlation_{kind}"), title, config.vector)
        for kind in ("pearson", "spearman")
    ]
    return Section("Properties against scores", numbers, lines, paths)


def heat_map(
    kind: Literal["pearson", "spearman"],
    found: Sequence[properties.Correlation],
    path: Path,
    title: str,
    vector: str = "",
) -> Path:
    """Draws the correlations of one kind, every violation by every score; returns `path`."""
    violations = list(dict.fromkeys(one.violation for one in found))
    scores = list(dict.fromkeys(one.score for one in found))

    def grid(field: str) -> np.ndarray:
        values = [getattr(one, field) for one in found]
        filled = np.array([np.nan if value is None else value for value in values])
        return filled.reshape(len(violations), len(scores))

    return figures.correlation_map(
        figures.CorrelationTable(
            grid(kind),
            grid(f"{kind}_p"),
            violations,
            [name.replace(" ", "\n") for name in scores],
        ),
        path,
        title=f"{title} ({kind.capitalize()})",
        label="correlation; * p < 0.05",
        vector=vector,
    )


def _from_metrics(folders: list[Path]) -> dict[str, list[float]]:
    """The last held-out scores of each run; a loss as its negative, so that more is better."""
    rows = []
    for folder in folders:
        last: dict[str, float] = {}
        for line in read_metrics(folder):
            last |= {k: v for k, v in line.items() if k.startswith("held_out/")}
        rows.append(
            {
                "masked-LM log-likelihood": -last.get("held_out/masked_lm_loss", np.nan),
                "masked-LM accuracy": last.get("held_out/masked_lm_accuracy", np.nan),
                "next-sentence accuracy": last.get("held_out/next_sentence_accuracy", np.nan),
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _from_csv(path: Path, runs: list[str]) -> dict[str, list[float]]:
    """The scores of `runs`, in their order."""
    if not path.is_file():
        raise ValueError(f"No table of scores at {path} (config.scores).")
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    by_run = {row[0]: row[1:] for row in rows if row}
    missing = [run for run in runs if run not in by_run]
    if missing:
        raise ValueError(
            f"{path} has no scores of {', '.join(missing)}; its rows are {', '.join(by_run)}."
        )
    try:
        return {
            name: [float(by_run[run][i]) if by_run[run][i] else np.nan for run in runs]
            for i, name in enumerate(header[1:])
        }
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} has a cell that is not a number: {error}.") from None
