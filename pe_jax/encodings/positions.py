"""Positions of tokens, their offsets, and how far a query attends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Real, Size

# `range(start, stop)`: consecutive positions, the same in every row, known while compiling. That is
# what fast attention needs. Anything else is an array `[L]` or `[B, L]`, integer or real, or
# `[..., L, A]` for an encoding of A axes.
Positions = range | Array

# Differences of integers below the first fit into int32, and floats below the second are as exact
# as whole numbers. Positions from there on are refused where they are known while tracing.
_MOST = 2**30
_MOST_FLOAT = 2**24


def checked_positions(
    positions: Positions | None,
    tokens: tuple[Size, ...],
    axes: int,
    name: str,
    longest: int | None = None,
) -> Positions:
    """Return `positions` of tokens, checked; by default from 0, see `default_positions`.

    Args:
      positions: of each token.
      tokens: B and L.
      axes: A, that the encoding takes.
      name: of the tokens in messages.
      longest: the number of positions that the encoding has, for a symbolic L.

    Raises:
      ValueError: for another number of positions, rows or axes, an unsuitable dtype, or positions
        that are known to be NaN, or 2^30 or more (floats: 2^24) on either side of 0.
    """
    rows, size = tokens
    if positions is None:
        if axes > 1:
            raise ValueError(
                f"Positions of {axes} axes have no default. Pass an array [L, {axes}]."
            )
        return default_positions(size, longest)
    if isinstance(positions, range):
        if positions.step != 1 or axes > 1:
            raise ValueError(
                f"A range must be consecutive positions of one axis, got {positions} for "
                f"{axes}. Pass an array."
            )
        _check_size(np.array([positions.start, positions.stop]), _MOST, name)
    else:
        positions = _signed(positions, name)
        shape = np.shape(positions)
        rank = 1 if axes == 1 else 2
        if len(shape) not in (rank, rank + 1) or (axes > 1 and shape[-1] != axes):
            last = "" if axes == 1 else f", {axes}"
            raise ValueError(
                f"positions must be [L{last}] or [B, L{last}], got {list(shape)}."
            )
    if length(positions, axes) != size:
        raise ValueError(
            f"positions must have one entry for each of {size} tokens of {name} (its axis 1), got "
            f"{length(positions, axes)}."
        )
    shape = () if isinstance(positions, range) else np.shape(positions)
    if len(shape) > min(axes, 2) and shape[0] not in (1, rows):
        raise ValueError(
            f"positions of {name} have {shape[0]} rows for a batch of {rows}: pass as many as "
            f"the batch has, or the same for all rows, [L{', axes' * (axes > 1)}]. "
            "jnp.repeat(x, rows, axis=0) makes a batch of one input."
        )
    return positions


def default_positions(size: Size, longest: int | None = None) -> Positions:
    """Return positions from 0; an array if the size is symbolic (`jax.export`).

    Raises:
      ValueError: for a symbolic size that may exceed `longest`.
    """
    if isinstance(size, int):
        return range(size)
    try:
        fits = longest is None or size <= longest
    except jax.errors.InconclusiveDimensionOperation:
        fits = False
    if not fits:
        raise ValueError(
            f"The length {size} is unbounded, but the encoding has {longest} positions. Export "
            f"with symbolic_shape(..., constraints=['{size} <= {longest}'])."
        )
    return jnp.arange(size)


def check_length(size: Size, user: str) -> None:
    """Raise a ValueError for a size that is not known at compile time (`jax.export`)."""
    if not isinstance(size, int):
        raise ValueError(
            f"{user} needs a length that is known at compile time, got {size}. Export a program "
            "for each length."
        )


def _signed(positions: Array, name: str) -> Array:
    """Return positions of a type whose differences are right: integers of 32 bits, or floats."""
    x = positions if isinstance(positions, jax.Array) else np.asarray(positions)
    if x.dtype in (np.float32, np.float64):
        _check_size(x, _MOST_FLOAT, name)
        return x
    if not np.issubdtype(x.dtype, np.integer):
        reason = (
            "" if x.dtype == bool else " Its neighbouring positions are equal far out."
        )
        raise ValueError(
            f"positions of {name} must be integers, float32 or float64, got {x.dtype}.{reason}"
        )
    _check_size(x, _MOST, name)
    if np.issubdtype(x.dtype, np.signedinteger) and x.dtype.itemsize >= 4:
        return x
    return x.astype(np.int64 if isinstance(x, np.ndarray) else np.int32)


def _check_size(positions: Array, most: int, name: str) -> None:
    """Raise a ValueError for known positions that are NaN, or at least `most` from 0."""
    if isinstance(positions, jax.core.Tracer):
        return
    x = np.asarray(positions)
    if x.size == 0:
        return
    lowest = x.min()
    highest = x.max()  # NaN if a position is.
    if np.isnan(highest):
        first = [int(index) for index in np.argwhere(np.isnan(x))[0]]
        raise ValueError(
            f"positions of {name} must be numbers, got nan at index {first}. Give padding any "
            "position, such as 0, and hide it by a mask."
        )
    if highest >= most or lowest <= -most:
        or_integers = ", or pass integers" if x.dtype.kind == "f" else ""
        raise ValueError(
            f"positions of {name} must be between -{most:,} and {most:,}, got {lowest} to "
            f"{highest} ({x.dtype}). Count them from a nearer start{or_integers}."
        )


def real_positions(positions: Positions) -> Float[Array, "..."]:
    """Return positions as floats for encodings that scale them; traced ones of 2^24 or more become
    NaN.

    Raises:
      ValueError: for positions of 2^24 or more that are known while tracing.
    """
    x = as_array(positions)
    _check_size(x, _MOST_FLOAT, "encodings that scale them")
    if isinstance(x, jax.core.Tracer):
        inside = jnp.abs(x) < _MOST_FLOAT
        return jnp.where(inside, jnp.asarray(x, jnp.float32), jnp.nan)
    return np.asarray(x, np.float32)


def paired_positions(
    positions_q: Positions | None,
    positions_k: Positions | None,
    queries: tuple[Size, ...],
    keys: tuple[Size, ...],
    axes: int,
    longest: int | None = None,
) -> tuple[Positions, Positions]:
    """Return positions of queries and keys, checked.

    Where there are as many of both, either default to the other's, both to a range from 0.

    Args:
      positions_q, positions_k: of queries and keys; None for the default.
      queries: B and Lq.
      keys: B and Lk.
      axes, longest: as in `checked_positions`.

    Raises:
      ValueError: for missing positions of different numbers of queries and keys; and see
        `checked_positions`.
    """
    if queries[1] != keys[1] and (positions_q is None or positions_k is None):
        raise ValueError(
            f"Attention of {queries[1]} queries to {keys[1]} keys needs the positions of both. "
            "Pass Context(positions_q=..., positions_k=...)."
        )
    if positions_k is None:
        shared = checked_positions(positions_q, queries, axes, "q", longest)
        return shared, shared
    checked_k = checked_positions(positions_k, keys, axes, "k")
    if positions_q is None:
        return checked_k, checked_k
    return checked_positions(positions_q, queries, axes, "q"), checked_k


def length(positions: Positions, axes: int = 1) -> Size:
    """Return L of positions of so many axes."""
    if isinstance(positions, range):
        return len(positions)
    return np.shape(positions)[-1 if axes == 1 else -2]


def span(positions_q: Array, positions_k: Array) -> Array:
    """Return the largest position + 1, `[]`, or `[B]` for rows with positions of their own."""
    return jnp.maximum(positions_q.max(-1), positions_k.max(-1)) + 1


def as_array(positions: Positions | None) -> jax.Array | np.ndarray:
    """Return positions as an array; a range as NumPy, so that it stays known while compiling."""
    assert positions is not None, "Context has no positions."
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop)
    return positions


def offsets(
    positions_q: Positions, positions_k: Positions
) -> Real[jax.Array | np.ndarray, "*B Lq Lk"]:
    """Return signed offsets j - i, positive where the key is to the right of the query."""
    i = as_array(positions_q)[..., :, None]
    j = as_array(positions_k)[..., None, :]
    return j - i


class AttentionWindow(Record):
    """A query attends to keys with `-left <= j - i <= right`; None sets no limit on its side.

    `AttentionWindow(left=64, right=64)` is a window of 129 keys, `AttentionWindow(right=0)` causal
    attention, `AttentionWindow(left=63, right=0)` that with a window of 64 keys, the query's own
    among them.
    """

    left: int | None = None
    right: int | None = None

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """left and right."""
        return self.left, self.right

    @property
    def span(self) -> int | None:
        """left + right; None without a limit on both sides."""
        if self.left is None or self.right is None:
            return None
        return self.left + self.right

    def within(self, other: AttentionWindow | None) -> AttentionWindow:
        """Return the window of the keys that both allow."""
        if other is None:
            return self
        return AttentionWindow(
            left=_smaller(self.left, other.left),
            right=_smaller(self.right, other.right),
        )

    def allows(self, offset: Real[Array, "*B"]) -> Bool[jax.Array, "*B"]:
        """Return True where offsets are within."""
        right = True if self.right is None else offset <= self.right
        left = True if self.left is None else offset >= -self.left
        return jnp.broadcast_to(jnp.logical_and(left, right), jnp.shape(offset))


def _smaller(a: int | None, b: int | None) -> int | None:
    """Return the smaller of two limits, of which None is no limit."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
