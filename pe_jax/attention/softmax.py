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
from pe_jax.attention.inputs import AddedLogits, evaluated, repeat_heads
from pe_jax.attention.masks import Masks, masked_logits, masked_weights
from pe_jax.attention.naive import mapped_logits
from pe_jax.attention.offset_terms import (
    Rotation,
    Tables,
    rotated_logits,
    rotated_values,
    table_logits,
    table_values,
)
from pe_jax.attention.token_axes import PerToken, axes
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.product import head_product
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Leaf, Size
from pe_jax.encodings.part import Params
from pe_jax.encodings.positions import offsets


class OffsetArrays(Record, pytree=True):
    """Terms of the offset as arrays, and what they meet; see `offset_terms`.

    Attributes:
      content: queries and keys that vectors meet, `[B, L, H, d]`; None where these are q and k
        themselves, or where no vector meets them.
      positions: `[L]` or `[B, L]`, where they are no ranges and terms need them.
    """

    tables: Tables
    rotations: tuple[Rotation, ...]
    content: PerToken
    positions: PerToken


class LogitMaps(Record, pytree=True, static=("functions",)):
    """Maps of the finished logits, see `Part.map_logits`, each with its parameters."""

    functions: tuple[Callable[..., jax.Array], ...]
    params: tuple[Params, ...]


class WeightDropout(Record, pytree=True, static=("rate",)):
    """Dropout of the weights, see `dropout.keep`; without a seed there is none."""

    seed: Leaf
    rate: float


class Place(Record, pytree=True, static=("ranges", "num_queries", "block_size")):
    """Where the queries and keys of a block are among all of them.

    Attributes:
      ranges: positions of all queries and of all keys, where they are ranges.
      num_queries: number of all queries, by which dropout numbers its rows.
      block_size: queries of a block; 0 takes all at once and saves their weights.
      first: numbers of the first query and the first key; None without blocks.
    """

    ranges: tuple[range, range] | None
    num_queries: Size
    block_size: int
    first: tuple[Leaf, Leaf] | None = None

    @property
    def start(self) -> tuple[ArrayLike, ArrayLike]:
        """Numbers of the first query and the first key."""
        return (0, 0) if self.first is None else self.first

    @property
    def shift(self) -> ArrayLike | None:
        """The first key's position minus the first query's; None where they are no ranges."""
        if self.ranges is None:
            return None
        queries, keys = self.ranges
        query, key = self.start
        return keys.start + key - (queries.start + query)


class AttentionBlock(Record, pytree=True):
    """Everything that attention of some queries to some keys is computed from: all, or a block.

    A pytree of its arrays. Those of a floating dtype are differentiated, see `partition`. q, k, v,
    sink, added and masks are those of `AttentionInputs`. Fields declare which axes are queries and
    keys, see `token_axes`.
    """

    q: Leaf = dataclasses.field(metadata=axes(queries=1))
    k: Leaf = dataclasses.field(metadata=axes(keys=1))
    v: Leaf = dataclasses.field(metadata=axes(keys=1))
    offset_arrays: OffsetArrays
    added: AddedLogits
    maps: LogitMaps
    sink: Leaf
    masks: Masks
    dropout: WeightDropout
    place: Place

    @property
    def positions(self) -> tuple[Array, Array]:
        """Positions of queries and keys."""
        if self.place.ranges is None:
            positions = self.offset_arrays.positions
            return positions.queries, positions.keys
        range_q, range_k = self.place.ranges
        query, key = self.place.start
        q = range_q.start + query + np.arange(self.q.shape[1])
        return q, range_k.start + key + np.arange(self.k.shape[1])

    @property
    def offset(self) -> ArrayLike:
        """Offset from queries to keys, as `offset_terms` takes it."""
        shift = self.place.shift
        return offsets(*self.positions) if shift is None else shift

    @property
    def whole_mask(self) -> Array | None:
        """One mask of everything that keeps queries from keys."""
        lengths = self.q.shape[1], self.k.shape[1]
        shift = None if self.masks.window is None else self.place.shift
        return self.masks.whole(lengths, shift)

    def drop(self, x: Float[Array, "B H Lq Lk"]) -> Array:
        """Dropout of `x`, a row for each query of each head."""
        seed = self.dropout.seed
        if seed is None:
            return x
        rate = self.dropout.rate
        rows, heads, queries, keys = x.shape
        first_query, first_key = (jnp.asarray(n, jnp.uint32) for n in self.place.start)
        head = jax.lax.iota(jnp.uint32, rows * heads).reshape(rows, heads, 1, 1)
        query = jax.lax.iota(jnp.uint32, queries)[:, None] + first_query
        # As rows of [B, H, Lq, Lk].
        row = head * np.uint32(self.place.num_queries) + query
        key = jax.lax.iota(jnp.uint32, keys) + first_key
        mask = dropout.keep(seed, row, key, rate)
        return jnp.where(mask, x * dropout.scale(rate), 0.0)


def partition(x: AttentionBlock) -> tuple[AttentionBlock, AttentionBlock]:
    """`x` with nothing but the arrays that are differentiated, and with nothing but the others."""

    def is_inexact(leaf: Leaf) -> bool:
        return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)

    inexact = jax.tree.map(lambda leaf: leaf if is_inexact(leaf) else None, x)
    others = jax.tree.map(lambda leaf: None if is_inexact(leaf) else leaf, x)
    return inexact, others


def combine(x: AttentionBlock, rest: AttentionBlock) -> AttentionBlock:
    """The arrays of `x`, and in the place of those that it lacks those of `rest`."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, x, rest, is_leaf=lambda a: a is None
    )


def logits(x: AttentionBlock) -> Float[Array, "B H Lq Lk"]:
    """Logits with all terms, masked."""
    content, terms = _summands(x)
    mask = x.whole_mask
    return masked_logits(_finished(x.maps, content, terms, mask), mask)


def _summands(x: AttentionBlock) -> tuple[Array, Array | None]:
    """Products of queries and keys, and what is added to them."""
    content = head_product("bqhd,bkhd->bhqk", x.q, x.k, x.q.shape[2])
    return content, _term_logits(x)


def _finished(
    maps: LogitMaps, content: Array, terms: Array | None, mask: Array | None
) -> Float[Array, "B H Lq Lk"]:
    """The logits before masks: the sum, or what maps make of it."""
    if not maps.functions:
        return content if terms is None else content + terms
    if terms is None:
        terms = jnp.zeros_like(content)
    functions = [*zip(maps.functions, maps.params, strict=True)]
    return mapped_logits(functions, content, terms, mask)


def _term_logits(x: AttentionBlock) -> Float[Array, "B H Lq Lk"] | None:
    """All that is added to q·k, in the dtype of that; None if nothing is."""
    tables = x.offset_arrays.tables
    content = x.offset_arrays.content
    q = x.q if content.queries is None else content.queries
    k = x.k if content.keys is None else content.keys
    terms = []
    if not tables.is_empty:
        if tables.query_vectors is not None:
            k = repeat_heads(k, q.shape[2])
        terms += table_logits(tables, q, k, x.offset)
    for rotation in x.offset_arrays.rotations:
        terms.append(rotated_logits(rotation, q, *x.positions))
    if x.added.array is not None:
        terms.append(x.added.array)
    terms += [evaluated(each, x.masks.allowed) for each in x.added.terms]
    if not terms:
        return None
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    return jnp.broadcast_to(sum_of_terms(terms, wide_dtype(x.q, x.k)), shape)


def _term_values(
    x: AttentionBlock, weights: Float[Array, "B H Lq Lk"]
) -> Float[Array, "B Lq H f"] | None:
    """All that is added to weights·v, in the dtype of that; None if nothing is."""
    tables = x.offset_arrays.tables
    terms = []
    if tables.value_vectors is not None:
        terms.append(table_values(tables, weights, x.offset))
    for rotation in x.offset_arrays.rotations:
        terms.append(rotated_values(rotation, weights, *x.positions))
    return sum_of_terms(terms, wide_dtype(x.v)) if terms else None


def sum_of_terms(terms: Sequence[Array], dtype: np.dtype) -> Array:
    """The sum of terms."""
    return functools.reduce(jnp.add, [x.astype(dtype) for x in terms])


def forward(x: AttentionBlock) -> tuple[Array, Array, Array]:
    """Outputs, weights and the logarithm of the softmax's denominator [B, H, Lq, 1]."""
    masked = logits(x)
    greatest = masked.max(-1, keepdims=True)
    if x.sink is None:
        exp = jnp.exp(masked - greatest)
        total = exp.sum(-1, keepdims=True)
    else:
        sink = x.sink[:, None, None]
        greatest = jnp.maximum(greatest, sink)
        exp = jnp.exp(masked - greatest)
        total = exp.sum(-1, keepdims=True) + jnp.exp(sink - greatest)
    weights = masked_weights(exp / total, x.whole_mask)
    dropped = x.drop(weights).astype(x.v.dtype)
    out = head_product("bhqk,bkhd->bqhd", dropped, x.v, x.q.shape[2])
    values = _term_values(x, dropped)
    if values is not None:
        out = out + values
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

    def term_values(arrays: AttentionBlock, weights: Array) -> Array | None:
        return _term_values(combine(arrays, rest), weights)

    values, transpose = jax.vjp(term_values, arrays, dropped)
    if values is not None:
        gradients, dw_more = transpose(g.astype(values.dtype))
        dw += dw_more
    wide = wide_dtype(g)
    products = (g.astype(wide) * out.astype(wide)).sum(-1)  # [B, Lq, H]
    inner = products.swapaxes(1, 2)[..., None]
    if g_log_total is not None:  # Its derivative by the logits is the weights.
        inner = inner - g_log_total
    ds = weights * (x.drop(dw) - inner).astype(weights.dtype)
    if x.sink is not None:  # Its weight is the rest of the others, and its value 0.
        sink_weights = 1 - weights.sum(-1, keepdims=True)
        dsink = -(sink_weights * inner).sum((0, 2, 3))
        gradients = gradients.replace(sink=dsink.astype(x.sink.dtype))
    dterms: Array | None = ds
    if x.maps.functions:
        finished = functools.partial(_finished, mask=x.whole_mask)
        _, transpose = jax.vjp(finished, x.maps, *_summands(x))
        dmaps, ds, dterms = transpose(ds)
        gradients = gradients.replace(maps=dmaps)
    terms, transpose = jax.vjp(lambda a: _term_logits(combine(a, rest)), arrays)
    if terms is not None:
        gradients = jax.tree.map(jnp.add, gradients, *transpose(dterms))
    ds = ds.astype(x.q.dtype)
    dq = head_product("bhqk,bkhd->bqhd", ds, x.k, heads)
    dk = head_product("bqhd,bhqk->bkhd", x.q, ds, x.k.shape[2])
    return gradients.replace(
        q=(dq + gradients.q).astype(x.q.dtype),
        k=(dk + gradients.k).astype(x.k.dtype),
        v=dv.astype(x.v.dtype),
    )
