"""Tables 2 and 3 from the folders of runs, and the files that they are written to."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ml_collections import ConfigDict

from pe_jax import encodings
from pe_jax.errors import did_you_mean
from pe_jax.files import Json, write_text
from pe_jax.reports.paper_tables import formats, notes
from pe_jax.reports.paper_tables.cells import Cell, mean_over_tasks, welch
from pe_jax.reports.paper_tables.columns import IN_MEAN, Column, sort_key
from pe_jax.reports.paper_tables.results import Results, pool, read
from pe_jax.reports.paper_tables.table import TITLES, Table


def write_tables(folders: list[Path], config: ConfigDict, out: Path) -> str:
    """Writes both tables to `out`, as JSON, Markdown, CSV and LaTeX; returns the Markdown.

    `tables.json` and `tables.md` hold both; `glue.*` and `squad.*` one each, if it has a run.

    Args:
      config: of `configs/tables.py`, checked (`reports.report_schemas`).

    Raises:
      ValueError: if no run has finished, results are damaged or cannot be pooled, or no run has the
        baseline.
    """
    found = {folder: read(folder) for folder in folders}
    unfinished = [str(folder) for folder, run in found.items() if run is None]
    runs = list(pool(run for run in found.values() if run).values())
    if not runs:
        raise ValueError(
            f"None of {len(folders)} runs has finished: no results.json in "
            f"{', '.join(unfinished) or 'any folder'}. Give --runs='RUNS/*' of fine-tuning runs."
        )
    tables = build_all(runs, config)
    pages = {table.name: formats.markdown(table) for table in tables}
    for table in tables:
        write_text(out / f"{table.name}.md", pages[table.name])
        write_text(out / f"{table.name}.csv", formats.csv_text(table))
        write_text(out / f"{table.name}.tex", formats.latex(table))
    numbers = {
        "baseline": config.baseline,
        "p_value": config.p_value,
        "unfinished": unfinished,
        **{table.name: _numbers(table) for table in tables},
    }
    write_text(out / "tables.json", json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    if unfinished:
        pages["unfinished"] = f"Not finished, left out (no results.json): {', '.join(unfinished)}\n"
    page = "\n".join(pages.values())
    write_text(out / "tables.md", page)
    return page


def build_all(runs: list[Results], config: ConfigDict) -> list[Table]:
    """The tables that have a run.

    Raises:
      ValueError: if no run has the baseline.
    """
    known = {run.position: None for run in runs} | dict.fromkeys(encodings.PAPER)
    if config.baseline not in known:
        raise ValueError(
            f"No run has config.baseline={config.baseline!r}.{did_you_mean(config.baseline, known)}"
        )
    tables = []
    for name in TITLES:
        mine = [run for run in runs if run.columns()[0].table == name]
        if mine:
            tables.append(build(name, mine, config))
    return tables


def tables_page(runs: list[Results], config: ConfigDict) -> str:
    """Both tables as Markdown, without writing files."""
    return "\n".join(map(formats.markdown, build_all(runs, config)))


def build(name: str, runs: list[Results], config: ConfigDict) -> Table:
    """The table `name`, `"glue"` or `"squad"`, of runs that are pooled over seeds."""
    columns = sorted({column for run in runs for column in run.columns()}, key=sort_key)
    positions = {run.position for run in runs}
    order = _in_order(positions, config.all_rows)
    by_column: dict[Column, dict[str, Cell]] = {column: {} for column in columns}
    for run in runs:
        for column in run.columns():
            by_column[column][run.position] = Cell(run.seeds, run.scores[column.metric])
    marks = notes.origins(columns)
    keys = [column.key for column in columns]
    labels = [f"{column.label}{marks.get(column.trained_on, '')}" for column in columns]
    grid = [[cells.get(position) for position in order] for cells in by_column.values()]
    if name == "glue":
        own = {column.dataset: cells for column, cells in by_column.items() if column.own}
        for label, tasks in _means(own, positions).items():
            keys, labels = [*keys, label], [*labels, label]
            cells = {p: mean_over_tasks([own.get(t, {}).get(p) for t in tasks]) for p in positions}
            grid.append([cells.get(position) for position in order])
    grid = [_compared(column, order, config.baseline) for column in grid]
    rows = dict(zip(order, map(list, zip(*grid))))
    # The number of seeds that most cells have; of equally frequent ones the larger.
    counts = Counter(run.n for row in rows.values() for run in row if run)
    usual = max(counts, key=lambda n: (counts[n], n))
    table = Table(name, keys, labels, rows, config.baseline, config.p_value, usual, [])
    return table._replace(notes=notes.under(table, runs, columns))


def _in_order(positions: set[str], all_rows: bool) -> list[str]:
    """The paper's order, whatever the options, then the alphabet's; `all_rows`: with those of the
    paper's encodings that are missing."""
    names = {position: encodings.without_options(position) for position in positions}
    if all_rows:
        names |= {one: one for one in encodings.PAPER if one not in names.values()}
    places = {name: place for place, name in enumerate(encodings.PAPER)}
    return sorted(names, key=lambda one: (places.get(names[one], len(places)), one))


def _means(own: dict[str, dict[str, Cell]], positions: set[str]) -> dict[str, tuple[str, ...]]:
    """Columns of means -> the sets they average: all eight, where a row has them, and those that
    every row has."""
    whole = any(all(one in own.get(task, {}) for task in IN_MEAN) for one in positions)
    means = {f"mean of {len(IN_MEAN)}": IN_MEAN} if whole else {}
    common = tuple(task for task in IN_MEAN if positions <= own.get(task, {}).keys())
    if 1 < len(common) < len(IN_MEAN):
        names = ", ".join(task.removeprefix("glue/") for task in common)
        means[f"mean of {len(common)} ({names})"] = common
    return means


def _compared(column: list[Cell | None], order: list[str], baseline: str) -> list[Cell | None]:
    """The cells of a column, tested against the baseline's."""
    base = column[order.index(baseline)] if baseline in order else None
    if base is None:
        return column
    return [
        cell and cell._replace(test=None if cell is base else welch(cell.scores, base.scores))
        for cell in column
    ]


def _numbers(table: Table) -> Json:
    return {
        "columns": dict(zip(table.keys, table.labels)),
        "rows": {
            position: {key: cell and cell.numbers() for key, cell in zip(table.keys, cells)}
            for position, cells in table.rows.items()
        },
        "notes": table.notes,
    }
