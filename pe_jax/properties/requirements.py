"""Requirements on position encodings: unique, bounded, the same at any length and any shift.

The first two are measured on points, one for each position or offset: its vector, or the logits
that it adds. The others compare two proximity matrices of the same positions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float
from pe_jax.properties.arithmetic import (
    matrix_sum,
    ratio,
    rounding_error,
    to_unit_scale,
)
from pe_jax.properties.compiled import compiled


@compiled()
def distinctness(points: Float[Array, "*B N D"]) -> Float[jax.Array, "*B"]:
    """Return the smallest distance of two points over their root-mean-square distance, in [0, 1].

    0 where two points coincide; NaN for points that are not finite.

    Raises:
      ValueError: for fewer than two points.
    """
    count = points.shape[-2]
    if count < 2:
        raise ValueError(f"Distinctness needs at least two points, got {count}.")
    points = to_unit_scale(points)

    # Between the points themselves: distances from dot products would lose what is nearly equal.
    def squares_to_all(point: Array) -> Array:
        return ((points - point[..., None, :]) ** 2).sum(-1)

    by_point = jax.lax.map(squares_to_all, jnp.moveaxis(points, -2, 0))
    squares = jnp.moveaxis(by_point, 0, -2)  # [*B, N, N]
    nearest = jnp.where(jnp.eye(count, dtype=bool), jnp.inf, squares).min((-2, -1))
    mean = matrix_sum(squares) / (count * (count - 1))
    return jnp.sqrt(ratio(nearest, mean, 0.0))


@compiled()
def norm_growth(
    near: Float[Array, "*B N D"], far: Float[Array, "*B M D"]
) -> Float[jax.Array, "*B"]:
    """Return the largest norm of `far` points over that of `near` ones.

    About 1 for points of bounded size; 1 where all are 0, infinite where only `near` are 0.
    """
    near_count = near.shape[-2]
    points = to_unit_scale(jnp.concatenate([near, far], axis=-2))
    norms = jnp.sqrt((points**2).sum(-1))
    near_norm = norms[..., :near_count].max(-1)
    far_norm = norms[..., near_count:].max(-1)
    return ratio(far_norm, near_norm, jnp.where(far_norm > 0, jnp.inf, 1.0))


@compiled()
def relative_change(
    phi: Float[Array, "*B L L"], other: Float[Array, "*B L L"]
) -> Float[jax.Array, "*B"]:
    """Return ‖Φ' - Φ‖² / ‖Φ - mean‖² off the diagonal.

    That is the part of Φ's variation that Φ', of the same tokens in a longer input or at shifted
    positions, does not share.

    0 if they agree, about 2 for unrelated ones of the same spread. A constant Φ has no variation to
    compare with: 0 where nothing changes, else 1, as 1 - R² is by convention (scikit-learn's
    `r2_score`). So it is for fewer than two positions. NaN for proximities that are not finite.
    """
    length = phi.shape[-1]
    count = length * (length - 1)
    diagonal = jnp.eye(length, dtype=bool)

    def off_diagonal(matrix: Array) -> jax.Array:
        return jnp.where(diagonal, 0.0, matrix)

    both = jnp.concatenate([off_diagonal(phi), off_diagonal(other)], axis=-1)
    both = to_unit_scale(both)
    phi = both[..., :length]
    other = both[..., length:]
    mean = phi.sum((-2, -1), keepdims=True) / max(count, 1)
    part = matrix_sum((other - phi) ** 2)
    whole = matrix_sum(off_diagonal(phi - mean) ** 2)
    # What a constant Φ deviates from its mean, or two equal ones from each other, by rounding.
    rounding = rounding_error(phi, count)
    change = ratio(part, jnp.where(whole <= rounding, 0.0, whole), 1.0)
    return jnp.where(part <= rounding, 0.0, change)
