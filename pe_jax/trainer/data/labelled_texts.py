"""Tables of texts with a class each: CSV, TSV and JSON lines of your own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pe_jax.common.errors import did_you_mean
from pe_jax.trainer.data.glue import Examples

_SUFFIXES = (".csv", ".tsv", ".jsonl")
_LONGEST_CELL = 10**8  # Characters; the module csv stops at 131,072 by default.
_SHOWN = 10  # Names in an error.

Row = dict[str, object]


class LabelledTexts(NamedTuple):
    """N rows of a table.

    Attributes:
      texts: `[N]` strings of each of the one or two columns of texts.
      labels: the class of each row, as the table writes it.
    """

    texts: tuple[list[str], ...]
    labels: list[str]


def read_labelled_texts(
    path: str, text_columns: Sequence[str], label_column: str
) -> LabelledTexts:
    """Read a table with a header, in UTF-8; of JSON lines each is an object.

    In `.csv`, cells with commas or line breaks stand in double quotes. In `.tsv`, quotes are
    ordinary characters.

    Raises:
      ValueError: for another kind of file, a column or a cell that is missing, or no rows.
      OSError: if the file cannot be read.
    """
    suffix = Path(path).suffix
    if suffix not in _SUFFIXES:
        raise ValueError(
            f"{path} must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}."
        )
    read = _json_lines if suffix == ".jsonl" else _cells
    texts: tuple[list[str], ...] = tuple([] for _ in text_columns)
    labels = []
    for line, row in read(path):
        for column, name in zip(texts, text_columns, strict=True):
            column.append(_cell(row, name, path, line))
        label = _cell(row, label_column, path, line).strip()
        if not label:
            raise ValueError(f"{path}, line {line} has no label in {label_column!r}.")
        labels.append(label)
    if not labels:
        raise ValueError(f"{path} has no rows below its header.")
    return LabelledTexts(texts, labels)


def _cells(path: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of CSV or TSV, each with the number of its last line."""
    csv.field_size_limit(_LONGEST_CELL)
    is_csv = path.endswith(".csv")
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(
            file,
            delimiter="," if is_csv else "\t",
            quoting=csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            for row in reader:
                if None in row:
                    raise ValueError(
                        f"{path}, line {reader.line_num} has more cells than the header. A cell "
                        "with a comma needs double quotes in .csv."
                    )
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {reader.line_num + 1}: {error}.") from None


def _json_lines(path: str) -> Iterator[tuple[int, Row]]:
    """Yield the objects of JSON lines, each with the number of its line."""
    with open(path, encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            try:
                row = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: {error}.") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {line} is no JSON object.")
            yield line, row


def _cell(row: Row, name: str, path: str, line: int) -> str:
    if name not in row:
        raise ValueError(
            f"{path}, line {line} has no column {name!r}.{did_you_mean(name, row)} It has "
            f"{', '.join(map(str, row))}. config.data.texts and config.data.label name the columns."
        )
    value = row[name]
    if value is None:
        raise ValueError(f"{path}, line {line} ends before the column {name!r}.")
    if not isinstance(value, (str, int, bool)):
        raise ValueError(
            f"{path}, line {line}: {name!r} must be a text or an integer, got {value!r}."
        )
    return str(value)


def class_names(labels: Sequence[str], path: str, column: str) -> tuple[str, ...]:
    """Return the classes of the training data: integers in ascending order, or names in order of
    their text.

    Raises:
      ValueError: for a single class, or a column that has hardly any value twice.
    """
    names = sorted(set(labels))
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    if len(names) < 2:
        raise ValueError(
            f"All rows of {path} have the label {names[0]!r} in {column!r}."
        )
    if len(names) > max(2, len(labels) // 2):
        raise ValueError(
            f"{path} has {len(names):,} different labels in {len(labels):,} rows. Is {column!r} "
            "the column of classes? Name another one by config.data.label."
        )
    return tuple(names)


def to_examples(table: LabelledTexts, names: Sequence[str], path: str) -> Examples:
    """Return the rows with the numbers of their classes among `names`.

    Raises:
      ValueError: for a class that is not among them.
    """
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted(set(table.labels) - set(numbers))
    if unknown:
        raise ValueError(
            f"{path} has labels that the training data lacks: {', '.join(unknown[:_SHOWN])}."
        )
    labels = np.array([numbers[label] for label in table.labels], np.int32)
    return Examples(table.texts, labels)
