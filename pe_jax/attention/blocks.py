"""Attention in blocks of queries, whose weights the backward pass computes again.

Outputs and one number a query are saved: the logarithm of the softmax's denominator. The weights
are recomputed from it, q and k, and dropout from its counter, so nothing of size Lq·Lk is saved and
memory is linear in the length, forward and backward. Terms of hooks (`LogitTerms`) and maps of the
finished logits are computed for a block of queries at a time as well.

With a window, a block of queries meets the keys within reach of it and no others, so time is linear
as well. In packed rows, it meets the least part of the keys, in eighths, that holds the documents
of its queries in all rows; the program has a branch for each of these sizes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.attention import softmax
from pe_jax.attention.masks import document_bounds, masked_weights
from pe_jax.attention.softmax import Arrays, Fixed, Leaf
from pe_jax.axis_blocks import cut_axis, join_axis
from pe_jax.dtypes import wide_dtype
from pe_jax.encodings.positions import AttentionWindow
from pe_jax.shapes import Array

# The axes of queries and of keys in arrays as `_stored` has them.
_QUERIES = {"q": 2, "content_q": 2, "added": 2, "query_arrays": 1}
_KEYS = {"k": 3, "v": 3, "content_k": 3, "added": 3, "key_arrays": 1}
_BY_HEAD = "q", "k", "v", "content_q", "content_k"
_KEYS_OF_WINDOWS = _KEYS | {"k": 2, "v": 2, "content_k": 2}
# Parts of the keys that a block may meet in packed rows; more take longer to compile.
_EIGHTHS = 1, 2, 3, 4, 6, 8


def forward(arrays: Arrays, fixed: Fixed) -> tuple[Array, Array]:
    def attend(width: int, block: tuple) -> tuple[Array, Array]:
        out, _, log_total = softmax.forward(*_block(arrays, fixed, width, *block))
        return out.swapaxes(1, 2), log_total

    def step(_: None, block: tuple) -> tuple[None, tuple[Array, Array]]:
        choice, cut = block
        return None, jax.lax.switch(choice, branches, cut)

    arrays = _stored(arrays, fixed)
    widths = _widths(arrays, fixed)
    branches = [functools.partial(attend, width) for width in widths]
    _, (out, log_total) = jax.lax.scan(step, None, _by_block(arrays, fixed, widths))
    return join_axis(out, 2, fixed.num_queries).swapaxes(1, 2), log_total


def backward(
    arrays: Arrays,
    fixed: Fixed,
    log_total: Array,
    out: Array,
    g: Array,
    g_log_total: Array | None = None,
) -> Arrays:
    def differentiate(
        width: int,
        sums: Arrays,
        cut: tuple,
        out: Array,
        g: Array,
        g_log_total: Array | None,
        log_total: Array,
    ) -> tuple[Arrays, dict[str, Leaf]]:
        x, here = _block(arrays, fixed, width, *cut)
        weights = masked_weights(jnp.exp(softmax.logits(x, here) - log_total), here.whole_mask(x))
        grads = _stored(softmax.backward(x, here, weights, out, g, g_log_total), fixed)
        _, key = here.first
        rows: dict[str, Leaf] = {name: getattr(grads, name) for name in by_query}
        if "added" in rows:
            rows["added"] = _put(jnp.zeros_like(by_query["added"][0]), rows["added"], key, 3)
        grads = _with(grads, absent)
        by_key = {
            name: jax.tree.map(functools.partial(_put, key=key, axis=axis), x, getattr(grads, name))
            for name, axis in _keys(fixed).items()
            if (x := getattr(sums, name)) is not None
        }
        rest = dict.fromkeys(by_key)
        others = jax.tree.map(jnp.add, _with(sums, rest), _with(grads, rest))
        return _with(others, by_key), rows

    def step(sums: Arrays, block: tuple) -> tuple[Arrays, dict[str, Leaf]]:
        (choice, cut), *rest = block
        return jax.lax.switch(choice, branches, sums, cut, *rest)

    arrays = _stored(arrays, fixed)
    widths = _widths(arrays, fixed)
    branches = [functools.partial(differentiate, width) for width in widths]
    cuts = _by_block(arrays, fixed, widths)
    _, (_, by_query, _) = cuts
    absent = dict.fromkeys(by_query)
    shared = _with(arrays, absent)
    # Sums over many blocks, so in float32 at least, whatever the dtype of the parts.
    zero = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=wide_dtype(x)), shared)
    assert fixed.block is not None
    by_row = [cut_axis(x, fixed.block, 1) for x in (out, g)]
    g_log_total = None if g_log_total is None else cut_axis(g_log_total, fixed.block, 2)
    blocks = cuts, *by_row, g_log_total, log_total
    sums, rows = jax.lax.scan(step, zero, blocks)
    sums = jax.tree.map(lambda x, like: x.astype(like.dtype), sums, shared)
    joined = {
        name: jax.tree.map(
            functools.partial(join_axis, axis=_QUERIES[name], length=fixed.num_queries), x
        )
        for name, x in rows.items()
    }
    return _restored(_with(sums, joined), fixed)


def _stored(x: Arrays, fixed: Fixed) -> Arrays:
    """Queries as [B, H, L, d] and keys as [B, G, d, L], as products take and give them.

    A CPU would lay out arrays [B, L, H, d] again for every block. Of keys from which windows are
    cut, [B, G, L, d], a window is contiguous.
    """
    return _moved(x, fixed, lambda y, axis: jnp.moveaxis(y, 1, axis))


def _restored(x: Arrays, fixed: Fixed) -> Arrays:
    return _moved(x, fixed, lambda y, axis: jnp.moveaxis(y, axis, 1))


def _moved(x: Arrays, fixed: Fixed, move: Callable[[Array, int], Array]) -> Arrays:
    axes = {name: axis for name, axis in (_QUERIES | _keys(fixed)).items() if name in _BY_HEAD}
    arrays = {name: (getattr(x, name), axis) for name, axis in axes.items()}
    return _with(x, {name: move(y, n) for name, (y, n) in arrays.items() if y is not None})


def _keys(fixed: Fixed) -> dict[str, int]:
    return _KEYS_OF_WINDOWS if _window(fixed) else _KEYS


def _num_keys(arrays: Arrays, fixed: Fixed) -> int:
    return arrays.k.shape[_keys(fixed)["k"]]


def _widths(arrays: Arrays, fixed: Fixed) -> tuple[int, ...]:
    """Return the numbers of keys that blocks may meet, the least first."""
    keys = _num_keys(arrays, fixed)
    if window := _window(fixed):
        left, right, _ = window
        assert fixed.block is not None
        return (min(keys, fixed.block + left + right),)
    eighths = _EIGHTHS if fixed.document_ids_k is not None else (8,)
    return tuple(dict.fromkeys(-(-keys * count // 8) for count in eighths))


def _window(fixed: Fixed) -> tuple[int, int, int] | None:
    """Return how many keys before and after itself a query meets, if blocks meet only those, and
    the key at the position of the first query."""
    left, right = fixed.reach or AttentionWindow()
    if left is None or right is None or fixed.ranges is None:
        return None
    queries, keys = fixed.ranges
    return left, right, queries.start - keys.start


def _with(x: Arrays, changes: dict[str, Any]) -> Arrays:
    return Arrays(**{**x._asdict(), **changes})


def _by_block(arrays: Arrays, fixed: Fixed, widths: tuple[int, ...]) -> tuple[Array, tuple]:
    """Cut all that differs between blocks.

    Returns:
      which of `widths` each block has, and the arguments of `_block` after the width.
    """
    block = fixed.block
    assert block is not None

    def cut(x: Leaf, axis: int) -> Leaf:
        # Rows of padding repeat the last query: zeros might be where a function has no derivative.
        return jax.tree.map(lambda x: cut_axis(x, block, axis, "edge"), x)

    by_query = {
        name: cut(x, axis)
        for name, axis in _QUERIES.items()
        if (x := getattr(arrays, name)) is not None and (isinstance(x, tuple) or x.shape[axis] > 1)
    }
    fixed_rows = {
        name: cut(getattr(fixed, name), 1)
        for name in ("query_arrays", "limits_q", "document_ids_q")
    }
    if fixed.positions_q is not None:
        axis = fixed.positions_q.ndim - 1
        fixed_rows["positions_q"] = cut_axis(fixed.positions_q, block, axis)
    if fixed.mask is not None and fixed.mask.shape[2] > 1:
        fixed_rows["mask"] = cut_axis(fixed.mask, block, 2)
    choice, first = _first_keys(arrays, fixed, widths)
    return choice, (first, by_query, fixed_rows)


def _first_keys(
    arrays: Arrays, fixed: Fixed, widths: tuple[int, ...]
) -> tuple[Array, tuple[Array, Array]]:
    """Return which of `widths` each block has, and the numbers of its first query and key."""
    assert fixed.block is not None
    count, keys = -(-fixed.num_queries // fixed.block), _num_keys(arrays, fixed)
    query = jnp.arange(count, dtype=jnp.int32) * fixed.block
    choice = key = jnp.zeros_like(query)
    if window := _window(fixed):
        left, _, start = window
        key = query + start - left
    elif fixed.document_ids_q is not None:
        starts, ends = document_bounds(fixed.document_ids_q)
        real = fixed.document_ids_q > 0
        key = cut_axis(jnp.where(real, starts, keys), fixed.block, 1, "edge").min((1, 2))
        last = cut_axis(jnp.where(real, ends, 0), fixed.block, 1, "edge").max((1, 2))
        choice = jnp.searchsorted(jnp.array(widths), last - key)
    return choice, (query, jnp.clip(key, 0, keys - jnp.array(widths)[choice]))


def _block(
    arrays: Arrays,
    fixed: Fixed,
    width: int,
    first: tuple[Array, Array],
    by_query: dict[str, Leaf],
    fixed_rows: dict[str, Leaf],
) -> tuple[Arrays, Fixed]:
    """A block of queries with the `width` keys from the first one that it meets."""
    arrays, fixed = _with(arrays, by_query), dataclasses.replace(fixed, **fixed_rows)
    query, key = first
    if width == _num_keys(arrays, fixed):
        return _restored(arrays, fixed), dataclasses.replace(fixed, first=(query, 0))

    def near(x: Leaf, axis: int) -> Leaf:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), key, width, axis), x
        )

    by_key = {name: near(getattr(arrays, name), axis) for name, axis in _keys(fixed).items()}
    arrays = _with(arrays, by_key)
    axes = {"key_arrays": 1, "limits_k": 1, "document_ids_k": 1, "mask": 3}
    parts = {name: near(getattr(fixed, name), axis) for name, axis in axes.items()}
    return _restored(arrays, fixed), dataclasses.replace(fixed, **parts, first=first)


def _put(total: Array, x: Array, key: ArrayLike, axis: int) -> Array:
    """Add `x` to the keys of `total` from `key` on."""
    if x.shape[axis] == total.shape[axis]:
        return total + x
    slice_ = jax.lax.dynamic_slice_in_dim(total, key, x.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(total, slice_ + x, key, axis)
