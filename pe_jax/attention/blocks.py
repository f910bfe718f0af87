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

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pe_jax.attention import softmax
from pe_jax.attention.masks import document_bounds, masked_weights
from pe_jax.attention.softmax import AttentionBlock, combine, partition
from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.shapes import Array
from pe_jax.encodings.positions import AttentionWindow

# The axes of queries and of keys in arrays as `_heads_first` has them, by fields of
# `AttentionBlock` and of its `LogitTerms`. An axis of one entry is not cut.
_QUERIES = {"q": 2, "content_q": 2, "added": 2, "mask": 2, "query_arrays": 1}
_QUERIES |= {"limits_q": 1, "document_ids_q": 1, "positions_q": -1}
_KEYS = {"k": 3, "v": 3, "content_k": 3, "added": 3, "mask": 3, "key_arrays": 1}
_KEYS |= {"limits_k": 1, "document_ids_k": 1}
_KEYS_OF_WINDOWS = _KEYS | {"k": 2, "v": 2, "content_k": 2}
_BY_HEAD = "q", "k", "v", "content_q", "content_k"
# Parts of the keys that a block may meet in packed rows; more take longer to compile.
_EIGHTHS = 1, 2, 3, 4, 6, 8


def forward(x: AttentionBlock) -> tuple[Array, Array]:
    """Outputs, and by block the logarithm of the softmax's denominator."""

    def attend(width: int, cut: tuple) -> tuple[Array, Array]:
        out, _, log_total = softmax.forward(_block(x, width, *cut))
        return out.swapaxes(1, 2), log_total

    x = _heads_first(x)
    widths = _widths(x)
    branches = [functools.partial(attend, width) for width in widths]
    step = lambda block: jax.lax.switch(block[0], branches, block[1])
    out, log_total = jax.lax.map(step, _by_block(x, widths))
    return join_axis(out, 2, x.num_queries).swapaxes(1, 2), log_total


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
        (choice, cut), *rest = block
        return jax.lax.switch(choice, branches, sums, cut, *rest)

    def zeros(axis: int | None, array: Array) -> Array | None:
        # For sums over many blocks, so in float32 at least, whatever the dtype of the parts.
        return (
            None
            if _is_cut(axis, array)
            else jnp.zeros_like(array, dtype=wide_dtype(array))
        )

    x = _heads_first(x)
    widths = _widths(x)
    branches = [functools.partial(_differentiate, x, width) for width in widths]
    arrays, _ = partition(x)
    by_row = [cut_axis(array, x.size, 1) for array in (out, g)]
    g_log_total = None if g_log_total is None else cut_axis(g_log_total, x.size, 2)
    blocks = _by_block(x, widths), *by_row, g_log_total, log_total
    sums, rows = jax.lax.scan(step, _mapped(zeros, _QUERIES, arrays), blocks)
    rows = _mapped(
        lambda axis, row: join_axis(row, axis, x.num_queries), _QUERIES, rows
    )
    grads = combine(sums, rows)
    return _heads_last(
        jax.tree.map(lambda array, grad: grad.astype(array.dtype), arrays, grads)
    )


def _differentiate(
    x: AttentionBlock,
    width: int,
    sums: AttentionBlock,
    cut: tuple,
    out: Array,
    g: Array,
    g_log_total: Array | None,
    log_total: Array,
) -> tuple[AttentionBlock, AttentionBlock]:
    """Add gradients of a block to `sums`, and return those of its queries."""
    block = _block(x, width, *cut)
    weights = masked_weights(
        jnp.exp(softmax.logits(block) - log_total), block.whole_mask
    )
    grads = softmax.backward(block, weights, out, g, g_log_total)
    grads = _heads_first(dataclasses.replace(grads, first=None))
    (_, key), by_query = cut
    rows = jax.tree.map(jnp.zeros_like, partition(by_query)[0])

    def put(axis: int | None, total: Array, grad: Array) -> Array:
        """Add the gradient to its keys, those from `key` on."""
        if axis is None or grad.shape[axis] == total.shape[axis]:
            return total + grad
        near = jax.lax.dynamic_slice_in_dim(total, key, grad.shape[axis], axis)
        return jax.lax.dynamic_update_slice_in_dim(total, near + grad, key, axis)

    totals = _mapped(put, _keys(x), combine(sums, rows), grads)
    return _alike(sums, totals), _alike(rows, totals)


def _mapped(
    function: Callable[..., Array | None],
    axes: dict[str, int],
    x: AttentionBlock,
    *others: AttentionBlock,
) -> AttentionBlock:
    """`function(axis, array, *arrays of others)` of each array, with its axis of `axes` or None."""

    def at(path: tuple, *arrays: Array) -> Array | None:
        field = path[2 if path[0].name == "logit_terms" else 0]
        return function(axes.get(field.name), *arrays)

    return jax.tree_util.tree_map_with_path(at, x, *others)


def _is_cut(axis: int | None, array: Array) -> bool:
    return axis is not None and array.shape[axis] > 1


def _alike(like: AttentionBlock, x: AttentionBlock) -> AttentionBlock:
    """The arrays of `x` that `like` has as well."""
    return jax.tree.map(
        lambda a, b: None if a is None else b, like, x, is_leaf=lambda a: a is None
    )


def _heads_first(x: AttentionBlock) -> AttentionBlock:
    """Queries as [B, H, L, d] and keys as [B, G, d, L], as products take and give them.

    A CPU would lay out arrays [B, L, H, d] again for every block. Of keys from which windows are
    cut, [B, G, L, d], a window is contiguous.
    """
    return _moved(x, lambda array, axis: jnp.moveaxis(array, 1, axis))


def _heads_last(x: AttentionBlock) -> AttentionBlock:
    return _moved(x, lambda array, axis: jnp.moveaxis(array, axis, 1))


def _moved(x: AttentionBlock, move: Callable[[Array, int], Array]) -> AttentionBlock:
    axes = _QUERIES | _keys(x)
    arrays = {name: getattr(x, name) for name in _BY_HEAD}
    moved = {
        name: move(array, axes[name])
        for name, array in arrays.items()
        if array is not None
    }
    return dataclasses.replace(x, **moved)


def _keys(x: AttentionBlock) -> dict[str, int]:
    return _KEYS_OF_WINDOWS if _window(x) else _KEYS


def _num_keys(x: AttentionBlock) -> int:
    return x.k.shape[_keys(x)["k"]]


def _widths(x: AttentionBlock) -> tuple[int, ...]:
    """Return the numbers of keys that blocks may meet, the least first."""
    keys = _num_keys(x)
    if window := _window(x):
        left, right, _ = window
        return (min(keys, x.size + left + right),)
    eighths = _EIGHTHS if x.document_ids_k is not None else (8,)
    return tuple(dict.fromkeys(-(-keys * count // 8) for count in eighths))


def _window(x: AttentionBlock) -> tuple[int, int, int] | None:
    """Return how many keys before and after itself a query meets, if blocks meet only those, and
    the key at the position of the first query."""
    left, right = (x.window or AttentionWindow()).sides
    if left is None or right is None or x.ranges is None:
        return None
    queries, keys = x.ranges
    return left, right, queries.start - keys.start


def _by_block(x: AttentionBlock, widths: tuple[int, ...]) -> tuple[Array, tuple]:
    """Cut all that differs between blocks: which of `widths` each has, and the arguments of
    `_block` after the width."""

    def cut(axis: int | None, array: Array) -> Array | None:
        if axis is None or not _is_cut(axis, array):
            return None
        # Rows of padding repeat the last query: zeros might be where a function has no derivative.
        return cut_axis(array, x.size, axis % array.ndim, "edge")

    choice, first = _first_keys(x, widths)
    return choice, (first, _mapped(cut, _QUERIES, x))


def _first_keys(
    x: AttentionBlock, widths: tuple[int, ...]
) -> tuple[Array, tuple[Array, Array]]:
    """Return which of `widths` each block has, and the numbers of its first query and key."""
    count, keys = -(-x.num_queries // x.size), _num_keys(x)
    query = jnp.arange(count, dtype=jnp.int32) * x.size
    choice = key = jnp.zeros_like(query)
    if window := _window(x):
        left, _, start = window
        key = query + start - left
    elif x.document_ids_q is not None:
        starts, ends = document_bounds(x.document_ids_q)
        real = x.document_ids_q > 0
        key = cut_axis(jnp.where(real, starts, keys), x.size, 1, "edge").min((1, 2))
        last = cut_axis(jnp.where(real, ends, 0), x.size, 1, "edge").max((1, 2))
        choice = jnp.searchsorted(jnp.array(widths), last - key)
    return choice, (query, jnp.clip(key, 0, keys - jnp.array(widths)[choice]))


def _block(
    x: AttentionBlock, width: int, first: tuple[Array, Array], by_query: AttentionBlock
) -> AttentionBlock:
    """A block of queries with the `width` keys from the first one that it meets."""
    query, key = first
    x = combine(by_query, x)
    if width == _num_keys(x):
        return _heads_last(dataclasses.replace(x, first=(query, 0)))

    def near(axis: int | None, array: Array) -> Array:
        if axis is None or not _is_cut(axis, array):
            return array
        return jax.lax.dynamic_slice_in_dim(array, key, width, axis)

    return _heads_last(dataclasses.replace(_mapped(near, _keys(x), x), first=first))
