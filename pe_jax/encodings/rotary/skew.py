"""Skew-symmetric matrices, which generate rotations: A = -Aᵀ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float

_TERMS = 12  # Of Taylor's series: 3e-14 of the norm below which it is taken.
_PRECISE = 0.5
_SQUARINGS = 25  # Enough for norms up to 1.6e7.


def skew_matrix(upper: Float[Array, "*B N"], size: int) -> Float[jax.Array, "*B n n"]:
    """Return the skew-symmetric matrices with these entries above the diagonal, row by row.

    Args:
      upper: N = n (n - 1) / 2 entries.
      size: Number n of rows and of columns.
    """
    rows, columns = np.triu_indices(size, 1)
    above = jnp.zeros((*upper.shape[:-1], size, size), upper.dtype)
    above = above.at[..., rows, columns].set(upper)
    return above - above.swapaxes(-1, -2)


@jax.checkpoint
def rotation_of(skew: Float[Array, "*B n n"]) -> Float[jax.Array, "*B n n"]:
    """Return exp(A) of skew-symmetric matrices, rotations.

    By Taylor's series of exp(A / 2^s) and s squarings: products alone, which have derivatives of
    any order and which batches of small matrices need (solving as many systems at once can block
    the threads of a CPU). float32 loses as many digits as the norm has; norms up to 1.6e7 do not
    overflow.
    """
    shape = skew.shape
    size = shape[-1]
    # One axis for the batch: on CPUs, the transposes of XLA's YNNPACK overrun a buffer for arrays
    # of many axes, which ends the process (seen under vmap with jaxlib 0.10.2).
    skew = skew.reshape(-1, size, size)
    norm = jax.lax.stop_gradient(jnp.abs(skew).sum(-1).max(-1))
    halvings = jnp.log2(jnp.maximum(norm, 1e-30) / _PRECISE)
    steps = jnp.ceil(halvings).clip(0, _SQUARINGS)[..., None, None]
    small = skew * jnp.exp2(-steps)
    identity = jnp.eye(size, dtype=skew.dtype)
    rotation = identity
    for n in range(_TERMS, 0, -1):  # Horner's rule.
        rotation = identity + _product(small, rotation) / n
    for n in range(_SQUARINGS):
        needed = n < steps
        rotation = jax.lax.cond(needed.any(), _square, _keep, rotation, needed)
    return rotation.reshape(shape)


def _square(rotation: Array, needed: Array) -> jax.Array:
    return jnp.where(needed, _product(rotation, rotation), rotation)


def _keep(rotation: Array, needed: Array) -> Array:
    return rotation


def _product(a: Array, b: Array) -> jax.Array:
    """Return a b; of small matrices by sums, as a batch of products takes longer on CPUs."""
    if a.shape[-1] > 16:
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)
