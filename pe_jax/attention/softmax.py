"""Softmax attention of arrays, and its backward pass; of all queries and keys, or of a block.

The backward pass needs what every flash-style attention needs and no more: with a the weights, w
what dropout leaves of them, g the gradient of the output o = w·v + values(w),

    dw = g·vᵀ + (transpose of values)(g)         ds = a (drop(dw) - sum(g o))

as sum_j w_j dw_j = g·o for whatever is linear in w. Inside the softmax is float32, or float64 where
q or k is (see `dtypes`).

Shapes: B batch, Lq and Lk lengths, H heads of queries, G of keys and values, e and f head sizes of
keys and values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention import dropout
from pe_jax.attention.inputs import repeat_heads
from pe_jax.attention.masks import both, document_mask, masked_logits, masked_weights, whole_mask
from pe_jax.attention.naive import evaluated, mapped_logits
from pe_jax.attention.offset_terms import (
    rotated_logits,
    rotated_values,
    table_logits,
    table_values,
)
from pe_jax.attention.product import head_product
from pe_jax.dtypes import wide_dtype
from pe_jax.encodings.part import LogitTerms
from pe_jax.encodings.positions import AttentionWindow, offsets
from pe_jax.shapes import Array, Float, Size

# An array, or what JAX puts in its place while it builds a tree.
Leaf = Any

TREES = "query_arrays", "key_arrays", "shared"  # Of `LogitTerms`.


class Arrays(NamedTuple):
    """The arrays that are differentiated; None where one is absent.

    Attributes:
      q, k, v: queries are mapped and scaled already.
      content_q, content_k: what vectors meet, where that is not q and k themselves.
      tables: of terms of the offset, see `inputs.tables`.
      rotations: of terms that are sinusoids, see `offset_terms.rotated_logits`.
      added: `[#B, #H, Lq, Lk]`, to the logits as it is.
      sink: `[H]`, logits in the denominator.
      query_arrays, key_arrays, shared: inexact arrays of `LogitTerms`, with None for the others.
      maps: parameters of the maps of the finished logits.
    """

    q: Float[Array, "B Lq H e"]
    k: Float[Array, "B Lk G e"]
    v: Float[Array, "B Lk G f"]
    content_q: Array | None = None
    content_k: Array | None = None
    tables: dict[str, Array] | None = None
    rotations: tuple[dict[str, Array], ...] = ()
    added: Array | None = None
    sink: Array | None = None
    query_arrays: tuple = ()
    key_arrays: tuple = ()
    shared: tuple = ()
    maps: tuple = ()


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "positions_q positions_k document_ids_q document_ids_k mask seed "
        "query_arrays key_arrays shared limits_q limits_k first"
    ).split(),
    meta_fields=(
        "clip rotation_clips rate reach ranges block num_queries functions maps limits"
    ).split(),
)
@dataclasses.dataclass(frozen=True)
class Fixed:
    """The settings and arrays that are not differentiated, of all queries and keys or of a block.

    Attributes:
      clip: of the tables; they have 2·clip + 1 rows.
      rotation_clips: of each rotation; None if no key is beyond it.
      rate: of dropout.
      reach: how far queries attend, over ranges.
      ranges: positions of queries and keys, where they are ranges.
      block: queries at a time; None takes all at once and saves their weights.
      num_queries: before they are cut into blocks, by which dropout numbers its rows.
      functions: of `LogitTerms`, each with arrays at its place in `query_arrays` and so on.
      maps: of the finished logits, see `Part.logit_map`.
      limits: reaches over positions that are no ranges, each with positions at its place in
        `limits_q` `[#B, Lq]` and `limits_k` `[#B, Lk]`.
      positions_q, positions_k: `[L]` or `[B, L]`, where they are no ranges and terms need them.
      document_ids_q, document_ids_k: `[#B, Lq]` and `[#B, Lk]`, see `Context`, or None.
      mask: `[B or 1, H or 1, Lq or 1, Lk]`.
      seed: of dropout, see `dropout.seed`.
      query_arrays, key_arrays, shared: of `LogitTerms`, the arrays that `Arrays` has not.
      first: numbers of the first query and key of a block among all.
    """

    clip: int
    rotation_clips: tuple[int | None, ...]
    rate: float
    reach: AttentionWindow | None
    ranges: tuple[range, range] | None
    block: int | None
    num_queries: Size
    functions: tuple
    maps: tuple
    limits: tuple[AttentionWindow, ...]
    positions_q: Leaf
    positions_k: Leaf
    document_ids_q: Leaf
    document_ids_k: Leaf
    mask: Leaf
    seed: Leaf
    query_arrays: Leaf
    key_arrays: Leaf
    shared: Leaf
    limits_q: Leaf
    limits_k: Leaf
    first: Leaf = None

    @property
    def shift(self) -> ArrayLike:
        """Position of the first key minus that of the first query, of ranges."""
        assert self.ranges is not None
        query, key = self.first or (0, 0)
        return self.ranges[1].start + key - (self.ranges[0].start + query)

    def positions(self, x: Arrays) -> tuple[Array, Array]:
        """Positions of queries and keys."""
        if self.ranges is None:
            return self.positions_q, self.positions_k
        (range_q, range_k), (query, key) = self.ranges, self.first or (0, 0)
        q = range_q.start + query + np.arange(x.q.shape[1])
        return q, range_k.start + key + np.arange(x.k.shape[1])

    def offset(self, x: Arrays) -> ArrayLike:
        """Offset from queries to keys, as `offset_terms` takes it."""
        return self.shift if self.ranges is not None else offsets(*self.positions(x))

    @property
    def allowed(self) -> Array | None:
        """The mask, within documents."""
        if self.document_ids_q is None:
            return self.mask
        return both(self.mask, document_mask(self.document_ids_q, self.document_ids_k))

    def whole_mask(self, x: Arrays) -> Array | None:
        """The mask, with all reaches."""
        limits = zip(self.limits, self.limits_q, self.limits_k)
        lengths = x.q.shape[1], x.k.shape[1]
        return whole_mask(self.allowed, limits, self.reach, lengths, self.reach and self.shift)

    def drop(self, x: Float[Array, "B H Lq Lk"]) -> Array:
        """Dropout of `x`, a row for each query of each head."""
        if self.seed is None:
            return x
        rows, heads, lq, lk = x.shape
        first_query, first_key = (jnp.asarray(n, jnp.uint32) for n in self.first or (0, 0))
        head = jax.lax.iota(jnp.uint32, rows * heads).reshape(rows, heads, 1, 1)
        query = jax.lax.iota(jnp.uint32, lq)[:, None] + first_query
        row = head * np.uint32(self.num_queries) + query  # As rows of [B, H, Lq, Lk].
        key = jax.lax.iota(jnp.uint32, lk) + first_key
        mask = dropout.keep(self.seed, row, key, self.rate)
        return jnp.where(mask, x * dropout.scale(self.rate), 0.0)


def logits(x: Arrays, fixed: Fixed) -> Float[Array, "B H Lq Lk"]:
    """Logits with all terms, masked."""
    content, terms = _summands(x, fixed)
    return masked_logits(_finished(x.maps, content, terms, x, fixed), fixed.whole_mask(x))


def _summands(x: Arrays, fixed: Fixed) -> tuple[Array, Array | None]:
    """Products of queries and keys, and what is added to them."""
    content = head_product("bqhd,bkhd->bhqk", x.q, x.k, x.q.shape[2])
    return content, _term_logits(x, fixed)


def _finished(
    params: tuple, content: Array, terms: Array | None, x: Arrays, fixed: Fixed
) -> Float[Array, "B H Lq Lk"]:
    """The logits before masks: the sum, or what maps make of it."""
    if not fixed.maps:
        return content if terms is None else content + terms
    terms = jnp.zeros_like(content) if terms is None else terms
    maps = [*zip(fixed.maps, params, strict=True)]
    return mapped_logits(maps, content, terms, fixed.whole_mask(x))


def _term_logits(x: Arrays, fixed: Fixed) -> Float[Array, "B H Lq Lk"] | None:
    """All that is added to q·k, in the dtype of that; None if nothing is."""
    q = x.q if x.content_q is None else x.content_q
    k = x.k if x.content_k is None else x.content_k
    terms = []
    if x.tables:
        k = repeat_heads(k, q.shape[2]) if "queries" in x.tables else k
        terms += table_logits(x.tables, fixed.clip, q, k, fixed.offset(x))
    for rotation, clip in zip(x.rotations, fixed.rotation_clips, strict=True):
        terms.append(rotated_logits(rotation, clip, q, *fixed.positions(x)))
    if x.added is not None:
        terms.append(x.added)
    trees = [
        jax.tree.map(
            lambda a, b: b if a is None else a,
            getattr(x, name),
            getattr(fixed, name),
            is_leaf=lambda leaf: leaf is None,
        )
        for name in TREES
    ]
    for function, *arrays in zip(fixed.functions, *trees, strict=True):
        terms.append(evaluated(LogitTerms(function, *arrays), fixed.allowed))
    if not terms:
        return None
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    return jnp.broadcast_to(_sum(terms, wide_dtype(x.q, x.k)), shape)


def _term_values(
    x: Arrays, weights: Float[Array, "B H Lq Lk"], fixed: Fixed
) -> Float[Array, "B Lq H f"] | None:
    """All that is added to weights·v, in the dtype of that; None if nothing is."""
    terms = []
    if x.tables and "values" in x.tables:
        table, offset = x.tables["values"], fixed.offset(x)
        terms.append(table_values(table, fixed.clip, weights, offset))
    for rotation, clip in zip(x.rotations, fixed.rotation_clips, strict=True):
        terms.append(rotated_values(rotation, clip, weights, *fixed.positions(x)))
    return _sum(terms, wide_dtype(x.v)) if terms else None


def _sum(terms: Sequence[Array], dtype: np.dtype) -> Array:
    return functools.reduce(jnp.add, [x.astype(dtype) for x in terms])


def forward(x: Arrays, fixed: Fixed) -> tuple[Array, Array, Array]:
    """Outputs, weights and the logarithm of the softmax's denominator [B, H, Lq, 1]."""
    masked = logits(x, fixed)
    greatest = masked.max(-1, keepdims=True)
    sink = None if x.sink is None else x.sink[:, None, None]
    greatest = greatest if sink is None else jnp.maximum(greatest, sink)
    exp = jnp.exp(masked - greatest)
    total = exp.sum(-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - greatest)
    weights = masked_weights(exp / total, fixed.whole_mask(x))
    dropped = fixed.drop(weights).astype(x.v.dtype)
    out = head_product("bhqk,bkhd->bqhd", dropped, x.v, x.q.shape[2])
    values = _term_values(x, dropped, fixed)
    out = out if values is None else out + values
    return out.astype(x.v.dtype), weights, greatest + jnp.log(total)


def backward(
    x: Arrays, fixed: Fixed, weights: Array, out: Array, g: Array, g_log_total: Array | None = None
) -> Arrays:
    """Gradients.

    Args:
      g, g_log_total: of the outputs, and of the logarithm of the denominator.
    """
    dropped = fixed.drop(weights).astype(x.v.dtype)
    heads = x.q.shape[2]
    dw = head_product("bqhd,bkhd->bhqk", g, x.v, heads)
    dv = head_product("bqhd,bhqk->bkhd", g, dropped, x.v.shape[2])
    gradients = jax.tree.map(jnp.zeros_like, x)
    values, transpose = jax.vjp(lambda x, w: _term_values(x, w, fixed), x, dropped)
    if values is not None:
        gradients, dw_more = transpose(g.astype(values.dtype))
        dw += dw_more
    wide = wide_dtype(g)
    inner = (g.astype(wide) * out.astype(wide)).sum(-1).swapaxes(1, 2)[..., None]  # [B, H, Lq, 1]
    if g_log_total is not None:  # Its derivative by the logits is the weights.
        inner = inner - g_log_total
    ds = weights * (fixed.drop(dw) - inner).astype(weights.dtype)
    if x.sink is not None:  # Its weight is the rest of the others, and its value 0.
        rest = 1 - weights.sum(-1, keepdims=True)
        dsink = -(rest * inner).sum((0, 2, 3))
        gradients = gradients._replace(sink=dsink.astype(x.sink.dtype))
    dterms: Array | None = ds
    if fixed.maps:
        finished = functools.partial(_finished, x=x, fixed=fixed)
        _, transpose = jax.vjp(finished, x.maps, *_summands(x, fixed))
        dmaps, ds, dterms = transpose(ds)
        gradients = gradients._replace(maps=dmaps)
    terms, transpose = jax.vjp(lambda x: _term_logits(x, fixed), x)
    if terms is not None:
        gradients = jax.tree.map(jnp.add, gradients, *transpose(dterms))
    ds = ds.astype(x.q.dtype)
    dq = head_product("bhqk,bkhd->bqhd", ds, x.k, heads)
    dk = head_product("bqhd,bhqk->bkhd", x.q, ds, x.k.shape[2])
    return gradients._replace(
        q=(dq + gradients.q).astype(x.q.dtype),
        k=(dk + gradients.k).astype(x.k.dtype),
        v=dv.astype(x.v.dtype),
    )
