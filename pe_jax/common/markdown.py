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

# On its own line.
_IMAGE = re.compile(r"^!\[(?:\\.|[^\]\\])*\]\([^\n]*\)\n+", re.MULTILINE)

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
    characters = []
    for character in value:
        if not character.isprintable() and character not in keep:
            character = character.encode("unicode_escape").decode("ascii")
        characters.append(character)
    return "".join(characters)


def image(description: str, file: str) -> str:
    """Return the Markdown of an image, a file in the folder of the page."""
    if not re.fullmatch(r"[\w.+=-]+", file):
        file = f"<{text(file)}>"
    return f"![{text(description)}]({file})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns, whose cells are text."""
    cells = [[text(cell) for cell in row] for row in rows]
    return raw_table([text(cell) for cell in header], cells)


def raw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are Markdown, or that is only printed."""
    table_rows = []
    for row in (header, *rows):
        table_rows.append([re.sub(_BORDER, r"\|", cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*table_rows)]
    lines = []
    for row in table_rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append(f"| {' | '.join(cells)} |")
    rules = ["-" * (width + 2) for width in widths]
    lines.insert(1, f"|{'|'.join(rules)}|")
    return lines


def for_terminal(page: str) -> str:
    """Return a page in lines of `WIDTH`, without figures.

    A wider table becomes several, each with its first columns.
    """
    page = _IMAGE.sub("", page)
    lines = []
    for first, block in itertools.groupby(page.split("\n"), lambda line: line[:1]):
        if first == "|":
            lines += _table_for_terminal(list(block))
            continue
        for line in block:
            lines += _wrap(plain(line)) or [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table_for_terminal(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table as plain text; one that is too wide becomes several."""
    rows = []
    for line in lines:
        cells = re.split(_BORDER, line)[1:-1]
        rows.append([plain(cell.strip()) for cell in cells])
    del rows[1]  # The rule below the header.
    whole = raw_table(rows[0], rows[1:])
    return whole if len(whole[0]) <= WIDTH else _split_columns(rows)


def _split_columns(rows: list[list[str]]) -> list[str]:
    """Return a table, header first, as several with as many of its columns as fit."""
    columns = list(zip(*rows))
    sizes = [max(map(len, column)) + len(" | ") for column in columns]
    # The fewest columns in which rows differ are in every part, if there is room.
    repeated = 1
    for count in range(1, len(columns)):
        if len(set(zip(*columns[:count]))) == len(rows):
            repeated = count
            break
    if sum(sizes[:repeated]) > 2 * WIDTH // 3:
        repeated = 1
    parts: list[list[int]] = []
    width = 0
    for column in range(repeated, len(columns)):
        width += sizes[column]
        if not parts or width >= WIDTH:
            parts.append([*range(repeated)])
            width = sum(sizes[:repeated]) + sizes[column]
        parts[-1].append(column)
    lines = []
    for part in parts:
        header, *others = ([row[i] for i in part] for row in rows)
        lines += ["", *raw_table(header, others)]
    return lines[1:]
