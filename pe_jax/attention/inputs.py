"""Arrays that enter attention, once an encoding has acted on queries, keys and values.

Each of the G heads of keys and values serves H / G consecutive heads of queries. Terms of encodings
are those of the H heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention.masks import combine_masks, in_order, same_document, whole_mask
from pe_jax.attention.offset_terms import Tables
from pe_jax.common.dtypes import at_least_float32, wide_dtype
from pe_jax.common.shapes import Array, Bool, Float, Size
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

Term = tuple[
    OffsetTerms, Params, HookContext
]  # What a part adds, its parameters, and what it sees.
Parts = tuple[tuple[Part, Params, HookContext], ...]


class AttentionInputs(NamedTuple):
    """Everything that enters attention."""

    q: Float[Array, "B Lq H e"]  # After the encoding's maps; q is scaled.
    k: Float[Array, "B Lk G e"]
    v: Float[Array, "B Lk G f"]
    # Before the maps, what vectors of offsets meet; content_q is scaled.
    content_q: Float[Array, "B Lq H d"]
    content_k: Float[Array, "B Lk G d"]
    # `q` before it is scaled, for attention that scales its products itself.
    unscaled_q: Float[Array, "B Lq H e"]
    scale: Array | float  # s, a number or `[#B, #Lq, #H, 1]`.
    parts: Parts  # Of the encoding, each with its parameters and what it sees.
    # What hooks `logits` that return arrays add, `[#B, #H, Lq, Lk]`, or None.
    added: Float[Array, "#B #H #Lq #Lk"] | None
    logit_terms: tuple[LogitTerms, ...]  # What the others add.
    # The logits in the denominator, summed as exponentials, `[H]` in their dtype, or None.
    sink: Float[Array, " H"] | None
    # The caller's, True where a query may attend to a key.
    mask: Bool[Array, "#B #H #Lq Lk"] | None
    # Windows over positions that are no ranges, with these of queries and keys.
    position_windows: tuple[tuple[AttentionWindow, Array, Array], ...]
    # What all windows over positions that are ranges allow; None where there are none.
    window: AttentionWindow | None
    context: HookContext  # The positions of the call.

    @property
    def terms(self) -> list[Term]:
        """The terms of the offset."""
        return [
            (part.offsets, params, context)
            for part, params, context in self.parts
            if part.offsets and part.offsets.has_terms
        ]

    @property
    def vectors(self) -> bool:
        """True if vectors of the offset are added, at positions that are ranges."""
        added = any(
            term.key_vectors or term.query_vectors or term.value_vectors
            for term, _, _ in self.terms
        )
        return added and self.context.ranges is not None

    @property
    def maps(self) -> list[tuple[Callable[..., jax.Array], Params]]:
        """The maps of the finished logits, with their parameters."""
        return [
            (part.map_logits, params)
            for part, params, _ in self.parts
            if part.map_logits
        ]

    @property
    def allowed(self) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """The caller's mask, within documents."""
        document_ids = self.context.document_ids
        if document_ids is None:
            return self.mask
        return combine_masks(self.mask, same_document(document_ids, document_ids))

    @property
    def whole_mask(self) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """The mask with all windows in it."""
        lengths = self.q.shape[1], self.k.shape[1]
        return whole_mask(
            self.allowed,
            self.position_windows,
            self.window,
            lengths,
            self.context.shift,
        )


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
    split = split_params(encoding, params)
    parts = tuple(
        (part, values, apply_positions(part, context, q.shape[0]))
        for part, values in split
    )
    scale = q.shape[-1] ** -0.5
    for part, part_params, part_context in parts:
        if part.scale:
            scale = scale * part.scale(part_params, part_context)

    def scaled(x: Array) -> Array:
        # Before the products, which are Lk/d times as many; exact where d is a power of 4.
        return (at_least_float32(x) * scale).astype(x.dtype)

    content_q, content_k = scaled(q), k
    for part, part_params, part_context in parts:
        q, k, v = apply_heads(part, part_params, q, k, v, part_context)
    dtype = wide_dtype(q, k)
    added, logit_terms = _logits(parts, content_q, content_k, dtype)
    sinks = [
        _checked(part, "sink", part.sink(part_params, part_context), dtype, (heads,))
        for part, part_params, part_context in parts
        if part.sink
    ]
    windows = [
        (part.offsets.window, part_context)
        for part, _, part_context in parts
        if part.offsets
    ]
    limited = [
        (window, part_context) for window, part_context in windows if window is not None
    ]
    over_ranges = [
        window for window, part_context in limited if part_context.shift is not None
    ]
    mapped = any(part.map_qkv for part, _, _ in parts)
    return AttentionInputs(
        q=scaled(q) if mapped else content_q,
        k=k,
        v=v,
        content_q=content_q,
        content_k=content_k,
        unscaled_q=q,
        scale=scale,
        parts=parts,
        added=functools.reduce(jnp.add, added) if added else None,
        logit_terms=tuple(logit_terms),
        sink=jnp.broadcast_to(functools.reduce(jnp.logaddexp, sinks), heads)
        if sinks
        else None,
        mask=mask,
        position_windows=tuple(
            (window, *part_context.rows())
            for window, part_context in limited
            if part_context.shift is None
        ),
        window=functools.reduce(AttentionWindow.within, over_ranges)
        if over_ranges
        else None,
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


def _logits(
    parts: Parts,
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    dtype: np.dtype,
) -> tuple[list[Float[Array, "#B #H #Lq #Lk"]], list[LogitTerms]]:
    """What the hooks `logits` return: arrays, and terms."""
    pairs = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    arrays: list[Array] = []
    terms: list[LogitTerms] = []
    for part, params, part_context in parts:
        if not part.logits:
            continue
        result = part.logits(params, q, repeat_heads(k, q.shape[2]), part_context)
        if isinstance(result, LogitTerms):
            terms.append(result)
        else:  # All implementations count on four axes.
            result = _checked(part, "logits", result, dtype, pairs)
            arrays.append(result.reshape((1,) * (4 - result.ndim) + result.shape))
    return arrays, terms


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


# Tables by name: the field of `OffsetTerms`, and the axes without one for heads.
_TABLES = {
    "keys": ("key_vectors", 2),
    "queries": ("query_vectors", 2),
    "values": ("value_vectors", 2),
    "bias": ("bias", 1),
}


def tables(terms: Sequence[Term], scale: ArrayLike) -> Tables:
    """Evaluate terms of the offset, without rows of offsets that cannot occur. Vectors that join
    the queries are multiplied by `scale`, that of the logits."""
    limits = [(term.max_distance, farthest(context)) for term, _, context in terms]
    clip = max([1, *(min(n for n in pair if n is not None) for pair in limits)])
    x = np.arange(-clip, clip + 1)
    summed: dict[str, Array] = {}
    for name, (field, axes) in _TABLES.items():
        hooks = [
            (getattr(term, field), params, context) for term, params, context in terms
        ]
        rows = [hook(params, x, context) for hook, params, context in hooks if hook]
        per_head = any(row.ndim > axes for row in rows)
        rows = [
            row if row.ndim > axes or not per_head else row[:, None] for row in rows
        ]
        if rows:
            summed[name] = functools.reduce(jnp.add, rows)
    if "queries" in summed:
        summed["queries"] = summed["queries"] * scale
    return Tables(summed, clip)


def farthest(context: HookContext) -> int | None:
    """The largest |offset| between positions that are known while compiling, else None."""
    q, k = context.ranges or (context.positions_q, context.positions_k)
    if not all(isinstance(p, range | np.ndarray) and len(p) for p in (q, k)):
        return None
    q, k = np.asarray(q), np.asarray(k)
    return int(np.ceil(max(k.max() - q.min(), q.max() - k.min(), 0)))
