"""Requirements on position encodings: unique, bounded, the same at any length and any shift.

The first two are measured on points, one for each position or offset: its vector, or the logits
that it adds. The others compare two proximity matrices of the same positions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.properties.arithmetic import ratio
from pe_jax.properties.compiled import compiled
from pe_jax.shapes import Array, Float


@compiled()
def distinctness(points: Float[Array, "*B N D"]) -> Float[jax.Array, "*B"]:
    """Return the smallest distance of two points over their root-mean-square distance, in [0, 1].

    0 where two points coincide; NaN for points that are not finite.
    """
    count = points.shape[-2]
    # Between the points themselves: distances from dot products would lose what is nearly equal.
    to_all = lambda point: ((points - point[..., None, :]) ** 2).sum(-1)
    squares = jnp.moveaxis(jax.lax.map(to_all, jnp.moveaxis(points, -2, 0)), 0, -2)  # [*B, N, N]
    nearest = jnp.where(jnp.eye(count, dtype=bool), jnp.inf, squares).min((-2, -1))
    mean = squares.sum((-2, -1)) / (count * (count - 1))
    return jnp.sqrt(ratio(nearest, mean, 0.0))


@compiled()
def norm_growth(
    near: Float[Array, "*B N D"], far: Float[Array, "*B M D"]
) -> Float[jax.Array, "*B"]:
    """Return the largest norm of `far` points over that of `near` ones; 1 where all are 0.

    About 1 for points of bounded size.
    """
    farthest, nearest = (jnp.sqrt((points**2).sum(-1)).max(-1) for points in (far, near))
    return ratio(farthest, nearest, 1.0)


@compiled()
def relative_change(
    phi: Float[Array, "*B L L"], other: Float[Array, "*B L L"]
) -> Float[jax.Array, "*B"]:
    """Return ‖Φ' - Φ‖² / ‖Φ - mean‖² off the diagonal: the part of Φ's variation that `other`, of
    the same tokens in a longer input or at shifted positions, does not share.

    0 if they agree, about 2 for unrelated ones of the same spread. Infinite where a constant Φ
    changes.
    """
    count = phi.shape[-1] * (phi.shape[-1] - 1)
    off_diagonal = lambda x: jnp.where(jnp.eye(phi.shape[-1], dtype=bool), 0.0, x)
    mean = off_diagonal(phi).sum((-2, -1), keepdims=True) / count
    part = (off_diagonal(other - phi) ** 2).sum((-2, -1))
    whole = (off_diagonal(phi - mean) ** 2).sum((-2, -1))
    # What a constant Φ deviates from its mean, or two equal ones from each other, by rounding.
    rounding = count * (8 * jnp.finfo(phi.dtype).eps * jnp.abs(phi).max((-2, -1))) ** 2
    varies = part / jnp.where(whole <= rounding, 0.0, whole)
    return jnp.where(part <= rounding, 0.0, varies)
