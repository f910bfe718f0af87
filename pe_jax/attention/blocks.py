"""Attention in blocks of queries, whose weights the backward pass computes again.

Outputs and one number a query are saved: the logarithm of the softmax's denominator. The weights
are recomputed from it, q and k, and dropout from its counter, so nothing of size Lq·Lk is saved and
memory is linear in the length, forward and backward. Terms of hooks (`LogitTerms`) and maps of the
finished logits are computed for a block of queries at a time as well.

With a window, a block of queries meets the keys within its window and no others, so time is linear
as well. In packed rows, it meets the least part of the keys, in eighths, that holds the documents
of its queries in all rows; the program has a branch for each of these sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.attention import softmax
from pe_jax.attention.masks import document_bounds, masked_weights
from pe_jax.attention.softmax import AttentionBlock, combine, partition
from pe_jax.attention.token_axes import PerToken, axes_of
from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.shapes import Array, Leaf

# The axis of queries in q and the content of queries, as `_heads_first` has them.
_QUERY_AXIS = 2
# Parts of the keys that a block may meet in packed rows; more take longer to compile.
_EIGHTHS = 1, 2, 3, 4, 6, 8


class Cut(NamedTuple):
    """What differs between blocks; with an axis for these in front, of all of them.

    Attributes:
      first: numbers of the first query and the first key that the block meets.
      by_query: the arrays that are cut along the queries.
    """

    first: tuple[Leaf, Leaf]
    by_query: AttentionBlock


def forward(x: AttentionBlock) -> tuple[Array, Array]:
    """Outputs, and by block the logarithm of the softmax's denominator."""

    def attend(width: int, cut: Cut) -> tuple[Array, Array]:
        out, _, log_total = softmax.forward(_block(x, width, cut))
        return out.swapaxes(1, 2), log_total

    def step(block: tuple[Array, Cut]) -> tuple[Array, Array]:
        choice, cut = block
        return jax.lax.switch(choice, branches, cut)

    x = _heads_first(x)
    widths = _widths(x)
    branches = [functools.partial(attend, width) for width in widths]
    out, log_total = jax.lax.map(step, _cut_blocks(x, widths))
    return join_axis(out, 2, x.place.num_queries).swapaxes(1, 2), log_total


def backward(
    x: AttentionBlock,
    log_total: Array,
    out: Array,
    g: Array,
    g_log_total: Array | None = None,
) -> AttentionBlock:
    """Gradients, as of `softmax.backward`."""

    def step(
        sums: AttentionBlock, block: tuple
    ) -> tuple[AttentionBlock, AttentionBlock]:
        (choice, cut), *by_row = block
        return jax.lax.switch(choice, branches, sums, cut, *by_row)

    def zeros(array: Array, axis: int | None) -> Array | None:
        if axis is not None:
            return None
        # For sums over many blocks, so in float32 at least, whatever the dtype of the parts.
        return jnp.zeros_like(array, dtype=wide_dtype(array))

    def join(row: Array, axis: int) -> Array:
        return join_axis(row, axis, x.place.num_queries)

    x = _heads_first(x)
    widths = _widths(x)
    branches = [functools.partial(_differentiate, x, width) for width in widths]
    arrays, _ = partition(x)
    axes = _axes(arrays, "queries")
    size = x.place.block_size
    out = cut_axis(out, size, 1)
    g = cut_axis(g, size, 1)
    if g_log_total is not None:
        g_log_total = cut_axis(g_log_total, size, 2)
    blocks = _cut_blocks(x, widths), out, g, g_log_total, log_total
    sums, rows = jax.lax.scan(step, jax.tree.map(zeros, arrays, axes), blocks)
    rows = jax.tree.map(join, rows, axes)
    grads = combine(sums, rows)
    return _heads_last(
        jax.tree.map(lambda array, grad: grad.astype(array.dtype), arrays, grads)
    )


def _differentiate(
    x: AttentionBlock,
    width: int,
    sums: AttentionBlock,
    cut: Cut,
    out: Array,
    g: Array,
    g_log_total: Array | None,
    log_total: Array,
) -> tuple[AttentionBlock, AttentionBlock]:
    """Add gradients of a block to `sums`, and return those of its queries."""
    block = _block(x, width, cut)
    weights = jnp.exp(softmax.logits(block) - log_total)
    weights = masked_weights(weights, block.whole_mask)
    grads = softmax.backward(block, weights, out, g, g_log_total)
    grads = _heads_first(_placed(grads, None))
    _, first_key = cut.first
    rows = jax.tree.map(jnp.zeros_like, partition(cut.by_query)[0])

    def add(total: Array, grad: Array, axis: int | None) -> Array:
        """Add the gradient to that of its keys."""
        if axis is None or grad.shape[axis] == total.shape[axis]:
            return total + grad
        near = jax.lax.dynamic_slice_in_dim(total, first_key, grad.shape[axis], axis)
        return jax.lax.dynamic_update_slice_in_dim(total, near + grad, first_key, axis)

    totals = combine(sums, rows)
    totals = jax.tree.map(add, totals, grads, _axes(totals, "keys"))
    return _arrays_of(totals, sums), _arrays_of(totals, rows)


def _arrays_of(x: AttentionBlock, like: AttentionBlock) -> AttentionBlock:
    """The arrays of `x` that `like` has as well."""
    return jax.tree.map(
        lambda a, b: None if a is None else b, like, x, is_leaf=lambda a: a is None
    )


def _heads_first(x: AttentionBlock) -> AttentionBlock:
    """Queries as [B, H, L, d] and keys as [B, G, d, L], as products take and give them.

    A CPU would lay out arrays [B, L, H, d] again for every block. Of keys from which windows are
    cut, [B, G, L, d], a window is contiguous.
    """
    keys = _key_axis(x)
    return _map_heads(
        x,
        lambda queries: jnp.moveaxis(queries, 1, _QUERY_AXIS),
        lambda array: jnp.moveaxis(array, 1, keys),
    )


def _heads_last(x: AttentionBlock) -> AttentionBlock:
    """The reverse of `_heads_first`."""
    keys = _key_axis(x)
    return _map_heads(
        x,
        lambda queries: jnp.moveaxis(queries, _QUERY_AXIS, 1),
        lambda array: jnp.moveaxis(array, keys, 1),
    )


def _map_heads(
    x: AttentionBlock, of_queries: Callable[[Any], Any], of_keys: Callable[[Any], Any]
) -> AttentionBlock:
    """Map the arrays with heads: queries and their content, and keys, values and theirs."""
    content = PerToken(
        queries=jax.tree.map(of_queries, x.offset_arrays.content.queries),
        keys=jax.tree.map(of_keys, x.offset_arrays.content.keys),
    )
    return x.replace(
        q=jax.tree.map(of_queries, x.q),
        k=jax.tree.map(of_keys, x.k),
        v=jax.tree.map(of_keys, x.v),
        offset_arrays=x.offset_arrays.replace(content=content),
    )


def _axes(x: AttentionBlock, side: Literal["queries", "keys"]) -> AttentionBlock:
    """The axis along which each array is cut into queries or keys, None for arrays that are not
    cut: they have no such axis, or one of a single entry."""
    key_axis = _key_axis(x)
    axes = _map_heads(axes_of(x, side), lambda _: _QUERY_AXIS, lambda _: key_axis)

    def unless_single(array: Array, axis: int | None) -> int | None:
        return None if axis is None or array.shape[axis] == 1 else axis

    return jax.tree.map(unless_single, x, axes)


def _key_axis(x: AttentionBlock) -> int:
    """The axis of keys in keys and values, as `_heads_first` has them."""
    return 3 if _window(x) is None else 2


def _num_keys(x: AttentionBlock) -> int:
    return x.k.shape[_key_axis(x)]


class _Window(NamedTuple):
    """The keys that a query meets, if blocks meet only those.

    Attributes:
      left, right: how many keys before and after itself.
      first: number of the key at the position of the first query.
    """

    left: int
    right: int
    first: int


def _window(x: AttentionBlock) -> _Window | None:
    """Return the window of consecutive queries and keys, if it has a limit on both sides."""
    if x.masks.window is None or x.place.ranges is None:
        return None
    left, right = x.masks.window.sides
    if left is None or right is None:
        return None
    queries, keys = x.place.ranges
    return _Window(left, right, first=queries.start - keys.start)


def _widths(x: AttentionBlock) -> tuple[int, ...]:
    """Return the numbers of keys that blocks may meet, the least first."""
    keys = _num_keys(x)
    window = _window(x)
    if window is not None:
        return (min(keys, x.place.block_size + window.left + window.right),)
    if x.masks.document_ids is None:
        return (keys,)
    return tuple(dict.fromkeys(-(-keys * count // 8) for count in _EIGHTHS))


def _cut_blocks(x: AttentionBlock, widths: tuple[int, ...]) -> tuple[Array, Cut]:
    """Return which of `widths` each block has, and what else differs between blocks."""

    def cut(array: Array, axis: int | None) -> Array | None:
        if axis is None:
            return None
        # Rows of padding repeat the last query: zeros might be where a function has no derivative.
        return cut_axis(array, x.place.block_size, axis, "edge")

    choice, first = _first_keys(x, widths)
    return choice, Cut(first, jax.tree.map(cut, x, _axes(x, "queries")))


def _first_keys(
    x: AttentionBlock, widths: tuple[int, ...]
) -> tuple[Array, tuple[Array, Array]]:
    """Return which of `widths` each block has, and the numbers of its first query and key."""
    size = x.place.block_size
    keys = _num_keys(x)
    count = -(-x.place.num_queries // size)
    query = jnp.arange(count, dtype=jnp.int32) * size
    choice = key = jnp.zeros_like(query)
    window = _window(x)
    if window is not None:
        key = query + window.first - window.left
    elif x.masks.document_ids is not None:
        document_ids = x.masks.document_ids.queries
        starts, ends = document_bounds(document_ids)
        real = document_ids > 0
        key = cut_axis(jnp.where(real, starts, keys), size, 1, "edge").min((1, 2))
        last = cut_axis(jnp.where(real, ends, 0), size, 1, "edge").max((1, 2))
        choice = jnp.searchsorted(jnp.array(widths), last - key)
    return choice, (query, jnp.clip(key, 0, keys - jnp.array(widths)[choice]))


def _block(x: AttentionBlock, width: int, cut: Cut) -> AttentionBlock:
    """A block of queries with the `width` keys from the first one that it meets."""
    first_query, first_key = cut.first
    x = combine(cut.by_query, x)
    if width == _num_keys(x):
        return _heads_last(_placed(x, (first_query, 0)))

    def near(array: Array, axis: int | None) -> Array:
        if axis is None:
            return array
        return jax.lax.dynamic_slice_in_dim(array, first_key, width, axis)

    x = jax.tree.map(near, x, _axes(x, "keys"))
    return _heads_last(_placed(x, cut.first))


def _placed(x: AttentionBlock, first: tuple[Leaf, Leaf] | None) -> AttentionBlock:
    """`x` as the block of these first query and key; None for all queries and keys."""
    return x.replace(place=x.place.replace(first=first))
