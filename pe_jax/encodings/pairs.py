"""Networks of the pairs of queries and keys, for a few queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.part import Params
from pe_jax.shapes import Array, Float

# Numbers that are computed at once: half a MiB, which fits into a cache of a CPU's core. Other
# devices get more, to have enough to do (not measured).
_AT_ONCE = {"cpu": 2**17}
_AT_ONCE_ELSEWHERE = 2**20


def by_queries(
    network: Callable[[Any, Any], Array], params: Params | None, arrays: Any, width: int
) -> Float[Array, "... Lq Lk"]:
    """Return `network(params, arrays)`, computed for a few queries at a time.

    The backward pass computes the network again, so what it computes of a pair is never in memory
    for all queries. Axes of units are best in front of those of queries and keys: a CPU takes
    several times as long to sum over pairs if units are the last axis.

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
    of_query = max(math.prod((*leaf.shape[:-2], leaf.shape[-1])) for leaf in leaves)
    at_once = _AT_ONCE.get(jax.default_backend(), _AT_ONCE_ELSEWHERE)
    rows = max(1, at_once // max(1, of_query * width))
    if rows >= queries:
        return network(params, arrays)
    count = -(-queries // rows)

    def cut(x: Array) -> Array:
        """`[..., Lq, N]` as `[count, ..., rows, N]`; queries are added like the last one."""
        pad = [(0, 0)] * x.ndim
        pad[-2] = (0, count * rows - queries)
        x = jnp.pad(x, pad, "edge").reshape(*x.shape[:-2], count, rows, x.shape[-1])
        return jnp.moveaxis(x, -3, 0)

    out = jax.lax.map(lambda block: network(params, block), jax.tree.map(cut, arrays))
    out = jnp.moveaxis(out, 0, -3)
    out = out.reshape(*out.shape[:-3], count * rows, out.shape[-1])
    return jax.lax.slice_in_dim(out, 0, queries, axis=-2)
