"""Arrays that enter attention, once an encoding has acted on queries, keys and values.

Each of the G heads of keys and values serves H / G consecutive heads of queries. Terms of encodings
are those of the H heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention.masks import Masks, PositionWindow, in_order
from pe_jax.attention.offset_terms import Tables
from pe_jax.attention.token_axes import PerToken, axes
from pe_jax.common.dtypes import at_least_float32, wide_dtype
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Leaf, Size
from pe_jax.encodings.encoding import PositionEncoding, check_heads
from pe_jax.encodings.parameters import split_params
from pe_jax.encodings.part import (
    HookContext,
    LogitTerms,
    OffsetTerms,
    Params,
    Part,
    apply_heads,
    apply_positions,
)
from pe_jax.encodings.positions import AttentionWindow


class BoundPart(NamedTuple):
    """A part of the encoding with its parameters, and the context that it sees."""

    part: Part
    params: Params
    context: HookContext


class Term(NamedTuple):
    """What a part adds by the offset, with its parameters and the context that it sees."""

    offsets: OffsetTerms
    params: Params
    context: HookContext


class AddedLogits(Record, pytree=True):
    """What hooks `logits` add.

    Attributes:
      array: the sum of arrays that hooks returned, `[#B, #H, #Lq, #Lk]`; None without any.
      terms: what other hooks returned, computed some queries at a time.
    """

    array: Leaf = dataclasses.field(default=None, metadata=axes(queries=2, keys=3))
    terms: tuple[LogitTerms, ...] = ()


class AttentionInputs(NamedTuple):
    """Everything that enters attention.

    Attributes:
      q, k, v: `[B, Lq, H, e]`, `[B, Lk, G, e]` and `[B, Lk, G, f]`, after the encoding's maps; q is
        scaled.
      content: queries and keys before the maps, which vectors of the offset meet; queries are
        scaled.
      unscaled_q: `q` before it is scaled, for attention that scales its products itself.
      scale: s, a number or `[#B, #Lq, #H, 1]`.
      parts: of the encoding.
      added: what hooks `logits` add.
      sink: the logit of each head in the denominator, `[H]` in the dtype of logits, or None.
      masks: all that keeps queries from keys.
      context: the positions of the call.
    """

    q: Float[Array, "B Lq H e"]
    k: Float[Array, "B Lk G e"]
    v: Float[Array, "B Lk G f"]
    content: PerToken
    unscaled_q: Float[Array, "B Lq H e"]
    scale: Array | float
    parts: tuple[BoundPart, ...]
    added: AddedLogits
    sink: Float[Array, " H"] | None
    masks: Masks
    context: HookContext

    @property
    def terms(self) -> list[Term]:
        """The terms of the offset."""
        return [
            Term(part.offsets, params, context)
            for part, params, context in self.parts
            if part.offsets and part.offsets.has_terms
        ]

    @property
    def has_vectors(self) -> bool:
        """True if vectors of the offset are added."""
        return any(
            term.key_vectors or term.query_vectors or term.value_vectors
            for term, _, _ in self.terms
        )

    @property
    def is_mapped(self) -> bool:
        """True if the encoding maps queries and keys, so that they differ from the content."""
        return self.q is not self.content.queries

    @property
    def maps(self) -> list[tuple[Callable[..., jax.Array], Params]]:
        """The maps of the finished logits, with their parameters."""
        return [
            (part.map_logits, params)
            for part, params, _ in self.parts
            if part.map_logits
        ]

    @property
    def lengths(self) -> tuple[Size, Size]:
        """Lq and Lk."""
        return self.q.shape[1], self.k.shape[1]

    @property
    def whole_mask(self) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """One mask of everything that keeps queries from keys."""
        return self.masks.whole(self.lengths, self.context.shift)


def apply_encoding(
    encoding: PositionEncoding,
    params: Params | None,
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    v: Float[Array, "B Lk G f"],
    context: HookContext,
    mask: Bool[Array, "#B #H #Lq Lk"] | None,
) -> AttentionInputs:
    """Apply the maps of an encoding, scale the queries, and collect its terms and masks.

    Raises:
      ValueError: see `check_heads` and `apply_heads`, and for keys out of order (`Traits.ordered`).
    """
    check_heads(encoding, q, k, v)
    heads = q.shape[2]
    context = context.replace(mask=mask)
    if context.ranges is None and any(part.traits.ordered for part in encoding.parts):
        q = _ordered_queries(encoding.name, q, context)
    if context.projections and k.shape[2] < heads:
        to_queries, to_keys = context.projections
        repeated = to_queries, lambda x: repeat_heads(to_keys(x), heads)
        context = context.replace(projections=repeated)
    parts = tuple(
        BoundPart(part, values, apply_positions(part, context, q.shape[0]))
        for part, values in split_params(encoding, params)
    )
    scale = q.shape[-1] ** -0.5
    for part, part_params, part_context in parts:
        if part.scale:
            scale = scale * part.scale(part_params, part_context)

    def scaled(x: Array) -> Array:
        # Before the products, which are Lk/d times as many; exact where d is a power of 4.
        return (at_least_float32(x) * scale).astype(x.dtype)

    content = PerToken(queries=scaled(q), keys=k)
    for part, part_params, part_context in parts:
        q, k, v = apply_heads(part, part_params, q, k, v, part_context)
    dtype = wide_dtype(q, k)
    added = _added_logits(parts, content, dtype)
    sink = _sink(parts, dtype, heads)
    is_mapped = any(part.map_qkv for part, _, _ in parts)
    return AttentionInputs(
        q=scaled(q) if is_mapped else content.queries,
        k=k,
        v=v,
        content=content,
        unscaled_q=q,
        scale=scale,
        parts=parts,
        added=added,
        sink=sink,
        masks=_masks(parts, context),
        context=context,
    )


def _ordered_queries(
    name: str, q: Float[Array, "B Lq H d"], context: HookContext
) -> jax.Array:
    """`q`, NaN for queries whose keys are out of order; a ValueError if that is known."""
    ordered = in_order(context.rows()[1], context.mask)
    if not isinstance(ordered, jax.core.Tracer) and not ordered.all():
        raise ValueError(
            f"positions of keys must rise from key to key for {name}, which adds up over the keys "
            "in the order of the row. Sort keys, values and hidden states by position, and mask "
            "padding. For packed rows pass Context(document_ids=...) or mask=document_mask(...)."
        )
    return jnp.where(ordered[..., None, None], q, jnp.nan)


def _added_logits(
    parts: Sequence[BoundPart], content: PerToken, dtype: np.dtype
) -> AddedLogits:
    """Call the hooks `logits`."""
    q, k = content.queries, content.keys
    pairs = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    arrays: list[Array] = []
    terms: list[LogitTerms] = []
    for part, params, context in parts:
        if not part.logits:
            continue
        result = part.logits(params, q, repeat_heads(k, q.shape[2]), context)
        if isinstance(result, LogitTerms):
            terms.append(result)
        else:
            array = _checked(part, "logits", result, dtype, pairs)
            arrays.append(_four_axes(array))
    total = functools.reduce(jnp.add, arrays) if arrays else None
    return AddedLogits(array=total, terms=tuple(terms))


def evaluated(terms: LogitTerms, mask: Array | None) -> Float[Array, "#B #H #Lq #Lk"]:
    """Return the terms of every pair of query and key."""
    logits = terms.function(terms.query_arrays, terms.key_arrays, terms.shared, mask)
    return _four_axes(logits)


def _four_axes(logits: Array) -> Float[Array, "#B #H #Lq #Lk"]:
    """Add leading axes: all implementations count on four."""
    return logits.reshape((1,) * (4 - logits.ndim) + logits.shape)


def _sink(
    parts: Sequence[BoundPart], dtype: np.dtype, heads: int
) -> Float[Array, " H"] | None:
    """Return the logits in the denominator: the sum of exponentials of all parts' sinks."""
    sinks = [
        _checked(part, "sink", part.sink(params, context), dtype, (heads,))
        for part, params, context in parts
        if part.sink
    ]
    if not sinks:
        return None
    return jnp.broadcast_to(functools.reduce(jnp.logaddexp, sinks), heads)


def _masks(parts: Sequence[BoundPart], context: HookContext) -> Masks:
    """Collect the caller's mask, documents, and the windows of all parts."""
    window: AttentionWindow | None = None
    position_windows = []
    for part, _, part_context in parts:
        limit = part.offsets.window if part.offsets else None
        if limit is None:
            continue
        if part_context.shift is not None:
            window = limit.within(window)
        else:
            queries, keys = part_context.rows()
            positions = PerToken(queries=queries, keys=keys)
            position_windows.append(PositionWindow(window=limit, positions=positions))
    ids = context.document_ids
    return Masks(
        mask=context.mask,
        document_ids=None if ids is None else PerToken(queries=ids, keys=ids),
        position_windows=tuple(position_windows),
        window=window,
    )


def _checked(
    part: Part, hook: str, result: ArrayLike, dtype: np.dtype, shape: tuple[Size, ...]
) -> jax.Array:
    """What a hook returned as an array; a ValueError if it does not broadcast to `shape`."""
    array = jnp.asarray(result, dtype)
    last = shape[len(shape) - array.ndim :]
    if array.ndim > len(shape) or any(
        m not in (1, n) for m, n in zip(array.shape, last)
    ):
        expected = "a number or [H]" if hook == "sink" else "[#B, #H, Lq, Lk]"
        raise ValueError(
            f"The hook {hook!r} of {part.name} must return {expected}, here {list(shape)}, got "
            f"{list(array.shape)}."
        )
    return array


def repeat_heads(x: Float[Array, "*B G d"], heads: int) -> Float[Array, "*B H d"]:
    """`x` with as many heads as queries have, for terms that need them."""
    return x if x.shape[-2] == heads else jnp.repeat(x, heads // x.shape[-2], axis=-2)


def tables(terms: Sequence[Term], scale: ArrayLike) -> Tables:
    """Evaluate terms of the offset, without rows of offsets that cannot occur. Vectors that join
    the queries are multiplied by `scale`, that of the logits."""
    clip = 1
    for term, _, context in terms:
        limits = [term.max_distance, farthest(context)]
        clip = max(clip, min(limit for limit in limits if limit is not None))
    x = np.arange(-clip, clip + 1)

    def rows(field: str, shared_axes: int) -> Array | None:
        """The sum over all terms; with an axis for heads if any of them has one."""
        evaluated = []
        for term, params, context in terms:
            hook = getattr(term, field)
            if hook:
                evaluated.append(hook(params, x, context))
        if any(array.ndim > shared_axes for array in evaluated):
            evaluated = [
                array if array.ndim > shared_axes else array[:, None]
                for array in evaluated
            ]
        return functools.reduce(jnp.add, evaluated) if evaluated else None

    key_vectors = rows("key_vectors", 2)
    query_vectors = rows("query_vectors", 2)
    value_vectors = rows("value_vectors", 2)
    bias = rows("bias", 1)
    if query_vectors is not None:
        query_vectors = query_vectors * scale
    return Tables(
        clip=clip,
        key_vectors=key_vectors,
        query_vectors=query_vectors,
        value_vectors=value_vectors,
        bias=bias,
    )


def farthest(context: HookContext) -> int | None:
    """The largest |offset| between positions that are known while compiling, else None."""
    q, k = context.ranges or (context.positions_q, context.positions_k)
    if not all(isinstance(p, range | np.ndarray) and len(p) for p in (q, k)):
        return None
    q, k = np.asarray(q), np.asarray(k)
    return int(np.ceil(max(k.max() - q.min(), q.max() - k.min(), 0)))
