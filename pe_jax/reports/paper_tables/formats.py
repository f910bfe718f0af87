"""A table as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import NamedTuple

from pe_jax.console import markdown as plain
from pe_jax.reports.paper_tables.cells import Cell
from pe_jax.reports.paper_tables.table import Table

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"${sign}$" for sign in "<>|"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "–": "--",
    }
)


class Printed(NamedTuple):
    """The parts of a cell's text; the last three may be empty."""

    mean: str
    bold: bool
    mark: str
    spread: str
    seeds: str


def markdown(table: Table) -> str:
    """A heading, the table with its columns lined up, and its notes."""
    bold = lambda text: f"**{text}**"
    rows = [
        [position, *(_joined(cell, bold) for cell in cells)]
        for position, cells in printed(table).items()
    ]
    lines = plain.table(["position encoding", *table.labels], rows)
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join([f"# {table.title}", "", *lines, *notes, ""])


def latex(table: Table) -> str:
    """A `table` environment; the document needs the package booktabs."""
    bold = lambda text: f"\\textbf{{{text}}}"
    row = lambda cells: " & ".join(cells) + r" \\"
    body = [
        row([escape(position), *(_joined(cell, bold, escape) for cell in cells)])
        for position, cells in printed(table).items()
    ]
    lines = [
        "% Needs \\usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{escape(' '.join([f'{table.title}.', *table.notes]))}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'c' * len(table.labels)}}}",
        r"\toprule",
        row(["position encoding", *map(escape, table.labels)]),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def csv_text(table: Table) -> str:
    """A row for each encoding; mean, std, n and p of each column, empty where there is none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = ("mean", "std", "n", "p")
    writer.writerow(["position", *(f"{key} {number}" for key in table.keys for number in numbers)])
    for position, cells in table.rows.items():
        row = [getattr(cell, number, None) for cell in cells for number in numbers]
        writer.writerow([position, *row])
    return file.getvalue()


def escape(text: str) -> str:
    """`text` as LaTeX prints it."""
    return text.translate(_LATEX)


def printed(table: Table) -> dict[str, list[Printed]]:
    """Encoding -> the text of its cells; those that print as the best of a column are bold."""
    columns = zip(*table.rows.values())
    rounded = lambda cell: f"{cell.mean:z.{table.decimals}f}"
    best = [max((float(rounded(c)) for c in column if c), default=None) for column in columns]

    def one(cell: Cell | None, top: float | None) -> Printed:
        if cell is None:
            return Printed("–", False, "", "", "")
        mean = rounded(cell)
        spread = "" if cell.std is None else f" ± {cell.std:.{table.decimals}f}"
        seeds = "" if cell.n == table.usual else f" (n={cell.n})"
        return Printed(mean, float(mean) == top, _mark(cell, table.p_value), spread, seeds)

    return {position: [*map(one, cells, best)] for position, cells in table.rows.items()}


def _mark(cell: Cell, p_value: float) -> str:
    if cell.test is None or cell.test.p is None or cell.test.p >= p_value:
        return ""
    return "†" if cell.test.difference > 0 else "‡"


def _joined(cell: Printed, bold: Callable[[str], str], escape: Callable[[str], str] = str) -> str:
    mean = bold(cell.mean) if cell.bold else escape(cell.mean)
    return mean + escape(f"{cell.mark}{cell.spread}{cell.seeds}")
