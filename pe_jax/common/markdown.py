"""Markdown of reports: text in it, tables that also read well on a terminal, and images."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence

_BORDER = r"(?<!\\)\|"  # Of cells; a cell's own is escaped.
WIDTH = 100  # Of lines.

# What would be Markdown or HTML in a line. An underscore inside a word is none. GitHub, which shows
# the same files, has also `~` and `$`.
_SYNTAX = re.compile(
    r"\\(?=[!-/:-@\[-`{-~]|$)"
    r"|[`*\[\]<~#$|]"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|&(?=#?\w+;)"
    # At the start: a quotation, a list, a rule, the line under a heading.
    r"|^>|^[-+=](?=[-+=\s]|$)"
)
_LIST_NUMBER = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")

_IMAGE = re.compile(
    r"^!\[(?:\\.|[^\]\\])*\]\([^\n]*\)\n+", re.MULTILINE
)  # On its own line.

_wrap = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False).wrap


def text(value: object) -> str:
    """Return Markdown that shows `str(value)` as it is, in one line: a name is text, whatever it
    contains. Characters that cannot be printed, line breaks included, become escapes; spaces
    around it are dropped."""
    line = _SYNTAX.sub(r"\\\g<0>", printable(str(value)).strip())
    return _LIST_NUMBER.sub(r"\1\\\2", line)


def plain(markdown: str) -> str:
    """Return what the Markdown of `text` shows."""
    return _ESCAPE.sub(r"\1", markdown)


def printable(value: str, keep: str = "") -> str:
    """Return a string with escapes, such as `\\x1b`, for characters that cannot be printed, but for
    those in `keep`: a terminal takes some of them for commands."""
    return "".join(
        character
        if character.isprintable() or character in keep
        else _escaped(character)
        for character in value
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def image(description: str, file: str) -> str:
    """Return the Markdown of an image, a file in the folder of the page."""
    is_plain = re.fullmatch(r"[\w.+=-]+", file)
    return f"![{text(description)}]({file if is_plain else f'<{text(file)}>'})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with aligned columns, whose cells are text."""
    first, *others = ([text(cell) for cell in row] for row in (header, *rows))
    return raw_table(first, others)


def raw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose cells are Markdown, or that is only printed."""
    header, *rows = (
        [re.sub(_BORDER, r"\|", cell) for cell in row] for row in [header, *rows]
    )
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    line = lambda cells: (
        "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    )
    return [
        line(header),
        "|" + "|".join("-" * (w + 2) for w in widths) + "|",
        *map(line, rows),
    ]


def for_terminal(page: str) -> str:
    """A page in lines of `WIDTH`, no figures; wide tables become several with the first columns."""
    page = _IMAGE.sub("", page)
    lines = []
    for line, group in itertools.groupby(page.split("\n"), lambda line: line[:1]):
        block = list(group)
        if line == "|":
            lines += _for_terminal(block)
        else:
            lines += [short for line in block for short in _wrap(plain(line)) or [""]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _for_terminal(lines: Sequence[str]) -> list[str]:
    """A table of plain text; one that is too wide becomes several."""
    header, _, *rows = (
        [plain(cell.strip()) for cell in re.split(_BORDER, line)[1:-1]]
        for line in lines
    )
    whole = raw_table(header, rows)
    return whole if len(whole[0]) <= WIDTH else _folded(header, rows)


def _folded(header: list[str], rows: list[list[str]]) -> list[str]:
    """A table as several with as many of its columns as fit."""
    columns = list(zip(header, *rows))
    sizes = [max(map(len, column)) + len(" | ") for column in columns]
    # The fewest columns in which rows differ are in every part, if there is room.
    different = [
        len(set(zip(*columns[:n]))) == len(rows) + 1 for n in range(1, len(columns))
    ]
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
        columns_of_part = [[row[i] for i in part] for row in (header, *rows)]
        folded += ["", *raw_table(columns_of_part[0], columns_of_part[1:])]
    return folded[1:]
