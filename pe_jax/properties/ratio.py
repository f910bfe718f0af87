"""Ratios whose value and gradient are defined for a divisor of 0."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.shapes import Array, Float


def ratio(
    part: Float[Array, "*B"], whole: Float[Array, "*#B"], otherwise: float
) -> Float[Array, "*B"]:
    """part / whole, `otherwise` where the whole is 0 or less, NaN where either is.

    The divisor is replaced as well as the result: a division by 0 in the branch that `where` does
    not select would still make the gradient NaN.
    """
    empty = whole <= 0
    return jnp.where(empty, otherwise, part / jnp.where(empty, 1, whole))


def share(
    part: Float[Array, "*B"], whole: Float[Array, "*B"], values: Float[Array, "*B N M"], count: int
) -> Float[Array, "*B"]:
    """part / whole, sums of squares, in [0, 1]; 0 if `whole` is the rounding error of a constant.

    Args:
      values: those whose deviations from their mean `whole` sums.
      count: the number of its terms.
    """
    rounding = count * (8 * jnp.finfo(values.dtype).eps * jnp.abs(values).max((-2, -1))) ** 2
    constant = whole <= rounding
    return jnp.where(constant, 0.0, jnp.clip(part / jnp.where(constant, 1.0, whole), 0.0, 1.0))
