"""The paper's tables 2 and 3, made from finished fine-tuning runs."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pe_jax.common import markdown
from pe_jax.common.errors import did_you_mean
from pe_jax.common.files import Json, write_text
from pe_jax.encodings.parser import PAPER, without_options
from pe_jax.trainer.configs.tables import TablesConfig
from pe_jax.trainer.reports import finetuning_results, table_formats
from pe_jax.trainer.reports.finetuning_results import GLUE, Results, metrics
from pe_jax.trainer.reports.table_formats import TITLES
from pe_jax.trainer.reports.tables import write_report

# The paper's mean excludes WNLI: its development set contradicts its training set.
IN_MEAN: tuple[str, ...] = tuple(name for name in GLUE if name != "glue/wnli")


def write_tables(folders: list[Path], config: TablesConfig, out: Path) -> str:
    """Write `tables.json` and `tables.md` of both tables to `out`, and those with a run as `.md`,
    `.csv` and `.tex`; return the Markdown.

    Raises:
      ValueError: if no run has finished, results are damaged or cannot be pooled, or no run has the
        baseline.
    """
    finished = []
    unfinished = []
    for folder in folders:
        results = finetuning_results.read(folder)
        if results is None:
            unfinished.append(str(folder))
        else:
            finished.append(results)
    if not finished:
        raise ValueError(
            f"None of the {len(folders)} runs has finished: no results.json in "
            f"{', '.join(unfinished) or 'any folder'}. Give --runs='RUNS/*' of fine-tuning runs."
        )
    tables = build_all(finetuning_results.pool(finished), config)
    pages = []
    for name, table in tables.items():
        text = table_formats.to_markdown(name, table, config.p_value)
        pages.append(text)
        write_text(out / f"{name}.md", text)
        write_text(out / f"{name}.csv", table_formats.to_csv(table))
        latex = table_formats.to_latex(name, table, config.p_value)
        write_text(out / f"{name}.tex", latex)
    facts = {
        "baseline": config.baseline,
        "p_value": config.p_value,
        "unfinished": unfinished,
    }
    if unfinished:
        names = markdown.text(", ".join(unfinished))
        pages.append(f"Not finished, left out (no results.json): {names}\n")
    return write_report(out, "tables", facts | tables, "\n".join(pages))


def welch(scores: Sequence[float], baseline: Sequence[float]) -> Json | None:
    """Compare scores with a baseline of possibly different variance by Welch's two-sided t-test.

    Returns:
      "difference", "t", "df", "p", and "interval", 95 % confidence bounds of the difference. All
      but the difference are None if neither side varies over its seeds. None instead of a dict
      below two seeds.
    """
    from scipy import stats  # As long to import as all of JAX, and only needed here.

    if min(len(scores), len(baseline)) < 2:
        return None
    test: Json = dict.fromkeys(("difference", "t", "df", "p", "interval"))
    test["difference"] = float(np.mean(scores) - np.mean(baseline))
    if np.ptp(scores) == np.ptp(baseline) == 0:
        return test
    with warnings.catch_warnings(action="ignore"):  # One side may be constant.
        result = stats.ttest_ind(scores, baseline, equal_var=False)
    test["t"] = float(result.statistic)
    test["df"] = float(result.df)
    test["p"] = float(result.pvalue)
    test["interval"] = tuple(map(float, result.confidence_interval(0.95)))
    return test


def summarize(seeds: Sequence[int], scores: Sequence[float]) -> Json:
    """Return a cell of a table, scores in points.

    It is the "mean" over "n" seeds, its sample standard deviation "std" (None for one seed), the
    "seeds" and "scores", and `welch` as "test" where there is a baseline.
    """
    std = None
    if len(seeds) > 1:
        # The rounding of the mean would give equal values some 1e-15.
        std = float(np.std(scores, ddof=1)) if np.ptp(scores) else 0.0
    return {
        "mean": float(np.mean(scores)),
        "std": std,
        "n": len(seeds),
        "seeds": list(seeds),
        "scores": list(scores),
        "test": None,
    }


def mean_over_tasks(cells: Sequence[Json | None]) -> Json | None:
    """Return each seed's mean over tasks, whose spread is thus over seeds, as in the paper; None if
    a task is missing or has other seeds."""
    present = [cell for cell in cells if cell]
    if not present or len(present) < len(cells):
        return None
    seeds = present[0]["seeds"]
    if any(cell["seeds"] != seeds for cell in present):
        return None
    means = np.mean([cell["scores"] for cell in present], axis=0)
    return summarize(seeds, means.tolist())


def build_all(runs: Sequence[Results], config: TablesConfig) -> dict[str, Json]:
    """Return the tables that have a run, of runs that are pooled over seeds, as in `tables.json`:
    "columns" (key -> heading), "rows" (encoding -> key -> cell or None) and "notes".

    Raises:
      ValueError: if no run has the baseline, and the paper does not know it either.
    """
    positions = {run.position: None for run in runs} | dict.fromkeys(PAPER)
    if config.baseline not in positions:
        raise ValueError(
            f"No run has config.baseline={config.baseline!r}."
            f"{did_you_mean(config.baseline, positions)}"
        )
    tables = {}
    for name in TITLES:
        chosen = [run for run in runs if run.table == name]
        if chosen:
            tables[name] = _build(name, chosen, config)
    return tables


# Heading -> encoding -> cell.
_Columns = dict[str, dict[str, Json | None]]


def _build(name: str, runs: Sequence[Results], config: TablesConfig) -> Json:
    every_sets = sorted({run.sets for run in runs}, key=_place)
    marks: dict[str, str] = {}  # Another set that runs were trained on -> its mark.
    headings: dict[str, str] = {}
    columns: _Columns = {}
    for sets in every_sets:
        dataset, origin = sets
        prefix = mark = ""
        if origin != dataset:
            letter = chr(ord("a") + len(marks))
            mark = marks.setdefault(origin, f" [{letter}]")
            prefix = f"{origin} -> "
        for metric, label in metrics(dataset):
            key = f"{prefix}{dataset} {metric}"
            headings[key] = f"{label}{mark}"
            columns[key] = {}
            for run in runs:
                if run.sets == sets:
                    seeds, scores = zip(*sorted(run.scores[metric].items()))
                    columns[key][run.position] = summarize(seeds, scores)
    trained = {run.position for run in runs}
    if name == "glue":
        means = _means(columns, trained)
        columns |= means
        headings |= {label: label for label in means}
    for cells in columns.values():
        base = cells.get(config.baseline)
        for cell in cells.values():
            if cell and base and cell is not base:
                cell["test"] = welch(cell["scores"], base["scores"])
    rows = {}
    for position in _in_order(trained, config.all_rows):
        rows[position] = {key: cells.get(position) for key, cells in columns.items()}
    notes = _notes(name, rows, runs, config)
    for origin, mark in marks.items():
        notes.append(
            f"{mark.strip()} Trained on {origin}: not comparable with published results."
        )
    return {
        "columns": headings,
        "rows": rows,
        "notes": [*notes, *_warnings(runs, every_sets)],
    }


def _place(sets: tuple[str, str]) -> tuple[bool, int, str, str]:
    """Sort key of columns: the paper's first, in its order; then those trained on another set."""
    dataset, trained_on = sets
    known = [*GLUE, *finetuning_results.SQUAD]
    place = known.index(dataset) if dataset in known else len(known)
    return (trained_on != dataset, place, dataset, trained_on)


def _in_order(positions: set[str], all_rows: bool) -> list[str]:
    """Return the paper's order, then the alphabet's; `all_rows` adds those without a run."""
    names = {position: without_options(position) for position in positions}
    if all_rows:
        names |= {name: name for name in PAPER if name not in names.values()}
    places = {name: place for place, name in enumerate(PAPER)}
    return sorted(names, key=lambda name: (places.get(names[name], len(places)), name))


def _means(columns: _Columns, positions: set[str]) -> _Columns:
    """Return columns of means over tasks: of all eight, and of those that every row has."""
    by_task = {}
    for task in IN_MEAN:
        _, metric = GLUE[task]
        by_task[task] = columns.get(f"{task} {metric}", {})
    tasks_of_mean = {}
    if any(all(name in cells for cells in by_task.values()) for name in positions):
        tasks_of_mean[f"mean of {len(IN_MEAN)}"] = IN_MEAN
    common = tuple(task for task in IN_MEAN if positions <= by_task[task].keys())
    if 1 < len(common) < len(IN_MEAN):
        names = ", ".join(task.removeprefix("glue/") for task in common)
        tasks_of_mean[f"mean of {len(common)} ({names})"] = common
    means: _Columns = {}
    for label, tasks in tasks_of_mean.items():
        means[label] = {}
        for position in positions:
            cells = [by_task[task].get(position) for task in tasks]
            means[label][position] = mean_over_tasks(cells)
    return means


def _notes(
    name: str, rows: Json, runs: Sequence[Results], config: TablesConfig
) -> list[str]:
    """Return sentences on the numbers, on the tasks, and on the tests of a table."""
    selected = {run.settings["select"] for run in runs}
    which = ""
    if len(selected) == 1:
        which = f" {finetuning_results.SELECTED_STEP[selected.pop()]}"
    cells = [cell for row in rows.values() for cell in row.values() if cell]
    usual = table_formats.usual_count(rows)
    shown = "one seed each"
    if any(cell["n"] > 1 for cell in cells):
        shown = f"mean ± sample standard deviation over {usual} seed{'s' * (usual > 1)}"
        if any(cell["n"] != usual for cell in cells):
            shown += " where no n is given"
    notes = [
        f"Scores{which} in points: {shown}. Bold: the best mean of a column. –: no score."
    ]
    if name == "glue":
        notes.append(
            "mcc is Matthews' correlation and spear. Spearman's, times 100; MNLI-mm is the "
            "mismatched set. Means over tasks exclude WNLI; their ± is over seeds, of each "
            "seed's mean, and they are missing where a task is, or has other seeds."
        )
    tested = sum(table_formats.p_value_of(cell) is not None for cell in cells)
    if not any(rows.get(config.baseline, {}).values()):
        test = (
            f"Nothing is tested: there is no run of {config.baseline} to compare with."
        )
    elif not tested:
        test = "Nothing is tested: a test needs two seeds or more on both sides, and a spread."
    else:
        test = (
            f"† better than {config.baseline}, ‡ worse: Welch's "
            f"two-sided t-test, p < {config.p_value:g}, where both have two seeds or more; not "
            f"corrected for the number of comparisons ({tested}). Seeds are of fine-tuning alone: "
            "the test says nothing about another pretraining or distillation of an encoding."
        )
    return [*notes, test]


def _warnings(
    runs: Sequence[Results], every_sets: Sequence[tuple[str, str]]
) -> list[str]:
    """Return settings in which rows of a column differ, and encodings of different weights."""
    labels: dict[str, list[str]] = defaultdict(list)  # Difference -> its columns.
    for sets in every_sets:
        in_column = [run for run in runs if run.sets == sets]
        for key, values in finetuning_results.different_settings(in_column).items():
            positions: dict[str, list[str]] = defaultdict(list)
            for run, value in zip(in_column, values, strict=True):
                positions[json.dumps(value)].append(run.position)
            groups = []
            for value, names in positions.items():
                groups.append(f"{value} ({', '.join(names)})")
            difference = f"{key} is {'; '.join(groups)}"
            labels[difference] += [label for _, label in metrics(sets[0])]
    lines = []
    for difference, names in labels.items():
        columns = ", ".join(names)
        lines.append(f"Warning: rows of {columns} differ in settings: {difference}.")
    inits: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        inits[run.position].add(run.init)
    for position, weights in inits.items():
        if len(weights) > 1:
            names = sorted(weights)
            lines.append(
                f"Warning: runs of {position} start from different weights: {', '.join(names)}."
            )
    return lines
