"""Encodings at other positions than a model's: shifted or augmented while training, interpolated.

A wrapper changes the positions that each part of an encoding sees, and nothing else. A window or
`causal` inside it would use the changed positions as well: join it outside, `shifted(rope)+causal`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Real
from pe_jax.encodings.modifiers.randomized import Move, at_positions
from pe_jax.encodings.part import HookContext, Part
from pe_jax.encodings.positions import Positions, as_array, length, real_positions, span
from pe_jax.encodings.registry import register_wrapper


@register_wrapper
def shifted(part: Part, *, max_shift: int = 500) -> Part:
    """Shifts all positions of a sequence by one random number while training (SHAPE: Kiyono et al.
    2021, arXiv 2109.05644).

    With an rng, x -> x + k, k drawn for each row from 0 .. max_shift; documents packed into a row
    share it. Without one positions stay as they are. (At test time the authors' code adds the
    largest shift; pass such positions for that.) For a learned table k is at most what leaves room
    for the row, as there. An encoding that is invariant under shifts is not changed.

    Args:
      max_shift: the paper's experiments have 10 to 500, for sentences of some dozen tokens.

    Raises:
      ValueError: for a negative `max_shift`.
    """
    check_at_least(0, max_shift=max_shift)

    def move(x: Positions, context: HookContext) -> Positions:
        if context.position_rng is None:
            return x
        room: Array | int = max_shift
        if part.traits.max_length is not None:
            keys = as_array(context.positions_k)
            room = jnp.clip(part.traits.max_length - span(keys, keys), 0, max_shift)
            room = jnp.reshape(room, (-1, 1))
        rows = context.batch_size
        shift = jax.random.randint(context.position_rng, (rows, 1), 0, room + 1)
        if part.traits.axes > 1:
            shift = shift[..., None]
        return as_array(x) + shift

    formula = f"x → x + k, k from 0 to {max_shift} while training"
    return at_positions(part, move, formula, "Kiyono et al. 2021")


@register_wrapper
def cape(
    part: Part,
    *,
    max_global_shift: float = 5.0,
    max_local_shift: float = 0.5,
    max_global_scaling: float = 1.03,
    centered: bool = False,
) -> Part:
    """Positions shifted, jittered and scaled at random while training (CAPE: Likhomanenko et al.
    2021, arXiv 2106.03143).

        x -> (x - c + Δ + ε_x) λ,    Δ ~ U(-a, a),    ε_x ~ U(-b, b),    log λ ~ U(-log s, log s)

    with an rng: Δ and λ are drawn for each row, Δ for each axis too, ε for each position of it, so
    that queries, keys and the input agree. Without one, x -> x - c. Positions become real numbers.

    Args:
      part: any encoding without a learned table of positions.
      max_global_shift: a, the most that Δ shifts a row by. The defaults are for text.
      max_local_shift: b, the most that ε shifts a token by; up to 0.5 keeps integers in order.
      max_global_scaling: s, the largest factor λ of a row, and the inverse of the smallest.
      centered: c is the middle of a row's smallest and largest position (the paper's mean where
        positions are consecutive), else 0. Documents packed into a row share one. The middle,
        unlike the mean, is so with padding at position 0 as well.

    Raises:
      ValueError: for negative shifts, a scaling below 1, or an encoding with a learned table of
        positions, which has rows for integers.
    """
    check_at_least(
        0, max_global_shift=max_global_shift, max_local_shift=max_local_shift
    )
    check_at_least(1, max_global_scaling=max_global_scaling)
    _refuse_table(part, "cape", "take shifted, which shifts by integers")
    axes = part.traits.axes

    def move(positions: Positions, context: HookContext) -> Positions:
        x = positions
        if centered:
            x = _centered(positions, context.positions_k, axes)
        if context.position_rng is None:
            return x
        for_shift, for_jitter, for_scale = jax.random.split(context.position_rng, 3)
        rows = context.batch_size
        tokens = length(positions, axes)
        x = jnp.asarray(real_positions(x)).reshape(-1, tokens, axes)
        x = jnp.broadcast_to(x, (rows, tokens, axes))
        shift = _uniform(for_shift, (rows, 1, axes), max_global_shift)
        jitter = max_local_shift * _jitter(for_jitter, x)
        log_scale = _uniform(for_scale, (rows, 1, 1), math.log(max_global_scaling))
        out = (x + shift + jitter) * jnp.exp(log_scale)
        return out if axes > 1 else out[..., 0]

    source = "Likhomanenko et al. 2021"
    if not centered:
        return at_positions(part, move, "x → (x + Δ + ε_x) λ while training", source)
    # A centered encoding removes all that a shift changes; another token changes all.
    formula = "x → (x − c + Δ + ε_x) λ while training"
    wrapped = at_positions(part, move, formula, source, invariant=True)
    return wrapped.replace(traits=part.traits.replace(cacheable=False))


@register_wrapper
def interpolated(part: Part, *, factor: float) -> Part:
    """`encoding` at positions / factor (Chen et al. 2023, arXiv 2306.15595), so that inputs so many
    times as long as those trained on stay within the positions that were.

    For any encoding that takes real positions: `interpolated(rope, factor=8)` is
    `rope_linear(factor=8)`. A model trained on short inputs needs some fine-tuning on long ones.

    Args:
      factor: how many times as long inputs become.

    Raises:
      ValueError: for a factor that is not positive, or a learned table of positions, which has rows
        for integers; tables of offsets raise it in attention.
    """
    check_positive(factor=factor)
    new_length = f"{factor:g} * {part.traits.max_length}"
    call = f'encoding.resize(params, {new_length}, "interpolate")'
    _refuse_table(part, "interpolated", f"stretch the table instead, {call}")
    move: Move = lambda x, _: real_positions(real_positions(x) / factor)
    wrapped = at_positions(part, move, f"x → x/{factor:g}", "Chen et al. 2023")
    if wrapped.metadata is None:
        return wrapped
    metadata = wrapped.metadata
    vectors = metadata.vectors
    frequencies = metadata.frequencies
    if vectors:
        stretched = lambda params, x: vectors(params, x / factor)
        metadata = metadata.replace(vectors=stretched)
    if frequencies:
        slower = lambda params: frequencies(params) / factor
        metadata = metadata.replace(frequencies=slower)
    return wrapped.replace(metadata=metadata)


def _refuse_table(part: Part, name: str, solution: str) -> None:
    """Raise a ValueError for a part with a learned table of positions."""
    if part.traits.max_length is not None:
        raise ValueError(
            f"{name} makes positions real numbers, but {part.name} has {part.traits.max_length} "
            f"rows for integers: {solution}."
        )


def _uniform(rng: jax.Array, shape: tuple[int, ...], limit: float) -> jax.Array:
    """Numbers in [-limit, limit)."""
    return jax.random.uniform(rng, shape, minval=-limit, maxval=limit)


def _centered(positions: Positions, keys: Positions, axes: int) -> Real[Array, "*B"]:
    """`positions` minus the middle of the keys' smallest and largest position, by row."""
    tokens = -1 if axes == 1 else -2  # The axis.
    x = as_array(keys)
    first = x.min(tokens, keepdims=True)
    last = x.max(tokens, keepdims=True)
    return as_array(positions) - first - (last - first) / 2


def _jitter(rng: jax.Array, x: Real[Array, "B L A"]) -> Real[Array, "B L A"]:
    """Uniform numbers in [-1, 1) that depend on the rng, the row and the position alone."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)

    def of_position(rng: jax.Array, position: Array) -> jax.Array:
        for axis in range(position.shape[-1]):
            rng = jax.random.fold_in(rng, position[axis])
        return _uniform(rng, position.shape, 1.0)

    of_row = jax.vmap(of_position, (None, 0))
    return jax.vmap(of_row)(jax.random.split(rng, len(x)), bits)
