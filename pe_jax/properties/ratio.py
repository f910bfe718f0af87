"""A ratio that is defined, and so is its gradient, where there is nothing to divide by."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.shapes import Array, Float


def ratio(
    part: Float[Array, "*B"], whole: Float[Array, "*#B"], otherwise: float
) -> Float[Array, "*B"]:
    """part / whole where the whole is above 0, else `otherwise`.

    The divisor is replaced as well as the result: a quotient by 0 that is not chosen would still
    make the gradient NaN.
    """
    some = whole > 0
    return jnp.where(some, part / jnp.where(some, whole, 1), otherwise)
