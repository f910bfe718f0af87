"""Measurements of the catalogue as a JSON file, one line for each row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from catalogue.cost import Cost
from catalogue.measured import Properties, Requirements

# The checks of `pe_jax.testing` that are shown.
CHECKS = ("packing", "padding", "decoding", "precision")


class Measured(NamedTuple):
    """Measurements of an encoding.

    Attributes:
      checks: `{check: "ok", "no" or "–"}`, of CHECKS.
      excuses: `{check: reason}` of all checks that are known not to hold.
      linear: memory is linear in the length at ranges, and at packed positions.
      machine: the processor and software that costs were measured on.
      memory: over that of `none`, see `cost.memory`.
      exports: see `export.exports`.
    """

    properties: Properties
    requirements: Requirements
    checks: Mapping[str, str]
    excuses: Mapping[str, str]
    cost: Cost
    linear: tuple[bool, bool]
    machine: str
    memory: float
    exports: list[str]


class Results(NamedTuple):
    """Measurements by the title of a row, and milliseconds of `none` by machine."""

    none_ms: dict[str, float]
    rows: dict[str, Measured]


def read(path: Path) -> Results:
    """Return the results in a file; numbers that are not there are NaN."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return Results(
        content["none_ms"], {k: _measured(v) for k, v in content["rows"].items()}
    )


def write(path: Path, results: Results) -> None:
    """Write results with the digits that the page shows."""
    rows = [
        f"{_text(title)}: {_text(_plain(row))}" for title, row in results.rows.items()
    ]
    lines = ",\n".join(rows)
    none_ms = _text({machine: round(ms) for machine, ms in results.none_ms.items()})
    path.write_text(
        f'{{"none_ms": {none_ms},\n"rows": {{\n{lines}\n}}}}\n', encoding="utf-8"
    )


def _measured(row: dict) -> Measured:
    by, invariance, monotonicity, near, symmetry = row["properties"]
    points, *numbers = row["requirements"]
    return Measured(
        Properties(
            by, _number(invariance), _number(monotonicity), _number(near), symmetry
        ),
        Requirements(points, *map(_number, numbers)),
        row["checks"],
        row["excuses"],
        Cost(*row["cost"]),
        (bool(row["linear"][0]), bool(row["linear"][1])),
        row["machine"],
        _number(row["memory"]),
        row["exports"],
    )


def _plain(row: Measured) -> dict:
    tuples = ("properties", "requirements", "cost")
    short = {name: [*map(_short, getattr(row, name))] for name in tuples}
    return row._asdict() | short | {"memory": _short(row.memory)}


def _short(value: str | float | None) -> str | float | None:
    if value is None or isinstance(value, str):
        return value
    return None if math.isnan(value) else round(float(value), 4)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
