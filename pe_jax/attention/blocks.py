"""Attention in blocks of queries, whose weights the backward pass computes again.

Outputs and one number a query are saved: the logarithm of the softmax's denominator. The weights
are recomputed from it, q and k, and dropout from its counter, so nothing of size Lq·Lk is saved and
memory is linear in the length, forward and backward. Terms of hooks (`LogitTerms`) and maps of the
finished logits are computed for a block of queries at a time as well. With a window, a block of
queries meets the keys within reach of it and no others, so time is linear as well.

With segments, blocks of a row may need few keys, each row others. So each block of each row is
computed by itself (`Fixed.rows`), with a quarter, half or all of the keys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.attention import softmax
from pe_jax.attention.masks import masked_weights, segment_bounds
from pe_jax.attention.softmax import Arrays, Fixed, Leaf
from pe_jax.encodings.positions import Reach
from pe_jax.shapes import Array

Result = TypeVar("Result")

# The axes of queries and of keys.
_QUERIES = {"q": 1, "content_q": 1, "added": 2, "of_queries": 1}
_KEYS = {"k": 1, "v": 1, "content_k": 1, "added": 3, "of_keys": 1}


class Cuts(NamedTuple):
    """Blocks in front: arrays `[N, B, ...]`, or `[N·B, 1, ...]` by row.

    Attributes:
      number: of each block, `[N]`, from 0.
      keys: the first key of its segments and one past the last one, `[N]`; None if not by row.
      arrays: fields of `Arrays` that differ between blocks.
      fixed: fields of `Fixed` that do.
    """

    number: Array
    keys: tuple[Array, Array] | None
    arrays: dict[str, Leaf]
    fixed: dict[str, Leaf]


def forward(arrays: Arrays, fixed: Fixed) -> tuple[Array, Array]:
    """Outputs, and the logarithms of the softmax's denominators by block."""

    def attend(_: None, cut: Cuts) -> tuple[None, tuple[Array, Array]]:
        def run(width: int | None) -> tuple[Array, Array]:
            out, _, log_total = softmax.forward(*_block(arrays, fixed, cut, width))
            return out, log_total

        return None, _narrowest(run, cut, arrays.k.shape[1])

    _, (out, log_total) = jax.lax.scan(attend, None, _by_block(arrays, fixed))
    return _join(out, 1, fixed.num_queries, fixed.rows), log_total


def backward(arrays: Arrays, fixed: Fixed, log_total: Array, out: Array, g: Array) -> Arrays:
    """Gradients."""

    def differentiate(sums: Arrays, block: tuple) -> tuple[Arrays, dict[str, Leaf]]:
        cut, out, g, log_total = block

        def run(width: int | None) -> tuple[Arrays, dict[str, Leaf]]:
            x, here = _block(arrays, fixed, cut, width)
            weights = jnp.exp(softmax.logits(x, here) - log_total)
            weights = masked_weights(weights, here.whole_mask(x))
            grads = softmax.backward(x, here, weights, out, g)
            row, _, key = here.first
            rows: dict[str, Leaf] = {name: getattr(grads, name) for name in cuts.arrays}
            if "added" in rows:
                zeros = jnp.zeros_like(cut.arrays["added"])
                rows["added"] = _put(zeros, rows["added"], (0, key), 3)
            grads = _with(grads, absent)
            by_key = {
                name: jax.tree.map(
                    functools.partial(_put, first=(row, key), axis=axis), x, getattr(grads, name)
                )
                for name, axis in _KEYS.items()
                if (x := getattr(sums, name)) is not None
            }
            rest = dict.fromkeys(by_key)
            others = jax.tree.map(jnp.add, _with(sums, rest), _with(grads, rest))
            return _with(others, by_key), rows

        return _narrowest(run, cut, arrays.k.shape[1])

    cuts = _by_block(arrays, fixed)
    absent = dict.fromkeys(cuts.arrays)
    shared = _with(arrays, absent)
    # Sums over many blocks, so in float32 whatever the dtype of the parts.
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shared)
    blocks = cuts, _cut(out, fixed, 1), _cut(g, fixed, 1), log_total
    sums, rows = jax.lax.scan(differentiate, zero, blocks)
    sums = jax.tree.map(lambda x, like: x.astype(like.dtype), sums, shared)

    def joined(name: str, x: Array, like: Array) -> Array:
        x = _join(x, _QUERIES[name], fixed.num_queries, fixed.rows)
        return x if len(x) == len(like) else x.sum(0, keepdims=True)

    whole = {
        name: jax.tree.map(functools.partial(joined, name), x, getattr(arrays, name))
        for name, x in rows.items()
    }
    return _with(sums, whole)


def _narrowest(run: Callable[[int | None], Result], cut: Cuts, keys: int) -> Result:
    """`run` with the fewest of some numbers of keys that a block needs."""
    if cut.keys is None:
        return run(None)
    first, end = cut.keys
    widths = sorted({-(-keys // n) for n in (4, 2, 1)})
    index = jnp.sum(end - first > jnp.array(widths[:-1]))
    return jax.lax.switch(index, [functools.partial(run, width) for width in widths])


def _with(x: Arrays, changes: dict[str, Any]) -> Arrays:
    return Arrays(**{**x._asdict(), **changes})


def _by_block(arrays: Arrays, fixed: Fixed) -> Cuts:
    """The blocks, in order of their queries and then of their rows."""

    def cut(x: Leaf, axis: int) -> Leaf:
        # Rows of padding repeat the last query: zeros might be where a function has no derivative.
        return jax.tree.map(lambda x: _cut(x, fixed, axis, "edge"), x)

    by_query = {
        name: cut(x, axis)
        for name, axis in _QUERIES.items()
        if (x := getattr(arrays, name)) is not None and (isinstance(x, tuple) or x.shape[axis] > 1)
    }
    names = "of_queries", "limits_q", "segments_q"
    fixed_rows = {name: cut(getattr(fixed, name), 1) for name in names}
    if fixed.positions_q is not None:
        axis = fixed.positions_q.ndim - 1
        fixed_rows["positions_q"] = _cut(fixed.positions_q, fixed, axis)
    if fixed.mask is not None and fixed.mask.shape[2] > 1:
        fixed_rows["mask"] = _cut(fixed.mask, fixed, 2)
    keys = None
    if fixed.rows is not None:
        starts, ends = segment_bounds(fixed.segments_q)
        real = fixed.segments_q > 0
        starts, ends = jnp.where(real, starts, starts.shape[1]), jnp.where(real, ends, 0)
        keys = cut(starts, 1).min((1, 2)), cut(ends, 1).max((1, 2))
    number = jnp.arange(len(by_query["q"]), dtype=jnp.int32)
    return Cuts(number, keys, by_query, fixed_rows)


def _block(arrays: Arrays, fixed: Fixed, cut: Cuts, width: int | None) -> tuple[Arrays, Fixed]:
    """A block of queries with the keys that it can reach.

    Args:
      width: how many keys from `cut.keys` on; None lets the reach decide.
    """
    arrays, fixed = _with(arrays, cut.arrays), dataclasses.replace(fixed, **cut.fixed)
    assert fixed.block is not None
    row, number = (
        (0, cut.number)
        if fixed.rows is None
        else (cut.number % fixed.rows, cut.number // fixed.rows)
    )
    query, mask, keys = number * fixed.block, fixed.mask, arrays.k.shape[1]
    key: ArrayLike = 0
    left, right = fixed.reach or Reach()
    if width is not None and cut.keys is not None:
        key = jnp.clip(cut.keys[0], 0, keys - width)
    elif left is not None and right is not None and fixed.ranges is not None:
        width = min(keys, fixed.block + left + right)
        first = query + fixed.ranges[0].start - fixed.ranges[1].start - left
        key = jnp.clip(first, 0, keys - width)
    if width is not None:

        def near(x: Leaf, axis: int) -> Leaf:
            return jax.tree.map(lambda x: _slice(jnp.asarray(x), axis), x)

        def _slice(x: Array, axis: int) -> Array:
            if fixed.rows is not None and len(x) > 1:
                x = jax.lax.dynamic_slice_in_dim(x, row, 1, 0)
            return jax.lax.dynamic_slice_in_dim(x, key, width, axis)

        by_key = {name: near(getattr(arrays, name), axis) for name, axis in _KEYS.items()}
        arrays = _with(arrays, by_key)
        of_keys = {
            name: near(getattr(fixed, name), 1) for name in ("of_keys", "limits_k", "segments_k")
        }
        fixed = dataclasses.replace(fixed, **of_keys)
        mask = near(mask, 3)
    return arrays, dataclasses.replace(fixed, mask=mask, first=(row, query, key))


def _put(total: Array, x: Array, first: tuple[ArrayLike, ArrayLike], axis: int) -> Array:
    """Add `x` to the rows and keys of `total` from `first` on."""
    if x.shape == total.shape:
        return total + x
    start: list[ArrayLike] = [0] * x.ndim
    start[0], start[axis] = first
    slice_ = jax.lax.dynamic_slice(total, start, x.shape)
    return jax.lax.dynamic_update_slice(total, slice_ + x, start)


def _cut(x: Array, fixed: Fixed, axis: int, mode: str = "constant") -> jax.Array:
    """Blocks in front, of all rows or of one row each, see `Cuts`."""
    parts = _blocks(x, fixed.block, axis, mode)
    if fixed.rows is None:
        return parts
    parts = jnp.broadcast_to(parts, (len(parts), fixed.rows, *parts.shape[2:]))
    return parts.reshape(-1, 1, *parts.shape[2:])


def _blocks(x: Array, block: int | None, axis: int, mode: str = "constant") -> jax.Array:
    """Blocks of an axis in front: `[B, L, ...] -> [N, B, block, ...]`, the last one padded."""
    assert block is not None
    count = -(-x.shape[axis] // block)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, count * block - x.shape[axis])
    parts = jnp.pad(x, pad, mode).reshape(*x.shape[:axis], count, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def _join(parts: Array, axis: int, length: int, rows: int | None = None) -> jax.Array:
    """Blocks in front to one axis again: `[N, B, block, ...] -> [B, length, ...]`.

    Args:
      rows: B of parts `[N·B, 1, block, ...]`.
    """
    parts = parts if rows is None else parts.reshape(-1, rows, *parts.shape[2:])
    x = jnp.moveaxis(parts, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)
