"""Tables of numbers as Markdown, and the two files of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pe_jax.common import markdown
from pe_jax.common.files import Json, write_text
from pe_jax.properties import Estimate
from pe_jax.trainer.reports.pages import write_page

Value: TypeAlias = str | float | Estimate | None  # None and NaN are printed as a dash.
Row: TypeAlias = Sequence[Value]
Column: TypeAlias = str | tuple[str, str]  # Heading, and the format of its numbers.


def number_table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table. Headings and strings in cells are text."""
    headings = []
    forms = []
    for column in columns:
        heading, form = (column, "") if isinstance(column, str) else column
        headings.append(heading)
        forms.append(form)
    return markdown.table(
        headings,
        [[_text(*cell) for cell in zip(row, forms, strict=True)] for row in rows],
    )


def _text(cell: Value, form: str) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Estimate):
        mean = format(float(cell.mean), f"+{form}")
        return f"{mean} ± {float(cell.error):{form}}"
    if cell is None or np.isnan(cell):
        return "–"
    return format(cell, form)


def mean_and_spread(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Return the mean, and ± the sample standard deviation if there are several values."""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    return text


def for_json(values: Any) -> Any:
    """Return dicts, lists, numbers and arrays as JSON has them: None for NaN and infinity."""
    if isinstance(values, dict):
        return {key: for_json(value) for key, value in values.items()}
    if hasattr(values, "tolist"):  # An array, or a scalar of NumPy or JAX.
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [for_json(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def write_json(path: Path, numbers: Json | list[Json]) -> None:
    """Write numbers and arrays to a file."""
    write_text(path, json.dumps(for_json(numbers), indent=2) + "\n")


def write_report(out: Path, name: str, numbers: Json | list[Json], text: str) -> str:
    """Write `name.json`, `name.md` and `name.html` to `out`; return the text."""
    write_json(out / f"{name}.json", numbers)
    return write_page(out / f"{name}.md", text)
