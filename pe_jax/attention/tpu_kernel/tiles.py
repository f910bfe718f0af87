"""Computations on a tile of queries × keys: logits, dropout, and terms per offset.

How relative terms meet a tile. A query's dot products with the table are one matmul a block of
queries; a bias is a row added to them. Laid out with a period of `width` ≥ 2·clip offsets, they
come into the order of the keys by rotating row i by i lanes (`skew`), one instruction a register:
afterwards lane j mod `width` of row i holds offset j − i, for all tiles. Sums of weights per
offset, which the values and the gradients of tables and bias need, go the same way back: tiles are
added up modulo `width`, and rotated back once a block of queries (`unskew`). No gather, no scatter.

Offsets of clip and beyond cost nothing: the softmax does not change if q·P_clip, or the bias of
clip, is subtracted from all logits of a query, so the kernels get P − P_clip; and R_clip joins the
values before, so they get R − R_clip. Offsets of −clip and beyond share one number a query.

A bias that reaches beyond a tile, if it is the only term, is not laid out per query: each tile
rotates a row of its own offsets for 128 queries (`Tile.bias`), and the others take the same, whole
registers further on. Gradients of logits are summed so over all queries of a head, and rotated back
once.

Vectors that join the queries are the same with queries and keys exchanged: a tile's keys meet the
vectors of the tile's offsets, in falling order; row j is rotated by j, and the result is transposed
(`Tile.key_terms`). Nothing of them is left over from one tile to the next.

Numbers per query are in 128 equal lanes, as operands of tiles; heads whose size is less than 128
are side by side in the lanes, as the projections leave them, and go to one program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pe_jax.attention.dropout import keep
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig
from pe_jax.encodings.positions import AttentionWindow

MASKED = -2e30  # The logit of a key that must not be attended to.
# Where a running maximum starts: above it, so that such a key never weighs anything.
UNSEEN = -1e30
# Inside, exponentials and logarithms are of base 2, as in hardware.
LOG2_E = math.log2(math.e)


class Tile:
    """The tile of a program: its place among queries, keys and offsets.

    Args:
      documents: of packed rows, see `kernels.Documents`.
    """

    def __init__(self, config: KernelConfig, documents: Any):
        tiling = config.tiling
        query_tile = pl.program_id(2)
        first, _ = tiling.key_tile_range(query_tile)
        key_tile = first + pl.program_id(3)
        self.config = config
        self.tiling = tiling
        self.terms = config.terms
        self.row = pl.program_id(0)
        self.head = pl.program_id(1) * config.heads.group
        self.query = query_tile * tiling.queries
        self.key = key_tile * tiling.keys
        # From query 0 to key 0 of the tile.
        self.offset = tiling.offset + self.key - self.query
        self.exists = key_tile < tiling.key_tiles
        self.in_documents: jax.Array | bool = True
        if documents is not None:
            first = documents.tiles[self.row, 0, query_tile]
            end = documents.tiles[self.row, 1, query_tile]
            self.in_documents = (first <= key_tile) & (key_tile < end)

    def each(self, body: Callable[[bool], None]) -> None:
        """Run `body(uniform)` if any query of the tile attends to any key.

        uniform: True if all attend to all, and no offset is within ±clip, so that a query has the
        same terms for all keys. What computes any other tile computes such a one as well, slower.
        """
        tiling = self.tiling
        clip = self.terms.clip
        first = self.offset - (tiling.queries - 1)
        last = self.offset + tiling.keys - 1
        attended = self.in_documents
        uniform: jax.Array | bool = True
        if self.terms.has_logit_terms or self.terms.has_value_terms:
            uniform = (first >= clip) | (last <= -clip)
        if tiling.window is not None:
            left, right = tiling.window.sides
            attended = attended & self.exists & (right is None or first <= right)
            if left is not None:
                uniform = uniform & (first >= -left)
            if right is not None:
                uniform = uniform & (last <= right)
            # Offsets within the window may all be within ±clip: then there is one kind of tile.
            if not self.config.reaches_beyond_clip:
                uniform = False
        if uniform is not False:
            pl.when(attended & uniform)(functools.partial(body, True))
        if uniform is not True:
            pl.when(attended & ~jnp.asarray(uniform))(functools.partial(body, False))

    def distances(self, part: int) -> tuple[jax.Array, jax.Array]:
        """Key minus query, counted from the first of each, for 128 keys; and the offset of these
        first ones."""
        shape = self.tiling.queries, LANES
        query = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        return key - query, self.offset + part * LANES

    def sides(self, part: int) -> tuple[jax.Array, jax.Array]:
        """Masks of the offsets that are −clip or less, and clip or more."""
        distance, first = self.distances(part)
        clip = self.terms.clip
        return distance <= -clip - first, distance >= clip - first

    def lanes(self, part: int) -> slice | pl.Slice:
        """The lanes within the period of the keys of a part."""
        lane = (self.key - self.query + part * LANES) % self.terms.width
        return pl.ds(pl.multiple_of(lane, LANES), LANES)

    def relative_shift(self, terms: jax.Ref, h: int, uniform: bool) -> jax.Array:
        """Numbers of a head per query and offset, skewed, to [queries, keys]."""
        left = terms[h, :, self.terms.width :]
        if uniform:
            return wide(jnp.where(self.offset > 0, 0.0, left), self.tiling.keys)
        shifted = []
        for n in range(self.tiling.keys // LANES):
            before, after = self.sides(n)
            inner = jnp.where(after, 0.0, terms[h, :, self.lanes(n)])
            shifted.append(jnp.where(before, left, inner))
        return jnp.concatenate(shifted, axis=1)

    def relative_shift_transpose(
        self, bands: jax.Ref, h: int, x: jax.Array, uniform: bool
    ) -> None:
        """Add [queries, keys] to numbers per query and offset, as `relative_shift` transposed."""
        left = slice(self.terms.width, None)
        if uniform:
            bands[h, :, left] += jnp.where(self.offset > 0, 0.0, sum(parts(x)))
            return
        for n, part in enumerate(parts(x)):
            before, after = self.sides(n)
            bands[h, :, left] += jnp.where(before, part, 0.0)
            bands[h, :, self.lanes(n)] += jnp.where(before | after, 0.0, part)

    def bias(self, bias: jax.Ref, h: int) -> jax.Array:
        """A head's long bias, [queries, keys]."""
        queries, keys = self.tiling.queries, self.tiling.keys
        lanes = queries + keys
        first = pl.multiple_of(self._bias_lane(queries), LANES)
        row = jnp.broadcast_to(bias[0, h : h + 1, pl.ds(first, lanes)], (LANES, lanes))
        rotated = pltpu.roll(row, 0, axis=1, stride=1, stride_axis=0)
        starts = range(queries, 0, -LANES)
        return jnp.concatenate([rotated[:, n : n + keys] for n in starts])

    def collect_bias(self, band: jax.Ref, h: int, x: jax.Array) -> None:
        """Add [queries, keys] to the sums of a long bias, [group, 128, lanes], where `bias` has the
        lanes of 128 queries after their rotation."""
        for n in range(0, self.tiling.queries, LANES):
            first = pl.multiple_of(self._bias_lane(n), LANES)
            band[h, :, pl.ds(first, self.tiling.keys)] += x[n : n + LANES]

    def _bias_lane(self, query: int) -> jax.Array:
        """The lane of a long bias for the tile's first key and one of its queries."""
        all_queries = self.tiling.query_tiles * self.tiling.queries
        return self.key - self.query + all_queries - query

    def key_terms(self, table: jax.Ref, number: int, k: jax.Array) -> jax.Array:
        """Products of a head's keys with the vectors that join the queries, [queries, keys].

        Args:
          number: of the head's table.
        """
        queries = self.tiling.queries
        products = dot(k, table[number, self._offset_rows()], 1, 1)
        rotated = pltpu.roll(products, queries, axis=1, stride=1, stride_axis=0)
        return jnp.transpose(rotated[:, :queries])

    def key_terms_transpose(
        self, table: jax.Ref, number: int, k: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Gradients of `key_terms` by the keys and by the tile's rows of the table.

        Row j of the keys is rotated to the left by j, as in `unskew`: 128 keys at a time, in
        reverse order.

        Args:
          x: the gradient of the terms, [queries, keys].
        """
        queries, keys = self.tiling.queries, self.tiling.keys
        reverse = reversal(k.dtype)
        vectors = table[number, self._offset_rows()]
        dk = []
        dvectors = jnp.zeros(vectors.shape, jnp.float32)
        for n in range(0, keys, LANES):
            by_key = dot(reverse, x[:, n : n + LANES].astype(k.dtype), 1, 1)
            by_key = jnp.concatenate([by_key, jnp.zeros((LANES, keys))], axis=1)
            shift = keys + 1 - n - LANES
            by_offset = pltpu.roll(
                by_key, shift % (queries + keys), axis=1, stride=1, stride_axis=0
            ).astype(k.dtype)
            in_reverse = dot(by_offset, vectors, 1, 0).astype(k.dtype)
            dk.append(dot(reverse, in_reverse, 1, 0))
            reversed_k = dot(reverse, k[n : n + LANES], 1, 0).astype(k.dtype)
            dvectors += dot(by_offset, reversed_k, 0, 0)
        return jnp.concatenate(dk), dvectors

    def add_vectors(self, gradient: jax.Ref, number: int, x: jax.Array) -> None:
        """Add to the gradient of the tile's rows of a table of vectors that join the queries."""
        gradient[0, number, self._offset_rows()] += x

    def _offset_rows(self) -> slice | pl.Slice:
        """The rows of the tile's offsets in a table of `arguments`, from the largest offset on."""
        tiling = self.tiling
        all_keys = tiling.key_tiles * tiling.keys
        first = all_keys - tiling.keys - self.key + self.query
        return pl.ds(pl.multiple_of(first, LANES), tiling.queries + tiling.keys)

    def within(self, logits: jax.Array, window: AttentionWindow) -> jax.Array:
        """`logits` [queries, keys], masked where the offset is not within the window."""
        masked = []
        for n, part in enumerate(parts(logits)):
            distance, first = self.distances(n)
            masked.append(jnp.where(window.allows(distance + first), part, MASKED))
        return jnp.concatenate(masked, axis=1)

    def drop(
        self, seed: jax.Ref, numbers: jax.Ref, h: int, *tiles: jax.Array
    ) -> list[jax.Array]:
        """Dropout, without its scale, of a head's weights; rows are those of [B, H, Lq, Lk]."""
        config = self.config
        tiling = config.tiling
        if not config.rate:
            return list(tiles)
        head = (self.head + h).astype(jnp.uint32)
        first = numbers[self.row] * np.uint32(config.heads.total) + head
        first = first * np.uint32(tiling.length) + self.query.astype(jnp.uint32)
        shape = tiling.queries, LANES
        rows = first + jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
        columns = jax.lax.broadcasted_iota(jnp.uint32, (1, LANES), 1)
        columns = columns + self.key.astype(jnp.uint32)
        words = jnp.stack([jnp.full((1, LANES), seed[n]) for n in (0, 1)])
        keep_masks = [
            keep(words, rows, columns + np.uint32(n), config.rate)
            for n in range(0, tiling.keys, LANES)
        ]

        def drop(tile: jax.Array) -> jax.Array:
            kept = zip(keep_masks, parts(tile), strict=True)
            return jnp.concatenate([jnp.where(k, x, 0.0) for k, x in kept], axis=1)

        return [drop(tile) for tile in tiles]


def skew(terms: jax.Array, config: KernelConfig) -> jax.Array:
    """Rotate row i of [queries, width] to the right by i lanes, from offsets to keys, and append
    128 lanes of the number of offset −clip."""
    rotated = pltpu.roll(terms, 0, axis=1, stride=1, stride_axis=0)
    last = terms[:, config.far : config.far + 1]
    last = jnp.broadcast_to(last, (len(last), LANES))
    return jnp.concatenate([rotated, last], axis=1)


def unskew(bands: jax.Array, config: KernelConfig, dtype: DTypeLike) -> jax.Array:
    """Rotate row i to the left by i lanes, from keys to offsets: the transpose of `skew`.

    Strided rotations go to the right only. To the left by i is to the right by width − i, which
    grows with the row number when rows are in reverse order; the matrix unit puts them there.
    """
    reverse = reversal(dtype)
    rotated = []
    for n in range(0, config.tiling.queries, LANES):
        x = dot(reverse, bands[n : n + LANES, : config.terms.width].astype(dtype), 1, 0)
        shift = (1 - n - LANES) % config.terms.width
        x = pltpu.roll(x, shift, axis=1, stride=1, stride_axis=0).astype(dtype)
        rotated.append(dot(reverse, x, 1, 0))
    inner = jnp.concatenate(rotated)
    lane = jax.lax.broadcasted_iota(jnp.int32, inner.shape, 1)
    last = jnp.sum(bands[:, config.terms.width :], axis=1, keepdims=True)
    return jnp.where(lane == config.far, last, inner).astype(dtype)


def add_by_offset(gradient: jax.Ref, h: int, band: jax.Ref, scale: float) -> None:
    """Add a head's sums of `Tile.collect_bias` to the gradient of its long bias: row i is rotated
    to the left by i, as in `unskew`, 128 lanes at a time. The sum ignores the order of rows."""
    reverse = reversal(jnp.float32)

    def add(n: jax.Array, _: None) -> None:
        start = pl.multiple_of(n * LANES, LANES)
        x = band[h, :, pl.ds(start + LANES, LANES)]
        x = dot(reverse, x, 1, 0, precision=jax.lax.Precision.HIGHEST)
        x = jnp.concatenate([jnp.zeros_like(x), x], axis=1)
        x = pltpu.roll(x, LANES + 1, axis=1, stride=1, stride_axis=0)
        total = jnp.sum(x, 0, keepdims=True) * scale
        gradient[0, 0, h : h + 1, pl.ds(start, 2 * LANES)] += total

    jax.lax.fori_loop(0, band.shape[-1] // LANES - 1, add, None)


def reversal(dtype: DTypeLike) -> jax.Array:
    """The matrix whose product with 128 rows has them in reverse order."""
    row = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1)
    return (row + column == LANES - 1).astype(dtype)


def clear(*refs: jax.Ref | None) -> None:
    """Write zeros."""
    for ref in refs:
        if ref is not None:
            ref[...] = jnp.zeros_like(ref)


def parts(x: jax.Array) -> list[jax.Array]:
    """[queries, n · 128] as n registers' worth of lanes each."""
    return jnp.split(x, x.shape[1] // LANES, axis=1)


def wide(x: jax.Array, lanes: int) -> jax.Array:
    """[queries, 128] of equal lanes, repeated or sliced to any number of lanes."""
    return jnp.concatenate([x] * -(-lanes // LANES), axis=1)[:, :lanes]


def dot(
    a: jax.Array,
    b: jax.Array,
    axis_a: int,
    axis_b: int,
    precision: jax.lax.Precision | None = None,
) -> jax.Array:
    """The product of matrices, summed over an axis of each, in float32."""
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, precision, jnp.float32)
