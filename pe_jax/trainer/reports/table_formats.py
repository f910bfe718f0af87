"""The paper's tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.trainer.reports.pages import page

TITLES = {"glue": "GLUE (table 2)", "squad": "SQuAD (table 3)"}
DECIMALS = {"glue": 1, "squad": 2}  # As the paper prints them.

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "–": "--",
    }
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: f"${sign}$" for sign in "<>|"}
)


def _printed(
    name: str, rows: Json, p_value: float, bold: str, escape: Callable[[str], str]
) -> list[list[str]]:
    """Return the rows as text; the best mean of a column, as printed, has the format `bold`."""
    decimals = DECIMALS[name]
    usual = usual_count(rows)

    def mean(cell: Json) -> str:
        return f"{cell['mean']:z.{decimals}f}"

    best = []
    for column in zip(*(cells.values() for cells in rows.values())):
        best.append(max((float(mean(cell)) for cell in column if cell), default=None))

    def text(cell: Json | None, top: float | None) -> str:
        if cell is None:
            return escape("–")
        start = escape(mean(cell))
        if float(mean(cell)) == top:
            start = bold.format(mean(cell))
        p = p_value_of(cell)
        if p is not None and p < p_value:
            start += escape("†" if cell["test"]["difference"] > 0 else "‡")
        parts = [start]
        if cell["std"] is not None:
            parts.append(escape(f"± {cell['std']:.{decimals}f}"))
        if cell["n"] != usual:
            parts.append(escape(f"(n={cell['n']})"))
        return " ".join(parts)

    return [
        [escape(row), *map(text, cells.values(), best)] for row, cells in rows.items()
    ]


def to_markdown(name: str, table: Json, p_value: float) -> str:
    """Return a heading, the table with its columns lined up, and its notes."""
    header = ["position encoding", *map(markdown.text, table["columns"].values())]
    rows = _printed(name, table["rows"], p_value, "**{}**", markdown.text)
    return page(
        TITLES[name],
        markdown.raw_table(header, rows),
        *map(markdown.text, table["notes"]),
    )


def to_latex(name: str, table: Json, p_value: float) -> str:
    """Return a `table` environment; the document needs the package booktabs."""

    def escape(text: str) -> str:
        return markdown.printable(text).translate(_LATEX)

    header = ["position encoding", *map(escape, table["columns"].values())]
    caption = escape(" ".join([f"{TITLES[name]}.", *table["notes"]]))
    rows = [header, *_printed(name, table["rows"], p_value, r"\textbf{{{}}}", escape)]
    first, *body = [" & ".join(cells) + r" \\" for cells in rows]
    start = rf"""% Needs \usepackage{{booktabs}}.
\begin{{table}}
\centering
\caption{{{caption}}}
\label{{tab:{name}}}
\begin{{tabular}}{{l{"c" * len(table["columns"])}}}"""
    end = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([start, r"\toprule", first, r"\midrule", *body, *end])


def to_csv(table: Json) -> str:
    """Return a row for each encoding: mean, std, n and p of each column, empty if missing."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = ["position"]
    for key in table["columns"]:
        numbers = [f"{key} {number}" for number in ("mean", "std", "n", "p")]
        header += map(_spreadsheet_text, numbers)
    writer.writerow(header)
    for position, cells in table["rows"].items():
        row = [position]
        for cell in cells.values():
            if cell is None:
                row += [None] * 4
            else:
                row += [cell["mean"], cell["std"], cell["n"], p_value_of(cell)]
        writer.writerow(row)
    return file.getvalue()


def _spreadsheet_text(text: str) -> str:
    """Return text that a spreadsheet shows as it is: a formula gets an apostrophe before it."""
    line = markdown.printable(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def usual_count(rows: Json) -> int:
    """Return the number of seeds that most cells have, the larger on a tie; cells omit it."""
    counts = Counter[int]()
    for cells in rows.values():
        counts.update(cell["n"] for cell in cells.values() if cell)
    return max(counts, key=lambda n: (counts[n], n))


def p_value_of(cell: Json) -> float | None:
    """Return p of the test of a cell; None if nothing was tested."""
    return cell["test"]["p"] if cell["test"] else None
