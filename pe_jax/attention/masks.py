"""Attention masks: boolean, True where a query may attend to a key."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention.token_axes import PerToken, axes
from pe_jax.common.dtypes import check_floats
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int, Leaf, Real, Size
from pe_jax.encodings.positions import AttentionWindow, Positions, offsets

_HIGHEST_DOCUMENT = 2**31 - 2


def padding_mask(mask: Bool[Array, "B Lk"]) -> Bool[jax.Array, "B 1 1 Lk"]:
    """Return the mask in which every query attends to the keys that `mask` has, not to padding."""
    return jnp.asarray(mask)[:, None, None, :]


def document_mask(
    document_ids_q: Int[Array, "B Lq"], document_ids_k: Int[Array, "B Lk"]
) -> Bool[jax.Array, "B 1 Lq Lk"]:
    """Return the mask of packed sequences, in which queries attend to keys of the same document.

    Documents are numbered from 1. Padding is 0: it attends to nothing, and nothing attends to it.

    Raises:
      ValueError: for ids that are not integers, or that are known and not from 0 to 2^31 - 2.
    """
    q = checked_document_ids(document_ids_q, "document_ids_q")
    k = checked_document_ids(document_ids_k, "document_ids_k")
    return same_document(q, k)


def same_document(
    document_ids_q: Int[Array, "B Lq"], document_ids_k: Int[Array, "B Lk"]
) -> Bool[jax.Array, "B 1 Lq Lk"]:
    """Return the `document_mask` of ids that `checked_document_ids` returned."""
    q, k = document_ids_q[:, None, :, None], document_ids_k[:, None, None, :]
    return (q == k) & (q > 0)


def checked_document_ids(document_ids: Array, name: str) -> Int[jax.Array, "B L"]:
    """Return `document_ids` in 32 bits or more. Values that are known are checked.

    Raises:
      ValueError: for ids that are not integers `[B, L]`, or that are known and not from 0 to
        2^31 - 2. One more than the highest id has to fit into int32.
    """
    ids = document_ids
    if not isinstance(ids, jax.Array):
        ids = np.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim != 2:
        raise ValueError(
            f"{name} must be integers [B, L], the number of each token's document, got "
            f"{ids.dtype} {list(ids.shape)}. Number documents from 1, and padding 0."
        )
    if isinstance(ids, jax.core.Tracer):
        return jnp.asarray(ids, jnp.int32) if ids.dtype.itemsize < 4 else ids
    known = np.asarray(ids)
    lowest = int(known.min(initial=0))
    highest = int(known.max(initial=0))
    if lowest < 0 or highest > _HIGHEST_DOCUMENT:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(
            f"{name} must be from 0 to {_HIGHEST_DOCUMENT:,}, got {wrong:,} ({ids.dtype}). Number "
            "documents from 1 in each row, and padding 0."
        )
    return jnp.asarray(ids, jnp.int32)


def check_document_ids(
    document_ids: Int[Array, "B L"], positions: Positions | None
) -> None:
    """Check documents whose ids are known.

    Raises:
      ValueError: for a document whose tokens are not next to one another, or not at consecutive
        positions.
    """
    if isinstance(document_ids, jax.core.Tracer):
        return
    numbers = np.asarray(document_ids)
    same = numbers[:, 1:] == numbers[:, :-1]
    for row, inside in zip(numbers, same):
        starts = row[np.append(True, ~inside)]
        first, counts = np.unique(starts[starts > 0], return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"Context.document_ids must have the tokens of a document next to one another, but "
                f"document {first[counts > 1][0]} begins twice in a row. Pass "
                "mask=document_mask(document_ids, document_ids)."
            )
    if positions is None or isinstance(positions, jax.core.Tracer):
        return
    steps = np.diff(np.asarray(positions))
    inside = same & (numbers[:, 1:] > 0)
    if np.shape(steps)[-1:] == same.shape[1:] and (inside & (steps != 1)).any():
        raise ValueError(
            "positions must be consecutive within Context.document_ids, whose offsets are those of "
            "places in the row. For others pass mask=document_mask(document_ids, document_ids)."
        )


def document_bounds(
    document_ids: Int[Array, "B L"],
) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Return where the document of each token starts, and one past its end."""
    length = document_ids.shape[1]
    place = jnp.arange(length)
    new = jnp.diff(document_ids, axis=1) != 0
    first = jnp.pad(new, ((0, 0), (1, 0)), constant_values=True)
    last = jnp.pad(new, ((0, 0), (0, 1)), constant_values=True)
    starts = jax.lax.cummax(jnp.where(first, place, 0), axis=1)
    ends = jax.lax.cummin(jnp.where(last, place + 1, length), axis=1, reverse=True)
    return starts, ends


def document_positions(document_ids: Int[Array, "B L"]) -> Int[jax.Array, "B L"]:
    """Return positions from 0 in each document.

    Raises:
      ValueError: for ids that are not integers, or that are known and not from 0 to 2^31 - 2.
    """
    starts, _ = document_bounds(checked_document_ids(document_ids, "document_ids"))
    return jnp.arange(document_ids.shape[1]) - starts


def in_order(
    positions: Real[Array, "#B Lk"], mask: Bool[Array, "#B #H #Lq Lk"] | None
) -> Bool[Array, "#B #Lq"]:
    """True for queries to whose keys positions rise from key to key, leaving out masked keys."""
    x = jnp.asarray(positions)[:, None, None]
    mask = jnp.ones((1, 1, 1, x.shape[-1]), bool) if mask is None else jnp.asarray(mask)
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    lowest = jnp.iinfo(x.dtype).min if is_integer else -jnp.inf
    largest = jax.lax.cummax(jnp.where(mask, x, lowest), axis=3)
    return ~(mask[..., 1:] & (x[..., 1:] <= largest[..., :-1])).any((1, 3))


def index_offsets(
    rows: Size, columns: Size, shift: ArrayLike, sign: int = -1
) -> Int[Array, "Lq Lk"]:
    """Return column + sign · row + shift, by default the offset from a query to a key."""
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    return column + sign * row + shift


class PositionWindow(Record, pytree=True, static=("window",)):
    """A window over positions that are no ranges.

    Attributes:
      positions: `[#B, L]`.
    """

    window: AttentionWindow
    positions: PerToken


class Masks(Record, pytree=True, static=("window",)):
    """All that keeps queries from keys. Defaults keep none.

    Attributes:
      mask: the caller's, bool `[#B, #H, #Lq, Lk]`, True where a query may attend to a key.
      document_ids: `[#B, L]`, see `Context`.
      position_windows: windows over positions that are no ranges.
      window: what all windows over consecutive positions allow.
    """

    mask: Leaf = dataclasses.field(default=None, metadata=axes(queries=2, keys=3))
    document_ids: PerToken | None = None
    position_windows: tuple[PositionWindow, ...] = ()
    window: AttentionWindow | None = None

    @property
    def allowed(self) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """The caller's mask, within documents."""
        if self.document_ids is None:
            return self.mask
        ids = self.document_ids
        return combine_masks(self.mask, same_document(ids.queries, ids.keys))

    def whole(
        self, lengths: tuple[Size, Size], shift: ArrayLike | None
    ) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """Return one mask of everything; None if every query may attend to every key.

        Args:
          lengths: Lq and Lk.
          shift: the first key's position minus the first query's, if positions are consecutive.
        """
        mask = self.allowed
        for limit in self.position_windows:
            offset = offsets(limit.positions.queries, limit.positions.keys)
            mask = combine_masks(mask, limit.window.allows(offset)[:, None])
        if self.window is None:
            return mask
        assert shift is not None  # Or the window would be one over positions.
        within = self.window.allows(index_offsets(*lengths, shift))
        return combine_masks(mask, within[None, None])


def check_mask(mask: Any, shape: tuple[Size, Size, Size, Size]) -> None:
    """Check a mask of queries and keys of the shape [B, H, Lq, Lk].

    Raises:
      ValueError: for a mask that is not bool or does not broadcast to the shape.
    """
    if mask is None:
        return
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if dtype != jnp.bool_:
        raise ValueError(
            f"mask must be bool (True where a query may attend to a key), got {dtype}. For an "
            "additive mask that is 0 where allowed, pass `mask=additive == 0`. Pass a bias as an "
            "encoding."
        )
    fits = mask.ndim == 4 and all(
        m in (1, n) for m, n in zip(mask.shape, shape, strict=True)
    )
    if not fits or mask.shape[3] != shape[3]:
        raise ValueError(
            f"mask must be [B or 1, H or 1, Lq or 1, Lk], here {list(shape)}; got "
            f"{list(mask.shape)}. Lengths are axis 1 of q and k, [B, L, H, d]."
        )


def combine_masks(
    mask: Bool[Array, "..."] | None, other: Bool[Array, "..."]
) -> Bool[Array, "..."]:
    """True where both allow; None allows everything."""
    return other if mask is None else mask & other


def masked_logits(
    logits: Float[Array, "*B"], mask: Bool[Array, "..."] | None
) -> jax.Array:
    """A floor where the mask forbids. Finite: a row of -inf, and its gradient, would be NaN."""
    if mask is None:
        return logits
    return jnp.where(mask, logits, jnp.finfo(logits.dtype).min)


def masked_weights(
    weights: Float[Array, "*B"], mask: Bool[Array, "..."] | None
) -> jax.Array:
    """0 where the mask forbids, which the floor leaves above 0 in rows without any key."""
    return weights if mask is None else jnp.where(mask, weights, 0.0)


def masked_softmax(
    logits: Float[Array, "B H Lq Lk"],
    mask: Bool[Array, "#B #H #Lq Lk"] | None,
    sink: Float[Array, " H"] | None = None,
) -> Float[jax.Array, "B H Lq Lk"]:
    """Softmax over the keys that the mask allows; all zeros where it allows none.

    Args:
      sink: logits that join the denominator, one of each head.

    Raises:
      ValueError: for logits that are no floats, and a mask that is not bool or does not fit them.
    """
    check_floats(logits=logits)
    check_mask(mask, np.shape(logits))
    logits = masked_logits(jnp.asarray(logits), mask)
    if sink is None:
        return masked_weights(jax.nn.softmax(logits, axis=-1), mask)
    column = sink[:, None, None].astype(logits.dtype)
    column = jnp.broadcast_to(column, (*logits.shape[:3], 1))
    with_sink = jax.nn.softmax(jnp.concatenate([logits, column], axis=-1), axis=-1)
    return masked_weights(with_sink[..., :-1], mask)
