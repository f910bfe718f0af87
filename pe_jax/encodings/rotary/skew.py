"""Skew-symmetric matrices, which generate rotations: A = -Aᵀ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array, Float

# Coefficients of the [7/7] Padé approximant of exp, and the norm up to which it is exact to float64
# (Higham 2005, table 2.3).
_PADE = (17_297_280.0, 8_648_640.0, 1_995_840.0, 277_200.0, 25_200.0, 1_512.0, 56.0, 1.0)
_PRECISE = 0.95
_SQUARINGS = 24  # Enough for norms up to 1.6e7.


def skew_matrix(upper: Float[Array, "*B N"], size: int) -> Float[jax.Array, "*B n n"]:
    """Return the skew-symmetric matrices with these entries above the diagonal, row by row.

    Args:
      upper: N = n (n - 1) / 2 entries.
      size: n.
    """
    rows, columns = np.triu_indices(size, 1)
    above = jnp.zeros((*upper.shape[:-1], size, size), upper.dtype)
    above = above.at[..., rows, columns].set(upper)
    return above - above.swapaxes(-1, -2)


@jax.checkpoint
def rotation_of(skew: Float[Array, "*B n n"]) -> Float[jax.Array, "*B n n"]:
    """Return exp(A) of skew-symmetric matrices, rotations.

    By the Padé approximant of exp(A / 2^s), s squarings, and no step that derivatives of any order
    cannot pass. float32 loses as many digits as the norm has; norms up to 1.6e7 do not overflow.
    """
    norm = jax.lax.stop_gradient(jnp.abs(skew).sum(-1).max(-1))
    steps = jnp.ceil(jnp.log2(jnp.maximum(norm, 1e-30) / _PRECISE)).clip(0, _SQUARINGS)
    steps = steps[..., None, None]
    a = skew * jnp.exp2(-steps)
    identity = jnp.eye(skew.shape[-1], dtype=skew.dtype)
    square = _product(a, a)
    even, odd, power = _PADE[0] * identity, _PADE[1] * identity, identity
    for n in range(2, len(_PADE), 2):
        power = _product(power, square)
        even, odd = even + _PADE[n] * power, odd + _PADE[n + 1] * power
    odd = _product(a, odd)
    rotation = jnp.linalg.solve(even - odd, even + odd)
    for n in range(_SQUARINGS):
        rotation = jnp.where(n < steps, _product(rotation, rotation), rotation)
    return rotation


def _product(a: Array, b: Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
