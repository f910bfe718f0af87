"""Markdown tables that also read well on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table with aligned columns."""
    header, *rows = ([cell.replace("|", r"\|") for cell in row] for row in [header, *rows])
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    return [line(header), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]


def without_images(page: str) -> str:
    """A page for a terminal, which shows no figures; the files are in the folder that it names."""
    return re.sub(r"^!\[[^\]]*\]\([^)]*\)\n+", "", page, flags=re.M)
