"""What attention is computed from, once an encoding has had its say: arrays and offset terms."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from pe_jax.attention.masks import both, reach_mask
from pe_jax.encodings.base import Context, Offsets, Params, PositionEncoding, moved
from pe_jax.encodings.positions import Positions, Reach, offsets
from pe_jax.shapes import Array, Bool, Float


class Term(NamedTuple):
    """What one part of an encoding adds.

    Attributes:
      offsets: its terms of the offset, see `Offsets`.
      logits: all its other ones, `[#B, #H, Lq, Lk]`, or None.
      context: what it sees of the layer; positions are its own.
      moved: whether these are others than the call's, which forms with arrays go by.
    """

    params: Params
    context: Context
    offsets: Offsets
    logits: Array | None
    moved: bool = False

    @property
    def positions(self) -> tuple[Positions, Positions]:
        """Of queries and keys."""
        assert self.context.positions_k is not None
        return self.context.positions_q, self.context.positions_k

    @property
    def shift(self) -> int | None:
        """See `shift` below."""
        return shift(self.context)


class Operands(NamedTuple):
    """Everything that enters attention.

    Attributes:
      q, k, v: after the encoding's maps; q is scaled.
      content_q, content_k: before the maps, what vectors of offsets meet; content_q is scaled.
      unscaled_q: q before it is scaled, for what scales logits at no cost.
      scale: s, a number or `[#B, #Lq, #H, 1]`.
      terms: what is added.
      mask: True where a query may attend to a key, but for the reach.
      reach: what all reaches over positions that are ranges allow; None where there are none.
      shift: position of the first key minus that of the first query, where both are ranges.
    """

    q: Float[Array, "B Lq H e"]
    k: Float[Array, "B Lk H e"]
    v: Float[Array, "B Lk H f"]
    content_q: Float[Array, "B Lq H d"]
    content_k: Float[Array, "B Lk H d"]
    unscaled_q: Float[Array, "B Lq H e"]
    scale: Array | float
    terms: tuple[Term, ...]
    mask: Bool[Array, "#B #H #Lq Lk"] | None
    reach: Reach | None
    shift: int | None

    @property
    def whole_mask(self) -> Bool[Array, "#B #H #Lq Lk"] | None:
        """The mask with the reach in it."""
        if self.reach is None:
            return self.mask
        assert self.shift is not None
        near = reach_mask(self.reach, self.q.shape[1], self.k.shape[1], self.shift)
        return both(self.mask, near)


def prepare(
    encoding: PositionEncoding,
    params: Params | None,
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    v: Float[Array, "B Lk H f"],
    context: Context,
    mask: Bool[Array, "#B #H #Lq Lk"] | None,
) -> Operands:
    """Applies the maps of an encoding, scales, and collects its terms."""
    parts = [(part, own, moved(part, context, len(q))) for part, own in encoding.split(params)]
    content_k, scale = k, q.shape[-1] ** -0.5
    for part, own, here in parts:
        if part.factor:
            scale = scale * part.factor(own, here)
    # Scaled before the products, which are Lk/d times as many; exact where d is a power of 4.
    scaled = lambda x: (x.astype(jnp.promote_types(x.dtype, jnp.float32)) * scale).astype(x.dtype)
    content_q = scaled(q)
    for part, own, here in parts:
        if part.heads:
            q, k, v = part.heads(own, q, k, v, here)
    mapped = any(part.heads for part, _, _ in parts)
    terms: list[Term] = []
    reach: Reach | None = None
    for part, own, here in parts:
        if part.offsets is None and part.logits is None:
            continue
        logits = part.logits(own, content_q, content_k, here) if part.logits else None
        if logits is not None:  # A hook may leave out leading axes: all forms count on four.
            logits = logits.reshape((1,) * (4 - logits.ndim) + logits.shape)
        term = Term(own, here, part.offsets or Offsets(), logits, here is not context)
        terms.append(term)
        if term.offsets.reach is not None:
            if term.shift is None:
                mask = both(mask, _allowed(term, term.offsets.reach))
            else:
                reach = term.offsets.reach.within(reach)
    return Operands(
        scaled(q) if mapped else content_q,
        k, v, content_q, content_k, q, scale, tuple(terms), mask, reach, shift(context),
    )  # fmt: skip


def finish(
    encoding: PositionEncoding, params: Params | None, out: Array, context: Context
) -> Array:
    """Undoes what the encoding's maps did to the values, last map first."""
    for part, own in reversed(encoding.split(params)):
        if part.output:
            out = part.output(own, out, moved(part, context, len(out)))
    return out


def shift(context: Context) -> int | None:
    """Position of the first key minus that of the first query, where both are ranges."""
    q, k = context.positions_q, context.positions_k
    return k.start - q.start if isinstance(q, range) and isinstance(k, range) else None


def _allowed(term: Term, reach: Reach) -> Bool[Array, "#B 1 Lq Lk"]:
    near = reach.allows(offsets(*term.positions))
    return near[:, None] if near.ndim == 3 else near[None, None]
