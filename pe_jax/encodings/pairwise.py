"""Networks of the pairs of queries and keys, for a few queries at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import Params

# Numbers that are computed at once: half a MiB, which fits into a cache of a CPU's core. Other
# devices get more, to have enough to do (not measured).
_ON_CPU = 2**17
_ELSEWHERE = 2**20


def numbers_at_once() -> int:
    """Return how many numbers of an array to compute at once where it need not be whole."""
    return _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE


def map_query_blocks(
    network: Callable[[Any, Any], Array], params: Params | None, arrays: Any, width: int
) -> Float[Array, "... Lq Lk"]:
    """Return `network(params, arrays)`, computed for a few queries at a time.

    The backward pass computes the network again, so its units are never in memory for all queries.
    It is fastest with its units in front and all pairs as one axis: a CPU takes several times as
    long to sum over several axes, or beside a short last one.

    Args:
      network: from the parameters and the arrays of any number of queries to `[..., Lq, Lk]`.
      params: of the network; they are not cut.
      arrays: a tree of arrays `[..., Lq, Lk or another number]`.
      width: how many numbers the network computes for a number of the arrays.
    """
    network = jax.checkpoint(network)
    shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return network(params, arrays)  # A length is symbolic.
    queries = shapes[0][-2]
    numbers_per_query = max(math.prod(shape[:-2]) * shape[-1] for shape in shapes)
    rows = max(1, numbers_at_once() // max(1, numbers_per_query * width))
    if rows >= queries:
        return network(params, arrays)
    # Queries are added like the last one: zeros might be where a function has no derivative.
    blocks = jax.tree.map(lambda x: cut_axis(x, rows, x.ndim - 2, "edge"), arrays)
    out = jax.lax.map(functools.partial(network, params), blocks)
    return join_axis(out, out.ndim - 3, queries)
