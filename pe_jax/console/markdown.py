"""Markdown tables that also read well on a terminal."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence

_BORDER = r"(?<!\\)\|"  # Of cells; a cell's own is escaped.
WIDTH = 100  # Of lines.

_wrap = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False).wrap


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table with aligned columns."""
    header, *rows = ([cell.replace("|", r"\|") for cell in row] for row in [header, *rows])
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    return [line(header), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]


def for_terminal(page: str) -> str:
    """A page in lines of `WIDTH`, no figures; wide tables become several with the first columns."""
    page = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n+", "", page, flags=re.M)
    lines = []
    for line, group in itertools.groupby(page.split("\n"), lambda line: line[:1]):
        block = list(group)
        if line == "|":
            lines += _folded(block) if len(block[0]) > WIDTH else block
        else:
            lines += [short for line in block for short in _wrap(line) or [""]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _folded(lines: Sequence[str]) -> list[str]:
    """A table as several with as many of its columns as fit."""
    header, _, *rows = (
        [cell.strip().replace(r"\|", "|") for cell in re.split(_BORDER, line)[1:-1]]
        for line in lines
    )
    columns = list(zip(header, *rows))
    sizes = [max(map(len, column)) + len(" | ") for column in columns]
    # The fewest columns in which rows differ are in every part, if there is room.
    different = [len(set(zip(*columns[:n]))) == len(rows) + 1 for n in range(1, len(columns))]
    first = different.index(True) + 1 if True in different else 1
    if sum(sizes[:first]) > 2 * WIDTH // 3:
        first = 1
    parts: list[list[int]] = []
    for column in range(first, len(columns)):
        if not parts or sum(sizes[i] for i in (*parts[-1], column)) >= WIDTH:
            parts.append([*range(first)])
        parts[-1].append(column)
    folded = []
    for part in parts:
        folded += ["", *table([header[i] for i in part], [[row[i] for i in part] for row in rows])]
    return folded[1:]
