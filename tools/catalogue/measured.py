"""Properties and requirements of untrained encodings, measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
