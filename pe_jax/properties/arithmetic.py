"""Ratios that are defined for a divisor of 0, and matrices brought to one scale."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.common.shapes import Array, Float, Real


def ratio(
    part: Float[Array, "*B"], whole: Real[Array, "*#B"], otherwise: ArrayLike
) -> Float[Array, "*B"]:
    """Return part / whole, `otherwise` where the whole is 0 or less, NaN where either is.

    The divisor is replaced as well as the result: a division by 0 in the branch that `where` does
    not select would still make the gradient NaN.
    """
    empty = whole <= 0
    return jnp.where(empty, otherwise, part / jnp.where(empty, 1, whole))


def matrix_sum(x: Array) -> jax.Array:
    """Return the sums of the entries of matrices `[*B, N, M]`."""
    return x.sum((-2, -1))


def bounded_ratio(
    part: Float[Array, "*B"],
    whole: Float[Array, "*B"],
    values: Float[Array, "*B N M"],
    count: int,
) -> Float[Array, "*B"]:
    """Return part / whole of sums of squares, in [0, 1]; 0 if `whole` is rounding error.

    Args:
      part: a part of `whole`.
      whole: the sum of the squared deviations of `values` from their mean.
      values: the numbers themselves.
      count: the number of terms that `whole` sums.
    """
    constant = whole <= rounding_error(values, count)
    share = part / jnp.where(constant, 1.0, whole)
    return jnp.where(constant, 0.0, jnp.clip(share, 0.0, 1.0))


def rounding_error(values: Float[Array, "*B N M"], count: int) -> Float[Array, "*B"]:
    """Return what rounding may add to a sum of `count` squared deviations of equal values."""
    error = 8 * jnp.finfo(values.dtype).eps * jnp.abs(values).max((-2, -1))
    return count * error**2


def to_unit_scale(matrix: Float[Array, "*B N M"]) -> Float[Array, "*B N M"]:
    """Multiply a matrix by the power of two that makes its largest entry about 1; exact.

    Squares of numbers far from 1 would overflow or vanish in float32. NaN throughout where an entry
    is not finite. Gradients take the factor for a constant, which is right for metrics that no
    factor changes: those of Φ and of c·Φ are the same.
    """
    size = jnp.abs(jax.lax.stop_gradient(matrix))
    largest = size.max((-2, -1), keepdims=True)
    info = jnp.finfo(matrix.dtype)
    _, exponent = jnp.frexp(largest)
    exponent = jnp.clip(exponent, info.minexp, info.maxexp - 2)
    factor = jnp.ldexp(jnp.ones_like(largest), -exponent)
    return matrix * jnp.where(jnp.isfinite(largest), factor, jnp.nan)
