"""Terms of the offset as arrays: what tables and sinusoids add to logits and outputs.

Terms of the offset are given as functions (see `OffsetTerms`). `xla` takes arrays instead.

Tables are the terms of offsets -clip .. clip as rows; all parts of an encoding share one set. A
query meets 2·clip + 1 different vectors, so one product with these gives all its terms;
`relative_shift` lays them out along the keys and its transpose sums weights back. Beyond the clip
every key has the same term: one number per query and side. No [Lq, Lk, d], and no scatter where
positions are consecutive. A block of consecutive queries meets only some rows of a long table,
which are cut from it first.

Rotations are for sinusoids: q_i·P(j - i) = (q_i rotated by i)·P(j), see `rotate_pairs`. Any
positions, and no rows at all. Keys beyond a clip have the vector of its end, on either side.

Where keys are from queries is an `offset`: of consecutive positions a number, that of the first key
from the first query, which may be traced; of others all offsets `[*B, Lq, Lk]`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention.masks import index_offsets
from pe_jax.attention.relative_shift import relative_shift
from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.dtypes import at_least_float32, wide_dtype
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.product import product
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Int, Leaf, Size
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid


class Tables(Record, pytree=True, static=("clip",)):
    """Terms at the offsets -clip .. clip, added up over the parts of an encoding.

    Attributes:
      clip: offsets beyond it have the terms of its end.
      key_vectors, query_vectors, value_vectors: `[M, d]`, or `[M, H, d]` with one for each head,
        M = 2·clip + 1; None if no part has such vectors.
      bias: `[M]` or `[M, H]`, or None.
    """

    clip: int
    key_vectors: Leaf = None
    query_vectors: Leaf = None
    value_vectors: Leaf = None
    bias: Leaf = None

    @property
    def is_empty(self) -> bool:
        """True if there are no terms."""
        return not jax.tree.leaves(self)


class Rotation(Record, pytree=True, static=("clip",)):
    """Sinusoids of the offset that join keys and values.

    Attributes:
      frequencies, value_frequencies: `[F]` each.
      clip: the largest offset of a sinusoid.
      ends, value_ends: the vectors `[2, d]` of keys beyond the clip, right and left; None if no key
        is beyond it.
    """

    frequencies: Leaf
    value_frequencies: Leaf
    clip: int = 0
    ends: Leaf = None
    value_ends: Leaf = None


def table_logits(
    tables: Tables,
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    offset: ArrayLike,
) -> list[Float[Array, "#B #H Lq Lk"]]:
    """Return the logits that tables of vectors and biases add, float32.

    q and k are the content of queries and keys, with equal heads if vectors join the queries.
    """
    queries, keys = q.shape[1], k.shape[1]
    clip = tables.clip
    is_consecutive = np.ndim(offset) == 0
    added = []
    if tables.key_vectors is not None:
        added.append(_vector_logits(tables.key_vectors, clip, q, keys, offset))
    if tables.query_vectors is not None:
        if is_consecutive and 2 * queries <= clip:
            added.append(_tiled_logits(tables.query_vectors, clip, k, queries, offset))
        else:
            # Queries and keys exchanged: offset j - i of one is i - j of the other.
            exchanged = offset if is_consecutive else jnp.swapaxes(offset, -1, -2)
            reverse = tables.query_vectors[::-1]
            logits = _vector_logits(reverse, clip, k, queries, -jnp.asarray(exchanged))
            added.append(logits.swapaxes(2, 3))
    if tables.bias is not None:
        added.append(_bias_logits(tables.bias, clip, (queries, keys), offset))
    return added


def table_values(
    tables: Tables, weights: Float[Array, "B H Lq Lk"], offset: ArrayLike
) -> Float[Array, "B Lq H f"]:
    """Return the outputs that the vectors of a table add, float32."""
    rows, lay_out = _cut_table(
        tables.value_vectors, tables.clip, weights.shape[2:], offset
    )
    vectors = rows.astype(weights.dtype)
    by_offset = jnp.zeros((*weights.shape[:-1], len(vectors)), wide_dtype(weights))
    _, transpose = jax.vjp(lay_out, vary_alike(by_offset, weights))
    (summed,) = transpose(at_least_float32(weights))
    return product(
        f"bhqm,{_axes(vectors)}->bqhd", summed.astype(weights.dtype), vectors
    )


def rotated_logits(
    rotation: Rotation,
    q: Float[Array, "B Lq H d"],
    positions_q: Array,
    positions_k: Array,
) -> Float[Array, "B H Lq Lk"]:
    """Return the logits that sinusoids of the offset add by joining the keys, float32."""
    rotated = rotate_pairs(q, positions_q[..., None], rotation.frequencies).astype(
        q.dtype
    )
    vectors = sinusoid(positions_k, rotation.frequencies).astype(q.dtype)  # [*B, Lk, d]
    near = product(f"bqhd,{_batch(vectors)}kd->bhqk", rotated, vectors)
    if rotation.ends is None:
        return near
    right, left = _beyond(rotation.clip, positions_q, positions_k)
    ends = product("bqhd,sd->sbhq", q, rotation.ends.astype(q.dtype))[..., None]
    return jnp.where(right, ends[0], jnp.where(left, ends[1], near))


def rotated_values(
    rotation: Rotation,
    weights: Float[Array, "B H Lq Lk"],
    positions_q: Array,
    positions_k: Array,
) -> Float[Array, "B Lq H f"]:
    """Return the outputs that sinusoids of the offset add by joining the values, float32."""
    frequencies = rotation.value_frequencies
    near = weights
    if rotation.value_ends is not None:
        right, left = _beyond(rotation.clip, positions_q, positions_k)
        near = jnp.where(right | left, 0, weights)
    vectors = sinusoid(positions_k, frequencies).astype(weights.dtype)
    summed = product(f"bhqk,{_batch(vectors)}kd->bqhd", near, vectors)
    out = rotate_pairs(summed, -positions_q[..., None], frequencies)
    if rotation.value_ends is None:
        return out

    def total(side: Array) -> Array:
        return jnp.where(side, weights, 0).sum(-1, dtype=out.dtype)

    beyond = jnp.stack([total(right), total(left)])
    ends = rotation.value_ends.astype(out.dtype)
    return out + product("sbhq,sd->bqhd", beyond, ends)


def _vector_logits(
    table: Array, clip: int, q: Array, keys: Size, offset: ArrayLike
) -> Float[Array, "B H Lq Lk"]:
    """The products of queries with the vectors of all offsets to so many keys."""
    rows, lay_out = _cut_table(table, clip, (q.shape[1], keys), offset)
    vectors = rows.astype(q.dtype)
    return lay_out(product(f"bhqd,{_axes(vectors)}->bhqm", q.swapaxes(1, 2), vectors))


def _tiled_logits(
    table: Array, clip: int, k: Array, queries: int, offset: ArrayLike
) -> Float[Array, "B H Lq Lk"]:
    """Return the products of keys with the vectors of their offsets from few consecutive queries.

    Keys are cut into tiles of Lq keys. The vectors that a tile meets are in 2·Lq consecutive rows
    of the table, so each key is multiplied with these instead of all rows.
    """
    tiles = cut_axis(k.transpose(2, 0, 1, 3), queries, 2)  # [T, H, B, Lq, d]
    rows = _table_rows(table, clip, offset - queries, (len(tiles) + 1) * queries)
    chunks = rows.astype(k.dtype).reshape(len(tiles) + 1, queries, *rows.shape[1:])
    # Reversed: the offset from a query to a key decreases from one query to the next.
    vectors = jnp.concatenate([chunks[:-1], chunks[1:]], axis=1)[:, ::-1]
    by_offset = product(f"thbkd,t{_axes(table)}->thbkm", tiles, vectors)
    return join_axis(_skew(queries, by_offset).transpose(0, 2, 1, 4, 3), 3, k.shape[1])


def _cut_table(
    table: Array, clip: int, lengths: tuple[Size, Size], offset: ArrayLike
) -> tuple[Array, Callable[[Array], Array]]:
    """Cut a table to the offsets between so many queries and keys, if it has all of these; return
    the rows, and a function that lays out one term a row, `[B, H, Lq, M]`, along the keys."""
    queries, keys = lengths
    if np.ndim(offset) or queries + keys > 2 * clip + 2:
        return table, functools.partial(_shifted, clip, keys, offset=offset)
    rows = _table_rows(table, clip, offset - (queries - 1), queries + keys)
    return rows, functools.partial(_skew, keys)


def _table_rows(
    table: Array, clip: int, first: ArrayLike, count: int
) -> Float[Array, "N ..."]:
    """Return the rows of the offsets `first`, `first` + 1, ..., of which those beyond the clip have
    the end rows. This is `relative_shift` of one query, whose gradient is no scatter."""
    rows = relative_shift(clip, count, jnp.moveaxis(table, 0, -1)[..., None, :], first)
    return jnp.moveaxis(rows[..., 0, :], -1, 0)


def _skew(keys: int, by_offset: Float[Array, "*B Lq M"]) -> Float[Array, "*B Lq Lk"]:
    """Lay M = Lq + Lk or more terms of consecutive offsets out along the keys: entry (i, j) is
    number j - i + Lq - 1. Takes less time than `relative_shift`: it moves whole rows, each by one
    more than the last."""
    *batch, queries, count = by_offset.shape
    flat = by_offset.reshape(*batch, queries * count)
    start = queries - 1
    flat = jax.lax.slice_in_dim(flat, start, start + queries * (count - 1), axis=-1)
    return flat.reshape(*batch, queries, count - 1)[..., :keys]


def _rows(
    clip: int, lengths: tuple[Size, Size], offset: ArrayLike
) -> Int[Array, "*B Lq Lk"]:
    """The row of the tables of each pair of query and key."""
    by_pair = offset if np.ndim(offset) else index_offsets(*lengths, offset)
    return jnp.clip(by_pair, -clip, clip) + clip


def _shifted(
    clip: int, keys: Size, by_offset: Float[Array, "B H Lq M"], offset: ArrayLike
) -> Float[Array, "B H Lq Lk"]:
    """`relative_shift`, for any integer positions."""
    if np.ndim(offset) == 0:
        return relative_shift(clip, keys, by_offset, offset)
    rows = _rows(clip, (by_offset.shape[-2], keys), offset)
    rows = rows[None, None] if rows.ndim == 2 else rows[:, None]
    return jnp.take_along_axis(by_offset, rows, -1)


def _bias_logits(
    bias: Array, clip: int, lengths: tuple[Size, Size], offset: ArrayLike
) -> Float[Array, "#B #H Lq Lk"]:
    """No batch where positions have none, so that its gradient is one of a small array."""
    if bias.ndim == 1:  # Shared by the heads.
        bias = bias[:, None]
    bias = at_least_float32(bias)
    heads = bias.shape[1]
    if np.ndim(offset) == 0:
        queries, keys = lengths
        if queries + keys < 2 * clip:
            # A block of a long input meets a part of the table.
            farthest = (queries + keys) // 2
            bias = _table_rows(bias, clip, offset - (queries - 1), 2 * farthest + 1)
            clip = farthest
            offset = queries - 1 - farthest
        # Not `_skew`: XLA would compute its indices again in each use of the logits.
        by_offset = jnp.broadcast_to(bias.T[:, None], (1, heads, queries, len(bias)))
        return relative_shift(clip, keys, by_offset, offset)
    rows = _rows(clip, lengths, offset)
    return jnp.moveaxis(bias.T[:, rows], 0, -3).reshape(-1, heads, *lengths)


def _axes(table: Array) -> str:
    return "md" if table.ndim == 2 else "mhd"


def _batch(vectors: Array) -> str:
    """`"b"` if vectors `[Lk, d]` have an axis for the batch as well: for products."""
    return "b" * (vectors.ndim - 2)


def _beyond(clip: int, positions_q: Array, positions_k: Array) -> tuple[Array, Array]:
    """Masks of the keys beyond the clip: to the right, to the left."""
    offset = offsets(positions_q, positions_k)[..., None, :, :]  # [*B, 1, Lq, Lk]
    return offset > clip, offset < -clip
