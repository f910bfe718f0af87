"""The notes under a table: what its marks mean, and warnings."""

from __future__ import annotations

import json
from collections import defaultdict

from pe_jax.reports.paper_tables.columns import Column
from pe_jax.reports.paper_tables.results import Results, differences
from pe_jax.reports.paper_tables.table import Table

_SELECTED = {"last": " of the last step", "best": " of each seed's best step"}


def origins(columns: list[Column]) -> dict[str, str]:
    """Training sets that are not the columns' own -> the mark of their columns: ` [a]`, ` [b]`."""
    foreign = dict.fromkeys(column.trained_on for column in columns if not column.own)
    return {name: f" [{chr(ord('a') + i)}]" for i, name in enumerate(foreign)}


def under(table: Table, runs: list[Results], columns: list[Column]) -> list[str]:
    """Sentences for the caption, then warnings, one a line."""
    lines = [_spread(table, runs), _tests(table)]
    if table.name == "glue":
        lines.insert(
            1,
            "mcc is Matthews' correlation and spear. Spearman's, times 100; MNLI-mm is the "
            "mismatched set. Means over tasks exclude WNLI; their ± is over seeds, of each "
            "seed's mean, and they are missing where a task is, or has other seeds.",
        )
    lines += [
        f"{mark.strip()} Trained on {name}: not comparable with published results."
        for name, mark in origins(columns).items()
    ]
    return [*lines, *_settings_apart(runs, columns), *_inits_apart(runs)]


def _spread(table: Table, runs: list[Results]) -> str:
    selected = {run.settings["select"] for run in runs}
    which = _SELECTED.get(selected.pop(), "") if len(selected) == 1 else ""
    cells = [cell for row in table.rows.values() for cell in row if cell]
    other = any(cell.n != table.usual for cell in cells)
    count = f"{table.usual} seed{'s' if table.usual > 1 else ''}{' where no n is given' * other}"
    shown = f"mean ± sample standard deviation over {count}"
    if all(cell.n == 1 for cell in cells):
        shown = "one seed each"
    return f"Scores{which} in points: {shown}. Bold: the best mean of a column. –: no score."


def _tests(table: Table) -> str:
    base = table.rows.get(table.baseline, [])
    if not any(base):
        return f"Nothing is tested: there is no run of {table.baseline} to compare with."
    tested = sum(cell.p is not None for row in table.rows.values() for cell in row if cell)
    if not tested:
        return "Nothing is tested: a test needs two seeds or more on both sides, and a spread."
    return (
        f"† significantly better than {table.baseline}, ‡ significantly worse: Welch's two-sided "
        f"t-test, p < {table.p_value:g}, where both have two seeds or more; not corrected for the "
        f"number of comparisons ({tested})."
    )


def _settings_apart(runs: list[Results], columns: list[Column]) -> list[str]:
    """Settings in which the rows of a column differ, columns with the same differences together."""
    warnings: dict[str, list[str]] = defaultdict(list)
    for column in columns:
        mine = [run for run in runs if column in run.columns()]
        for key, values in differences(mine).items():
            having: dict[str, list[str]] = defaultdict(list)
            for run, value in zip(mine, values):
                having[json.dumps(value)].append(run.position)
            each = "; ".join(f"{value} ({', '.join(who)})" for value, who in having.items())
            warnings[f"{key} is {each}"].append(column.label)
    return [
        f"Warning: rows of {', '.join(labels)} differ in settings: {what}."
        for what, labels in warnings.items()
    ]


def _inits_apart(runs: list[Results]) -> list[str]:
    """Encodings whose runs start from different weights: their rows mix several models."""
    inits: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        inits[run.position].add(run.init)
    return [
        f"Warning: runs of {position} start from different weights: {', '.join(sorted(names))}."
        for position, names in inits.items()
        if len(names) > 1
    ]
