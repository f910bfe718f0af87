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
_AT_ONCE, _AT_ONCE_ELSEWHERE = {"cpu": 2**17}, 2**20


def numbers_at_once() -> int:
    """Return how many numbers of an array to compute at once where it need not be whole."""
    return _AT_ONCE.get(jax.default_backend(), _AT_ONCE_ELSEWHERE)


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
    leaves = jax.tree.leaves(arrays)
    queries = leaves[0].shape[-2]
    if not all(isinstance(n, int) for leaf in leaves for n in leaf.shape):
        return network(params, arrays)  # A length is symbolic.
    numbers_per_query = max(
        math.prod((*leaf.shape[:-2], leaf.shape[-1])) for leaf in leaves
    )
    rows = max(1, numbers_at_once() // max(1, numbers_per_query * width))
    if rows >= queries:
        return network(params, arrays)
    # Queries are added like the last one: zeros might be where a function has no derivative.
    blocks = jax.tree.map(lambda x: cut_axis(x, rows, x.ndim - 2, "edge"), arrays)
    out = jax.lax.map(functools.partial(network, params), blocks)
    return join_axis(out, out.ndim - 3, queries)
