"""Properties and requirements of untrained encodings, measured; the file of all measurements."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from catalogue.cost import Cost
from catalogue.entries import SIZES, Entry, Sizes
from pe_jax import properties
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.encodings import Params, PositionEncoding
from pe_jax.properties.encoding_measures import (
    logits_of_copies,
    mirrored,
    position_vectors,
    random_layer,
)

LENGTH = 128  # Of the proximity matrices that properties are measured on.


class Properties(NamedTuple):
    """Violations, means over words and heads: 0 if the property holds exactly.

    Attributes:
      by: what proximities are, `"P·Pᵀ"` or `"logits"`.
      invariance, monotonicity, symmetry: see `pe_jax.properties`; symmetry is None where queries
        attend to one side only.
      near: monotonicity within 10 offsets.
    """

    by: str
    invariance: float
    monotonicity: float
    near: float
    symmetry: float | None


class Requirements(NamedTuple):
    """See `pe_jax.properties.requirements`.

    Attributes:
      points: what stands for a position: `"P_x"`, `"P_m"` (vectors of positions, of offsets), or
        `"logits"`, of all keys for one query.
      distinctness: among all positions of BERT-base.
      size: root mean square of the numbers in the points of 64 positions.
      growth: from these to all positions of BERT-base, eight times as many.
      length: change of proximities in an input twice as long.
      shift: change of proximities at positions that are 256 larger.
    """

    points: str
    distinctness: float
    size: float
    growth: float
    length: float
    shift: float


Vectors = Callable[[Params, Int[Array, " L"]], Float[Array, "L D"]]


def measure(row: Entry, sizes: Sizes = SIZES) -> tuple[Properties, Requirements]:
    """Both, of the parameters that `init` makes."""
    encoding = row.encoding
    params = jax.jit(encoding.init)(jax.random.key(0))
    measures = properties.measure(encoding, params, length=LENGTH)
    found = Properties(
        by=measures.by,
        invariance=measures.translation_invariance,
        monotonicity=measures.monotonicity,
        near=measures.monotonicity_near,
        symmetry=measures.symmetry,
    )

    logits = jax.jit(functools.partial(logits_of_copies, encoding))
    layer = random_layer(sizes, tied=False)
    vectors = position_vectors(encoding, sizes["hidden_size"])

    def proximities(at: Int[Array, " L"]) -> Float[Array, "N L L"]:
        if vectors is not None:
            return properties.proximity(vectors(params, at))[None]
        return mirrored(encoding, logits(params, layer, at))

    at = np.arange(LENGTH, dtype=np.int32)
    few = at[: LENGTH // 2]
    name, points = _points(
        encoding, params, vectors, functools.partial(logits, params, layer)
    )
    near, far = points(few), points(np.arange(sizes["max_length"], dtype=np.int32))
    short = proximities(few)
    longer = proximities(at)[:, : len(few), : len(few)]
    shifted = proximities(few + sizes["max_length"] // 2)
    required = Requirements(
        name,
        float(properties.distinctness(far)),
        float(jnp.sqrt((near**2).mean())),
        float(properties.norm_growth(near, far)),
        _mean(properties.relative_change(short, longer)),
        _mean(properties.relative_change(short, shifted)),
    )
    return found, required


def _mean(x: Float[Array, " N"]) -> float:
    return float(jnp.mean(x))


def _points(
    encoding: PositionEncoding,
    params: Params,
    absolute: Vectors | None,
    logits: Callable[[Int[Array, " L"]], Float[Array, "N L L"]],
) -> tuple[str, Callable[[Int[Array, " L"]], Float[Array, "M e"]]]:
    """What points are, and those of positions."""
    if absolute is not None:
        return "P_x", functools.partial(absolute, params)
    part = next((p for p in encoding.parts if p.metadata and p.metadata.vectors), None)
    if (
        part is not None
        and part.metadata is not None
        and part.metadata.kind == "relative"
    ):
        vectors = part.metadata.vectors
        own = params.get(part.key, {})

        def both_sides(at: Int[Array, " L"]) -> Float[Array, "M e"]:
            assert vectors is not None
            offsets = np.concatenate([-at[:0:-1], at])
            return vectors(own, offsets).reshape(len(offsets), -1)

        return "P_m", both_sides

    def of_keys(at: Int[Array, " L"]) -> Float[Array, "L N"]:
        """What positions add to the logits of keys for the query in the middle, or, where it only
        attends to the left, for the last one."""
        phi = logits(at)
        query = len(at) - 1 if encoding.is_causal else len(at) // 2
        return (phi[:, query] - phi[:, query, query, None]).T

    return "logits", of_keys


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
