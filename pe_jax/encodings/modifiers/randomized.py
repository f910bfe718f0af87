"""Randomized positions: an encoding that meets all positions of longer sequences while training.

Ruoss et al. 2023, "Randomized positional encodings boost length generalization of transformers",
arXiv 2305.16843.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Real
from pe_jax.encodings.part import HookContext, Part
from pe_jax.encodings.positions import Positions, as_array, check_length, length
from pe_jax.encodings.registry import register_wrapper
from pe_jax.encodings.tables import look_up_traced

Move = Callable[[Positions, HookContext], Positions]


def at_positions(
    part: Part, move: Move, formula: str, source: str, **changes: Any
) -> Part:
    """Return `part` at the positions that `move` makes of a model's.

    Args:
      formula: of the positions.
      source: the paper of the wrapper.
      changes: further ones of the metadata.
    """

    def positions(x: Positions, context: HookContext) -> Positions:
        moved = move(x, context)
        if part.positions is None:
            return moved
        context = context.replace(positions_k=move(context.positions_k, context))
        return part.positions(moved, context)

    metadata = part.metadata and part.metadata.replace(
        formula=f"{part.metadata.formula}, {formula}",
        source=f"{source}; {part.metadata.source}",
        **changes,
    )
    return part.replace(positions=positions, metadata=metadata)


@register_wrapper
def randomized(part: Part, *, num_positions: int = 2048, real: bool = False) -> Part:
    """`encoding` at sorted random positions (Ruoss et al. 2023, arXiv 2305.16843).

    While training (with an rng), the n-th position of a sequence of L tokens is the n-th smallest
    of L different numbers out of 0 .. num_positions-1. The same rng draws the same numbers for
    queries and keys, all rows, all layers and the input. Order is kept, distances are not, so the
    encoding is trained on distances of sequences that are never seen.

    Without one, positions are spread evenly over 0 .. num_positions-1. (The paper draws at test
    time as well: pass an rng for that. Its relative encoding draws offsets by themselves; here,
    offsets are differences of drawn positions.)

    Positions count tokens from 0, as they do in packed and padded rows: all are below L, the number
    of keys. Others are a ValueError; traced ones become `num_positions` (NaN with `real`). L is
    that of the whole row: a document gets other positions with more padding or among other
    documents, and a cache needs its final number of keys from the start.

    Args:
      part: an encoding of one axis; a learned table has at least `num_positions` rows.
      num_positions: tokens of the sequences to generalise to; more are a ValueError.
      real: L real numbers out of [0, num_positions-1] instead, for any L (Shimizu et al. 2026,
        arXiv 2602.14050); not for learned tables, which have rows for integers.

    Raises:
      ValueError: for `num_positions` below 1, an encoding of several axes, or a learned table of
        fewer than `num_positions` rows; in a call, for more tokens than `num_positions` unless
        `real`, positions that are not integers or do not count from 0, or a symbolic length.
    """
    check_at_least(1, num_positions=num_positions)
    if part.traits.axes != 1:
        raise ValueError(
            f"randomized needs positions of one axis, but {part.name} has {part.traits.axes}."
        )
    rows = part.traits.max_length
    if rows is not None and rows < num_positions:
        raise ValueError(
            f"{part.name} has {rows} positions, fewer than num_positions={num_positions}. Build it "
            f"with max_length={num_positions}, or use randomized(..., num_positions={rows})."
        )

    def move(x: Positions, context: HookContext) -> Positions:
        count = length(context.positions_k)
        check_length(count, f"randomized({part.name})")
        table = _positions(count, num_positions, real, context.position_rng)
        return _look_up(table, x, num_positions)

    formula = f"x → p_x, p sorted, drawn from 0 to {num_positions - 1}"
    # Positions depend on the number of tokens: one more moves those before it.
    traits = part.traits.replace(
        max_length=None if real else num_positions, cacheable=False
    )
    wrapped = at_positions(part, move, formula, "Ruoss et al. 2023", invariant=False)
    return wrapped.replace(traits=traits)


def _positions(
    count: int, num_positions: int, real: bool, rng: jax.Array | None
) -> Real[Array, " L"]:
    """Increasing positions of `count` tokens; drawn with an rng, else spread evenly."""
    if not real and count > num_positions:
        raise ValueError(
            f"num_positions={num_positions} is less than the {count} tokens, which need different "
            f"positions. Use randomized(..., num_positions={count}) or more, or real=True."
        )
    if rng is None:
        even = np.arange(count) * (num_positions - 1)
        steps = max(count - 1, 1)
        if real:
            return (even / steps).astype(np.float32)
        return even // steps
    if real:
        return jnp.sort(jax.random.uniform(rng, (count,), maxval=num_positions - 1))
    return jnp.sort(jax.random.choice(rng, num_positions, (count,), replace=False))


def _look_up(
    table: Real[Array, " N"], positions: Positions, num_positions: int
) -> Real[Array, "*B"]:
    """Entries of `table`. Positions outside are an error, or unlike every entry."""
    count = len(table)
    x = as_array(positions)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"positions must be integers for randomized, which counts tokens; got {x.dtype}."
        )
    if isinstance(x, jax.core.Tracer):
        outside = num_positions if jnp.issubdtype(table.dtype, jnp.integer) else jnp.nan
        return look_up_traced(table, x, outside)
    indices = np.asarray(x)
    if indices.size and not 0 <= indices.min() <= indices.max() < count:
        raise ValueError(
            f"positions of the {count} keys must count from 0 for randomized, got {indices.min()} "
            f"to {indices.max()}. Start from 0 in each row, and pass all keys."
        )
    return table[indices]
