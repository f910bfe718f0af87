"""Fast forms of terms of the offset: the numbers of `Offsets`, made from arrays.

Terms of the offset are given as functions. Forms that differ in time and memory only, gradients
included, take arrays instead, and these come in two kinds.

`Tables`: the terms of offsets -clip .. clip as rows. All parts of an encoding share one set.

- `pairs`: the row of each pair of query and key, [Lq, Lk, d]; one matmul a query.
- `buckets`: a query meets 2·clip + 1 different vectors, so one matmul with these gives all its
  terms; `spread` lays them out along the keys and `collect` sums weights back. Beyond the clip
  every key has the same term: one number per query and side. No [Lq, Lk, d], no scatter.

`Rotation`: vectors that are sinusoids, q_i·P(j - i) = (q_i rotated by i)·P(j), see `rotate_pairs`.
Any positions, and no rows at all.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention.masks import index_offsets
from pe_jax.attention.operands import Term
from pe_jax.attention.product import product
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid
from pe_jax.shapes import Array, Float, Int


class Tables(NamedTuple):
    """Terms of the offsets -clip .. clip, a row each; None where there is none.

    Vectors are `[M, d]`, or `[M, H, d]` with one for each head; biases `[M]` or `[M, H]`.
    """

    keys: Array | None
    queries: Array | None
    values: Array | None
    bias: Array | None


class Rotation(NamedTuple):
    """Vectors that are sinusoids of the offset.

    Attributes:
      frequencies, value_frequencies: `[F]`.
      ends, value_ends: `[2, d]`, the vectors that all keys beyond +clip and -clip have; None where
        no key is beyond it.
    """

    frequencies: Array
    value_frequencies: Array
    ends: Array | None
    value_ends: Array | None


class Terms(NamedTuple):
    """What is added to logits and outputs, as arrays that gradients flow to.

    Attributes:
      content_q, content_k: what vectors meet, where that is not q and k themselves.
      added: `[#B, #H, Lq, Lk]`, to the logits as it is.
    """

    tables: Tables | None = None
    rotations: tuple[Rotation, ...] = ()
    content_q: Array | None = None
    content_k: Array | None = None
    added: Array | None = None


class How(NamedTuple):
    """How `Terms` are computed; known while compiling.

    Attributes:
      clip: of the tables; they have 2·clip + 1 rows.
      pairs: whether as `pairs`.
      rotation_clips: of each rotation; None where no key is beyond it.
    """

    clip: int = 0
    pairs: bool = False
    rotation_clips: tuple[int | None, ...] = ()


class Where(NamedTuple):
    """Where a block of queries and its keys are.

    Attributes:
      positions_q, positions_k: as arrays.
      shift: position of the first key minus that of the first query, where both are consecutive
        and the same in every row; may be traced. None: only the positions tell.
    """

    positions_q: Array
    positions_k: Array
    shift: ArrayLike | None


# --- from functions to arrays ---------------------------------------------------------------------


def tables(terms: list[Term], scale: ArrayLike) -> tuple[int, Tables]:
    """clip, and the terms of offsets -clip .. clip, added up over the parts.

    Offsets that cannot occur have no row.
    """
    bounds = [(term.offsets.clip, farthest(term)) for term in terms]
    clip = max(1, *(min(b for b in two if b is not None) for two in bounds)) if bounds else 1
    x = np.arange(-clip, clip + 1)

    def total(name: str, axes: int) -> Array | None:
        found = [(getattr(t.offsets, name), t) for t in terms]
        rows = [f(t.params, x, t.context) for f, t in found if f]
        per_head = any(one.ndim > axes for one in rows)
        rows = [one if one.ndim > axes or not per_head else one[:, None] for one in rows]
        return functools.reduce(jnp.add, rows) if rows else None

    queries = total("queries", 2)
    queries = None if queries is None else queries * scale
    return clip, Tables(total("keys", 2), queries, total("values", 2), total("bias", 1))


def rotation(term: Term) -> tuple[Rotation, int | None]:
    """A sinusoidal term, and its clip unless no key is beyond it."""
    terms, params = term.offsets, term.params
    assert terms.frequencies and terms.value_frequencies and terms.keys and terms.values
    clip = terms.clip
    if clip is not None and (far := farthest(term)) is not None and far <= clip:
        clip = None
    w = terms.frequencies(params), terms.value_frequencies(params)
    if clip is None:
        return Rotation(*w, None, None), None
    at = np.array([clip, -clip])
    ends = (vectors(params, at, term.context) for vectors in (terms.keys, terms.values))
    return Rotation(*w, *ends), clip


def farthest(term: Term) -> int | None:
    """The largest |offset| between positions that are known while compiling; None for others."""
    q, k = term.positions
    if any(not isinstance(p, (range, np.ndarray)) for p in (q, k)) or not len(q) or not len(k):
        return None
    low_q, high_q, low_k, high_k = (f(p) for p in map(np.asarray, (q, k)) for f in (np.min, np.max))
    return int(np.ceil(max(high_k - low_q, high_q - low_k, 0)))


# --- what they add --------------------------------------------------------------------------------


def term_logits(
    how: How, terms: Terms, q: Array, k: Array, where: Where
) -> Float[Array, "B H Lq Lk"]:
    """All that is added to q·k, float32."""
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    content_q = q if terms.content_q is None else terms.content_q
    content_k = k if terms.content_k is None else terms.content_k
    found = []
    if terms.tables is not None:
        form = _pairs_logits if how.pairs else _bucket_logits
        found += form(how.clip, terms.tables, content_q, content_k, where)
    for one, clip in zip(terms.rotations, how.rotation_clips, strict=True):
        found.append(_rotated_logits(one, clip, content_q, where))
    if terms.added is not None:
        found.append(terms.added)
    return jnp.broadcast_to(functools.reduce(jnp.add, found), shape)


def term_values(
    how: How, terms: Terms, weights: Float[Array, "B H Lq Lk"], where: Where
) -> Float[Array, "B Lq H f"]:
    """All that is added to weights·v, float32; there is something, see `adds_values`."""
    found = []
    if terms.tables is not None and terms.tables.values is not None:
        form = _pairs_values if how.pairs else _bucket_values
        found.append(form(how.clip, terms.tables.values, weights, where))
    for one, clip in zip(terms.rotations, how.rotation_clips, strict=True):
        found.append(_rotated_values(one, clip, weights, where))
    return functools.reduce(jnp.add, found)


def adds_logits(terms: Terms) -> bool:
    of_tables = terms.tables is not None and any(
        one is not None for one in (terms.tables.keys, terms.tables.queries, terms.tables.bias)
    )
    return of_tables or bool(terms.rotations) or terms.added is not None


def adds_values(terms: Terms) -> bool:
    of_tables = terms.tables is not None and terms.tables.values is not None
    return of_tables or bool(terms.rotations)


# --- buckets --------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def spread(
    clip: int, keys: int, buckets: Float[Array, "*B Lq M"], shift: ArrayLike
) -> Float[Array, "*B Lq Lk"]:
    """Lays terms out along the keys: entry (i, j) is bucket clip(j - i + shift).

    `collect` is its transpose, and each is the other's gradient: gathers both ways.

    Args:
      keys: how many.
      buckets: M = 2·clip + 1 terms a query, of offsets -clip .. clip.
      shift: position of the first key minus position of the first query.
    """
    at = jnp.clip(index_offsets(buckets.shape[-2], keys, shift), -clip, clip) + clip
    return _take(buckets, at)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def collect(
    clip: int, keys: int, x: Float[Array, "*B Lq Lk"], shift: ArrayLike
) -> Float[Array, "*B Lq M"]:
    """Sums of `x` over the keys of each bucket; the transpose of `spread`."""
    # The key of bucket m for query i: position i + m.
    at = index_offsets(x.shape[-2], 2 * clip - 1, 1 - clip, sign=1) - shift
    x = jax.lax.optimization_barrier(x)  # Or each of its uses recomputes it.
    near = jnp.where((at >= 0) & (at < keys), _take(x, jnp.clip(at, 0, keys - 1)), 0)
    left = jnp.where(index_offsets(x.shape[-2], keys, shift) <= -clip, x, 0).sum(-1, keepdims=True)
    # What is neither: a second masked sum takes longer than all else here.
    right = x.sum(-1, keepdims=True) - left - near.sum(-1, keepdims=True)
    return jnp.concatenate([left, near, right], axis=-1)


spread.defvjp(
    lambda clip, keys, buckets, shift: (spread(clip, keys, buckets, shift), shift),
    lambda clip, keys, shift, g: (collect(clip, keys, g, shift), None),
)
collect.defvjp(
    lambda clip, keys, x, shift: (collect(clip, keys, x, shift), shift),
    lambda clip, keys, shift, g: (spread(clip, keys, g, shift), None),
)


def _take(x: Array, at: Array) -> Array:
    """x[..., i, at[i, j]]."""
    at = at.reshape((1,) * (x.ndim - 2) + at.shape)
    # Barriers: fused into its neighbours, a gather runs again in each of their passes.
    x = jax.lax.optimization_barrier(x)
    out = jnp.take_along_axis(x, at, axis=-1, mode="promise_in_bounds")
    return jax.lax.optimization_barrier(out)


def _rows(clip: int, where: Where) -> Int[Array, "*B Lq Lk"]:
    """The row of the tables of each pair of query and key, by their positions."""
    return jnp.clip(offsets(where.positions_q, where.positions_k), -clip, clip) + clip


def _spread_out(clip: int, buckets: Float[Array, "B H Lq M"], where: Where) -> Array:
    """`spread`, for any integer positions."""
    if where.shift is not None:
        return spread(clip, len(where.positions_k), buckets, where.shift)
    rows = _rows(clip, where)
    return jnp.take_along_axis(buckets, rows[None, None] if rows.ndim == 2 else rows[:, None], -1)


def _bucket_logits(clip: int, tables: Tables, q: Array, k: Array, where: Where) -> list[Array]:
    found = []
    if tables.keys is not None:
        p = tables.keys.astype(q.dtype)
        buckets = product(f"bhqd,{_axes(p)}->bhqm", q.swapaxes(1, 2), p)
        found.append(_spread_out(clip, buckets, where))
    if tables.queries is not None:
        # The same with queries and keys exchanged, as offset j - i of one is i - j of the other.
        p = tables.queries[::-1].astype(k.dtype)
        buckets = product(f"bhkd,{_axes(p)}->bhkm", k.swapaxes(1, 2), p)
        found.append(_spread_out(clip, buckets, _exchanged(where)).swapaxes(2, 3))
    if tables.bias is not None:
        found.append(_bias_logits(clip, tables.bias, where))
    return found


def _exchanged(where: Where) -> Where:
    shift = None if where.shift is None else -jnp.asarray(where.shift)
    return Where(where.positions_k, where.positions_q, shift)


def _bias_logits(clip: int, bias: Array, where: Where) -> Float[Array, "#B #H Lq Lk"]:
    """No batch where positions have none, so that its gradient is one of a small array."""
    bias = (bias if bias.ndim == 2 else bias[:, None]).T.astype(jnp.float32)  # [#H, M]
    if where.shift is None:
        rows = _rows(clip, where)
        return jnp.moveaxis(bias[:, rows], 0, -3).reshape(-1, len(bias), *rows.shape[-2:])
    shape = (len(bias), np.shape(where.positions_q)[-1], bias.shape[-1])
    buckets = jnp.broadcast_to(bias[:, None], shape)
    return spread(clip, len(where.positions_k), buckets, where.shift)[None]


def _bucket_values(clip: int, vectors: Array, weights: Array, where: Where) -> Array:
    p = vectors.astype(weights.dtype)
    wide = weights.astype(jnp.float32)
    if where.shift is not None:
        summed = collect(clip, len(where.positions_k), wide, where.shift)
    else:
        like = jax.ShapeDtypeStruct((*weights.shape[:-1], len(p)), jnp.float32)
        (summed,) = jax.linear_transpose(lambda b: _spread_out(clip, b, where), like)(wide)
    return product(f"bhqm,{_axes(p)}->bqhd", summed.astype(weights.dtype), p)


def _axes(p: Array) -> str:
    return "md" if p.ndim == 2 else "mhd"


# --- pairs ----------------------------------------------------------------------------------------


def _pairs_logits(clip: int, tables: Tables, q: Array, k: Array, where: Where) -> list[Array]:
    found = []
    if tables.keys is not None:
        p, axes = _pair_vectors(clip, tables.keys, where, q.dtype)
        found.append(product(f"bqhd,{axes}->bhqk", q, p))
    if tables.queries is not None:
        p, axes = _pair_vectors(clip, tables.queries, where, k.dtype)
        found.append(product(f"bkhd,{axes}->bhqk", k, p))
    if tables.bias is not None:
        found.append(_bias_logits(clip, tables.bias, where))
    return found


def _pairs_values(clip: int, vectors: Array, weights: Array, where: Where) -> Array:
    p, axes = _pair_vectors(clip, vectors, where, weights.dtype)
    return product(f"bhqk,{axes}->bqhd", weights, p)


def _pair_vectors(clip: int, table: Array, where: Where, dtype: jnp.dtype) -> tuple[Array, str]:
    """The row of each pair, and the names of its axes."""
    # Cast after the look-up, so that the gradients of a row are summed as wide as the table.
    p = table[_rows(clip, where)].astype(dtype)
    head = "h" * (table.ndim - 2)
    return p, "b" * (p.ndim - 3 - len(head)) + "qk" + head + "d"


# --- rotation -------------------------------------------------------------------------------------


def _rotated_logits(one: Rotation, clip: int | None, q: Array, where: Where) -> Array:
    w = one.frequencies
    rotated = rotate_pairs(q, where.positions_q[..., None], w).astype(q.dtype)
    p = sinusoid(where.positions_k, w).astype(q.dtype)  # [*B, Lk, d]
    near = product(f"bqhd,{_batch(p)}kd->bhqk", rotated, p)
    if clip is None:
        return near
    assert one.ends is not None
    right, left = _beyond(clip, where)
    ends = product("bqhd,sd->sbhq", q, one.ends.astype(q.dtype))[..., None]  # [side, B, H, Lq, 1]
    return jnp.where(right, ends[0], jnp.where(left, ends[1], near))


def _rotated_values(one: Rotation, clip: int | None, weights: Array, where: Where) -> Array:
    w = one.value_frequencies
    far = () if clip is None else _beyond(clip, where)
    near = jnp.where(far[0] | far[1], 0, weights) if far else weights
    p = sinusoid(where.positions_k, w).astype(weights.dtype)
    summed = product(f"bhqk,{_batch(p)}kd->bqhd", near, p)
    out = rotate_pairs(summed, -where.positions_q[..., None], w)
    if far:
        assert one.value_ends is not None
        mass = [jnp.where(side, weights, 0).sum(-1, dtype=out.dtype) for side in far]
        out += product("sbhq,sd->bqhd", jnp.stack(mass), one.value_ends.astype(out.dtype))
    return out


def _batch(p: Array) -> str:
    """`"b"` if vectors `[Lk, d]` have an axis for the batch as well: for products."""
    return "b" * (p.ndim - 2)


def _beyond(clip: int, where: Where) -> tuple[Array, Array]:
    """Where the key is beyond the clip: to the right, to the left."""
    off = offsets(where.positions_q, where.positions_k)[..., None, :, :]  # [*B, 1, Lq, Lk]
    return off > clip, off < -clip
