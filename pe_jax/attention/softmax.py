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
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention import dropout
from pe_jax.attention.inputs import repeat_heads
from pe_jax.attention.masks import (
    combine_masks,
    masked_logits,
    masked_weights,
    same_document,
    whole_mask,
)
from pe_jax.attention.naive import evaluated, mapped_logits
from pe_jax.attention.offset_terms import (
    Rotation,
    Tables,
    rotated_logits,
    rotated_values,
    table_logits,
    table_values,
)
from pe_jax.attention.product import head_product
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.shapes import Array, Float, Leaf, Size
from pe_jax.encodings.part import LogitTerms, Params
from pe_jax.encodings.positions import AttentionWindow, offsets

_STATIC = "rate window ranges size num_queries maps position_windows".split()


@dataclasses.dataclass(frozen=True)
class AttentionBlock:
    """Everything that attention of some queries to some keys is computed from: all, or a block.

    A pytree of its arrays. Those of a floating dtype are differentiated, see `partition`. q, k, v,
    sink and window are those of `AttentionInputs`.
    """

    q: Leaf
    k: Leaf
    v: Leaf
    content_q: Leaf  # What vectors meet, where that is not q and k themselves.
    content_k: Leaf
    tables: Tables  # Terms of the offset.
    rotations: tuple[Rotation, ...]
    logit_terms: tuple[
        LogitTerms, ...
    ]  # Other terms, computed anew in the backward pass.
    added: Leaf  # `[#B, #H, #Lq, #Lk]`, to the logits as it is.
    sink: Leaf
    map_params: tuple[Params, ...]
    positions_q: (
        Leaf  # `[L]` or `[B, L]`, where they are no ranges and terms need them.
    )
    positions_k: Leaf
    document_ids_q: Leaf  # `[#B, Lq]` and `[#B, Lk]`, see `Context`, or None.
    document_ids_k: Leaf
    limits_q: tuple[
        Leaf, ...
    ]  # Positions that are no ranges, `[#B, Lq]` and `[#B, Lk]` each.
    limits_k: tuple[Leaf, ...]
    mask: Leaf  # `[B or 1, H or 1, Lq or 1, Lk]`.
    seed: Leaf  # Of dropout, see `dropout.seed`.
    rate: float  # Of dropout.
    window: AttentionWindow | None
    ranges: (
        tuple[range, range] | None
    )  # Positions of queries and keys, where they are ranges.
    size: int  # Queries of a block; 0 takes all at once and saves their weights.
    num_queries: (
        Size  # Before they are cut into blocks, by which dropout numbers its rows.
    )
    maps: tuple[
        Callable[..., jax.Array], ...
    ]  # Of the finished logits, see `Part.map_logits`.
    position_windows: tuple[
        AttentionWindow, ...
    ]  # Over the positions `limits_q` and `limits_k`.
    # Numbers of the first query and key of a block among all; None without blocks.
    first: tuple[Leaf, Leaf] | None = None

    @property
    def shift(self) -> ArrayLike:
        """Position of the first key minus that of the first query, of ranges."""
        assert self.ranges is not None
        query, key = self.first or (0, 0)
        return self.ranges[1].start + key - (self.ranges[0].start + query)

    @property
    def positions(self) -> tuple[Array, Array]:
        """Positions of queries and keys."""
        if self.ranges is None:
            return self.positions_q, self.positions_k
        (range_q, range_k), (query, key) = self.ranges, self.first or (0, 0)
        q = range_q.start + query + np.arange(self.q.shape[1])
        return q, range_k.start + key + np.arange(self.k.shape[1])

    @property
    def offset(self) -> ArrayLike:
        """Offset from queries to keys, as `offset_terms` takes it."""
        return self.shift if self.ranges is not None else offsets(*self.positions)

    @property
    def allowed(self) -> Array | None:
        """The mask, within documents."""
        if self.document_ids_q is None:
            return self.mask
        return combine_masks(
            self.mask, same_document(self.document_ids_q, self.document_ids_k)
        )

    @property
    def whole_mask(self) -> Array | None:
        """The mask, with all windows."""
        position_windows = zip(self.position_windows, self.limits_q, self.limits_k)
        lengths = self.q.shape[1], self.k.shape[1]
        shift = None if self.window is None else self.shift
        return whole_mask(self.allowed, position_windows, self.window, lengths, shift)

    def drop(self, x: Float[Array, "B H Lq Lk"]) -> Array:
        """Dropout of `x`, a row for each query of each head."""
        if self.seed is None:
            return x
        rows, heads, lq, lk = x.shape
        first_query, first_key = (
            jnp.asarray(n, jnp.uint32) for n in self.first or (0, 0)
        )
        head = jax.lax.iota(jnp.uint32, rows * heads).reshape(rows, heads, 1, 1)
        query = jax.lax.iota(jnp.uint32, lq)[:, None] + first_query
        row = head * np.uint32(self.num_queries) + query  # As rows of [B, H, Lq, Lk].
        key = jax.lax.iota(jnp.uint32, lk) + first_key
        mask = dropout.keep(self.seed, row, key, self.rate)
        return jnp.where(mask, x * dropout.scale(self.rate), 0.0)


jax.tree_util.register_dataclass(
    AttentionBlock,
    [
        field.name
        for field in dataclasses.fields(AttentionBlock)
        if field.name not in _STATIC
    ],
    _STATIC,
)


def partition(x: AttentionBlock) -> tuple[AttentionBlock, AttentionBlock]:
    """`x` with nothing but the arrays that are differentiated, and with nothing but the others."""

    def half(inexact: bool) -> AttentionBlock:
        is_inexact = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return jax.tree.map(
            lambda leaf: leaf if is_inexact(leaf) == inexact else None, x
        )

    return half(True), half(False)


def combine(x: AttentionBlock, rest: AttentionBlock) -> AttentionBlock:
    """The arrays of `x`, and in the place of those that it lacks those of `rest`."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, x, rest, is_leaf=lambda a: a is None
    )


def logits(x: AttentionBlock) -> Float[Array, "B H Lq Lk"]:
    """Logits with all terms, masked."""
    return masked_logits(_finished(x.map_params, *_summands(x), x), x.whole_mask)


def _summands(x: AttentionBlock) -> tuple[Array, Array | None]:
    """Products of queries and keys, and what is added to them."""
    content = head_product("bqhd,bkhd->bhqk", x.q, x.k, x.q.shape[2])
    return content, _term_logits(x)


def _finished(
    params: tuple[Params, ...], content: Array, terms: Array | None, x: AttentionBlock
) -> Float[Array, "B H Lq Lk"]:
    """The logits before masks: the sum, or what maps make of it."""
    if not x.maps:
        return content if terms is None else content + terms
    terms = jnp.zeros_like(content) if terms is None else terms
    return mapped_logits(
        [*zip(x.maps, params, strict=True)], content, terms, x.whole_mask
    )


def _term_logits(x: AttentionBlock) -> Float[Array, "B H Lq Lk"] | None:
    """All that is added to q·k, in the dtype of that; None if nothing is."""
    q = x.q if x.content_q is None else x.content_q
    k = x.k if x.content_k is None else x.content_k
    terms = []
    if x.tables.rows:
        k = repeat_heads(k, q.shape[2]) if "queries" in x.tables.rows else k
        terms += table_logits(x.tables, q, k, x.offset)
    terms += [rotated_logits(rotation, q, *x.positions) for rotation in x.rotations]
    if x.added is not None:
        terms.append(x.added)
    terms += [evaluated(each, x.allowed) for each in x.logit_terms]
    if not terms:
        return None
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    return jnp.broadcast_to(sum_of_terms(terms, wide_dtype(x.q, x.k)), shape)


def _term_values(
    x: AttentionBlock, weights: Float[Array, "B H Lq Lk"]
) -> Float[Array, "B Lq H f"] | None:
    """All that is added to weights·v, in the dtype of that; None if nothing is."""
    terms = (
        [table_values(x.tables, weights, x.offset)] if "values" in x.tables.rows else []
    )
    terms += [
        rotated_values(rotation, weights, *x.positions) for rotation in x.rotations
    ]
    return sum_of_terms(terms, wide_dtype(x.v)) if terms else None


def sum_of_terms(terms: Sequence[Array], dtype: np.dtype) -> Array:
    """The sum of terms."""
    return functools.reduce(jnp.add, [x.astype(dtype) for x in terms])


def forward(x: AttentionBlock) -> tuple[Array, Array, Array]:
    """Outputs, weights and the logarithm of the softmax's denominator [B, H, Lq, 1]."""
    masked = logits(x)
    greatest = masked.max(-1, keepdims=True)
    sink = None if x.sink is None else x.sink[:, None, None]
    greatest = greatest if sink is None else jnp.maximum(greatest, sink)
    exp = jnp.exp(masked - greatest)
    total = exp.sum(-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - greatest)
    weights = masked_weights(exp / total, x.whole_mask)
    dropped = x.drop(weights).astype(x.v.dtype)
    out = head_product("bhqk,bkhd->bqhd", dropped, x.v, x.q.shape[2])
    values = _term_values(x, dropped)
    out = out if values is None else out + values
    return out.astype(x.v.dtype), weights, greatest + jnp.log(total)


def backward(
    x: AttentionBlock,
    weights: Array,
    out: Array,
    g: Array,
    g_log_total: Array | None = None,
) -> AttentionBlock:
    """Gradients, from those of the outputs and of the logarithm of the denominator."""
    arrays, rest = partition(x)
    dropped = x.drop(weights).astype(x.v.dtype)
    heads = x.q.shape[2]
    dw = head_product("bqhd,bkhd->bhqk", g, x.v, heads)
    dv = head_product("bqhd,bhqk->bkhd", g, dropped, x.v.shape[2])
    gradients = jax.tree.map(jnp.zeros_like, arrays)
    values, transpose = jax.vjp(
        lambda a, w: _term_values(combine(a, rest), w), arrays, dropped
    )
    if values is not None:
        gradients, dw_more = transpose(g.astype(values.dtype))
        dw += dw_more
    wide = wide_dtype(g)
    inner = (
        (g.astype(wide) * out.astype(wide)).sum(-1).swapaxes(1, 2)[..., None]
    )  # [B, H, Lq, 1]
    if g_log_total is not None:  # Its derivative by the logits is the weights.
        inner = inner - g_log_total
    ds = weights * (x.drop(dw) - inner).astype(weights.dtype)
    if x.sink is not None:  # Its weight is the rest of the others, and its value 0.
        sink_weights = 1 - weights.sum(-1, keepdims=True)
        dsink = -(sink_weights * inner).sum((0, 2, 3))
        gradients = dataclasses.replace(gradients, sink=dsink.astype(x.sink.dtype))
    dterms: Array | None = ds
    if x.maps:
        finished = functools.partial(_finished, x=x)
        _, transpose = jax.vjp(finished, x.map_params, *_summands(x))
        dmaps, ds, dterms = transpose(ds)
        gradients = dataclasses.replace(gradients, map_params=dmaps)
    terms, transpose = jax.vjp(lambda a: _term_logits(combine(a, rest)), arrays)
    if terms is not None:
        gradients = jax.tree.map(jnp.add, gradients, *transpose(dterms))
    ds = ds.astype(x.q.dtype)
    dq = head_product("bhqk,bkhd->bqhd", ds, x.k, heads)
    dk = head_product("bqhd,bhqk->bkhd", x.q, ds, x.k.shape[2])
    return dataclasses.replace(
        gradients,
        q=(dq + gradients.q).astype(x.q.dtype),
        k=(dk + gradients.k).astype(x.k.dtype),
        v=dv.astype(x.v.dtype),
    )
