"""Softmax attention with a backward pass of its own, all queries at once or in blocks.

The backward pass needs what every flash-style attention needs and no more: with a the weights, w
what dropout leaves of them, g the gradient of the output o = w·v + values(w),

    dw = g·vᵀ + (transpose of values)(g)         ds = a (drop(dw) - sum(g o))

as sum_j w_j dw_j = g·o for whatever is linear in w. In blocks, a is recomputed from q, k and the
logarithm of the softmax's denominator, and dropout from its counter, so nothing of size Lq·Lk is
saved: memory is linear in the length, forward and backward. With a window, a block of queries meets
the keys within reach of it and no others, so time is linear as well.

Shapes: B batch, Lq and Lk lengths, H heads, e and f head sizes of keys and values. float32 inside
the softmax, whatever the dtype of q, k and v.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention import dropout as dropouts
from pe_jax.attention.masks import both, masked_logits, masked_weights, reach_mask
from pe_jax.attention.offset_terms import (
    How,
    Terms,
    Where,
    adds_logits,
    adds_values,
    term_logits,
    term_values,
)
from pe_jax.attention.product import product
from pe_jax.encodings.positions import Reach
from pe_jax.shapes import Array, Float


class Setting(NamedTuple):
    """What is known while compiling.

    Attributes:
      how: forms of the terms.
      rate: of dropout.
      ranges: positions of queries and keys, where they are ranges.
      reach: how far queries attend, over ranges.
      block: queries at a time; None takes all at once and saves their weights.
    """

    how: How
    rate: float
    ranges: tuple[range, range] | None
    reach: Reach | None
    block: int | None


class Operand(NamedTuple):
    """What gradients flow to."""

    q: Float[Array, "B Lq H e"]
    k: Float[Array, "B Lk H e"]
    v: Float[Array, "B Lk H f"]
    terms: Terms


class Given(NamedTuple):
    """What is not differentiated; None for what is not there.

    Attributes:
      positions_q, positions_k: `[L]` or `[B, L]`, where they are no ranges.
      mask: `[B or 1, H or 1, Lq or 1, Lk]`.
      seed: of dropout, see `dropout.seed`.
    """

    positions_q: Array | None
    positions_k: Array | None
    mask: Array | None
    seed: Array | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(setting: Setting, operand: Operand, given: Given) -> Float[Array, "B Lq H f"]:
    """Attention of queries that are mapped and scaled already."""
    return _attend_forward(setting, operand, given)[0]


def _attend_forward(setting, operand, given):
    out, saved = (_whole if _is_whole(setting, operand) else _in_blocks)(setting, operand, given)
    return out, (operand, given, out, saved)


def _attend_backward(setting, residuals, g):
    operand, given, out, saved = residuals
    whole = _is_whole(setting, operand)
    backward = _whole_backward if whole else _in_blocks_backward
    return backward(setting, operand, given, out, saved, g), None


attend.defvjp(_attend_forward, _attend_backward)


def _is_whole(setting: Setting, operand: Operand) -> bool:
    return setting.block is None or setting.block >= operand.q.shape[1]


# --- some queries and some keys -------------------------------------------------------------------


class _Span(NamedTuple):
    """A block of queries and its keys: all that a formula needs beside `Setting`.

    Attributes:
      given: the positions, mask and seed of these.
      query, key: numbers of the first ones among all.
      rows: how many queries a head has in all, for dropout.
    """

    given: Given
    query: ArrayLike
    key: ArrayLike
    rows: int

    def where(self, setting: Setting, operand: Operand) -> Where:
        if setting.ranges is None:
            return Where(self.given.positions_q, self.given.positions_k, None)
        firsts = setting.ranges[0].start + self.query, setting.ranges[1].start + self.key
        counts = operand.q.shape[1], operand.k.shape[1]
        q, k = (first + np.arange(count) for first, count in zip(firsts, counts, strict=True))
        return Where(q, k, firsts[1] - firsts[0])

    def mask(self, setting: Setting, operand: Operand) -> Array | None:
        """The mask, with the reach."""
        if setting.reach is None:
            return self.given.mask
        shift = self.where(setting, operand).shift
        assert shift is not None  # A reach comes with ranges.
        near = reach_mask(setting.reach, operand.q.shape[1], operand.k.shape[1], shift)
        return both(self.given.mask, near)

    def drop(self, rate: float, x: Float[Array, "B H Lq Lk"]) -> Array:
        """Dropout of `x`, a row for each query of each head."""
        if self.given.seed is None:
            return x
        rows, heads, lq, lk = x.shape
        head = jax.lax.iota(jnp.uint32, rows * heads).reshape(rows, heads, 1, 1)
        query = jax.lax.iota(jnp.uint32, lq)[:, None] + jnp.asarray(self.query, jnp.uint32)
        row = head * np.uint32(self.rows) + query  # As `dropout` numbers rows of [B, H, Lq, Lk].
        key = jax.lax.iota(jnp.uint32, lk) + jnp.asarray(self.key, jnp.uint32)
        return jnp.where(
            dropouts.keep(self.given.seed, row, key, rate), x * dropouts.scale(rate), 0.0
        )


def _logits(setting: Setting, operand: Operand, part: _Span) -> Float[Array, "B H Lq Lk"]:
    q, k, _, terms = operand
    logits = product("bqhd,bkhd->bhqk", q, k)
    if adds_logits(terms):
        logits += term_logits(setting.how, terms, q, k, part.where(setting, operand))
    return masked_logits(logits, part.mask(setting, operand))


def _forward(setting: Setting, operand: Operand, part: _Span) -> tuple[Array, Array, Array]:
    """Outputs, weights and the logarithm of the softmax's denominator [B, H, Lq, 1]."""
    logits = _logits(setting, operand, part)
    greatest = logits.max(-1, keepdims=True)
    exp = jnp.exp(logits - greatest)
    total = exp.sum(-1, keepdims=True)
    weights = masked_weights(exp / total, part.mask(setting, operand))
    v, terms = operand.v, operand.terms
    kept = part.drop(setting.rate, weights).astype(v.dtype)
    out = product("bhqk,bkhd->bqhd", kept, v)
    if adds_values(terms):
        out += term_values(setting.how, terms, kept, part.where(setting, operand))
    return out.astype(v.dtype), weights, greatest + jnp.log(total)


def _backward(
    setting: Setting, operand: Operand, part: _Span, weights: Array, out: Array, g: Array
) -> Operand:
    """Gradients."""
    q, k, v, terms = operand
    where, how = part.where(setting, operand), setting.how
    kept = part.drop(setting.rate, weights).astype(v.dtype)
    dw = product("bqhd,bkhd->bhqk", g, v)
    dv = product("bhqk,bqhd->bkhd", kept, g)
    dterms = jax.tree.map(jnp.zeros_like, terms)
    if adds_values(terms):
        _, transpose = jax.vjp(lambda t, w: term_values(how, t, w, where), terms, kept)
        more, dw_more = transpose(g.astype(jnp.float32))
        dterms, dw = jax.tree.map(jnp.add, dterms, more), dw + dw_more
    inner = (g * out).astype(jnp.float32).sum(-1).swapaxes(1, 2)[..., None]  # [B, H, Lq, 1]
    ds = weights * (part.drop(setting.rate, dw) - inner)
    dlogits, ds = ds, ds.astype(q.dtype)
    dq = product("bhqk,bkhd->bqhd", ds, k)
    dk = product("bhqk,bqhd->bkhd", ds, q)
    if adds_logits(terms):
        _, transpose = jax.vjp(lambda t, q, k: term_logits(how, t, q, k, where), terms, q, k)
        more, dq_more, dk_more = transpose(dlogits)
        dterms = jax.tree.map(jnp.add, dterms, more)
        dq, dk = dq + dq_more, dk + dk_more
    return Operand(dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dterms)


# --- all queries at once: the weights are saved, quicker where they fit ---------------------------


def _whole(setting, operand, given):
    out, weights, _ = _forward(setting, operand, _all(operand, given))
    return out, weights


def _whole_backward(setting, operand, given, out, weights, g):
    return _backward(setting, operand, _all(operand, given), weights, out, g)


def _all(operand: Operand, given: Given) -> _Span:
    return _Span(given, 0, 0, operand.q.shape[1])


# --- in blocks: outputs and one number a query are saved, the weights recomputed ------------------


class _ByQuery(NamedTuple):
    """What a block has its own rows of. `added` is here unless all queries share a row of it."""

    q: Array
    content: Array | None
    added: Array | None


class _Shared(NamedTuple):
    """What all blocks share."""

    k: Array
    v: Array
    terms: Terms


def _in_blocks(setting, operand, given):
    def one(_, block):
        number, rows, masked = block
        cut, part = _block(setting, shared, rows, given, number, masked, operand.q.shape[1])
        out, _, log_total = _forward(setting, cut, part)
        return None, (out, log_total)

    rows, shared = _apart(operand)
    _, (out, log_total) = jax.lax.scan(one, None, _numbered(setting, rows, given))
    return _join(out, 1, operand.q.shape[1]), log_total


def _in_blocks_backward(setting, operand, given, out, log_total, g):
    def one(sums, block):
        (number, rows, masked), out, g, log_total = block
        cut, part = _block(setting, shared, rows, given, number, masked, operand.q.shape[1])
        weights = jnp.exp(_logits(setting, cut, part) - log_total)
        weights = masked_weights(weights, part.mask(setting, cut))
        drows, more = _apart(_backward(setting, cut, part, weights, out, g))
        if drows.added is not None:
            drows = drows._replace(added=_put(jnp.zeros_like(rows.added), drows.added, part.key, 3))
        return _summed(sums, more, part.key), drows

    rows, shared = _apart(operand)
    # Sums over many blocks, so in float32 whatever the dtype of the parts.
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shared)
    cut = _blocks(out, setting.block), _blocks(g, setting.block), log_total
    sums, drows = jax.lax.scan(one, zero, (_numbered(setting, rows, given), *cut))
    sums = jax.tree.map(lambda x, like: x.astype(like.dtype), sums, shared)
    lq = operand.q.shape[1]
    drows = _ByQuery(_join(drows.q, 1, lq), _join(drows.content, 1, lq), _join(drows.added, 2, lq))
    terms = sums.terms._replace(content_q=drows.content)
    if drows.added is not None:
        terms = terms._replace(added=drows.added)
    return Operand(drows.q, sums.k, sums.v, terms)


def _apart(operand: Operand) -> tuple[_ByQuery, _Shared]:
    q, k, v, terms = operand
    added = None if terms.added is None or terms.added.shape[2] == 1 else terms.added
    rest = terms._replace(content_q=None, added=terms.added if added is None else None)
    return _ByQuery(q, terms.content_q, added), _Shared(k, v, rest)


class _Masked(NamedTuple):
    """What of `Given` a block has its own rows of."""

    positions_q: Array | None
    mask: Array | None


def _numbered(setting: Setting, rows: _ByQuery, given: Given) -> tuple[Array, _ByQuery, _Masked]:
    """Blocks of queries in front, and their numbers."""
    assert setting.block is not None
    cut = functools.partial(_blocks, block=setting.block)
    at = given.positions_q
    own_rows = given.mask is not None and given.mask.shape[2] > 1
    masked = _Masked(
        None if at is None else cut(at, axis=at.ndim - 1, mode="edge"),
        cut(given.mask, axis=2) if own_rows else None,
    )
    rows = _ByQuery(cut(rows.q), cut(rows.content), cut(rows.added, axis=2))
    return jnp.arange(len(rows.q), dtype=jnp.int32), rows, masked


def _block(
    setting: Setting,
    shared: _Shared,
    rows: _ByQuery,
    given: Given,
    number: Array,
    masked: _Masked,
    lq: int,
) -> tuple[Operand, _Span]:
    """A block of queries with the keys that it can reach."""
    assert setting.block is not None
    k, v, terms = shared
    query = number * setting.block
    key: ArrayLike = 0
    terms = terms._replace(content_q=rows.content)
    terms = terms if rows.added is None else terms._replace(added=rows.added)
    mask = given.mask if masked.mask is None else masked.mask
    left, right = setting.reach or Reach()
    if left is not None and right is not None and setting.ranges is not None:
        width = min(k.shape[1], setting.block + left + right)
        first = query + setting.ranges[0].start - setting.ranges[1].start - left
        key = jnp.clip(first, 0, k.shape[1] - width)
        some = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, key, width, axis)
        k, v = some(k, 1), some(v, 1)
        mask = None if mask is None else some(mask, 3)
        content = None if terms.content_k is None else some(terms.content_k, 1)
        added = None if terms.added is None else some(terms.added, 3)
        terms = terms._replace(content_k=content, added=added)
    positions_q = given.positions_q if masked.positions_q is None else masked.positions_q
    part = _Span(given._replace(positions_q=positions_q, mask=mask), query, key, lq)
    return Operand(rows.q, k, v, terms), part


def _summed(sums: _Shared, more: _Shared, key: ArrayLike) -> _Shared:
    """Adds the gradients of a block, whose keys begin at `key`."""
    put = lambda total, x, axis: None if total is None else _put(total, x, key, axis)
    rest = lambda terms: terms._replace(content_k=None, added=None)
    terms = jax.tree.map(jnp.add, rest(sums.terms), rest(more.terms))
    return _Shared(
        put(sums.k, more.k, 1),
        put(sums.v, more.v, 1),
        terms._replace(
            content_k=put(sums.terms.content_k, more.terms.content_k, 1),
            added=put(sums.terms.added, more.terms.added, 3),
        ),
    )


def _put(total: Array, x: Array, key: ArrayLike, axis: int) -> Array:
    """Adds `x` to the keys of `total` from `key` on."""
    if x.shape[axis] == total.shape[axis]:
        return total + x
    here = jax.lax.dynamic_slice_in_dim(total, key, x.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(total, here + x, key, axis)


def _blocks(x: Array | None, block: int, axis: int = 1, mode: str = "constant") -> Array | None:
    """Blocks of an axis in front: `[B, L, ...] -> [N, B, block, ...]`, the last one padded."""
    if x is None:
        return None
    count = -(-x.shape[axis] // block)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, count * block - x.shape[axis])
    x = jnp.pad(x, pad, mode=mode)
    parts = x.reshape(*x.shape[:axis], count, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def _join(parts: Array | None, axis: int, length: int) -> Array | None:
    """Blocks in front to one axis again: `[N, B, block, ...] -> [B, length, ...]`."""
    if parts is None:
        return None
    x = jnp.moveaxis(parts, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)
