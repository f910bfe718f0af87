"""GELU, its backward pass written out.

Kept for the backward pass is the input alone, in its own dtype: erf is cheaper to compute again
than its float32 values are to keep.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array, Float


def gelu(x: Float[Array, "*B N"]) -> Float[Array, "*B N"]:
    """The exact GELU, x·Φ(x), of the original BERT (Hendrycks & Gimpel 2016); float32 inside."""
    # Rows in one axis, as the products before and after have them: with the axes of a batch XLA
    # keeps a float32 copy in another layout on TPUs.
    return _of_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape)


@jax.custom_vjp
def _of_rows(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    x32 = x.astype(jnp.float32)
    return (x32 * _below(x32)).astype(x.dtype)


def _backward(x: Array, g: Array) -> tuple[jax.Array]:
    x32 = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * x32 * x32) * np.float32((2.0 * np.pi) ** -0.5)
    slope = _below(x32) + x32 * density
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


_of_rows.defvjp(lambda x: (_of_rows(x), x), _backward)


def _below(x: Float[Array, "M N"]) -> jax.Array:
    """Φ(x), the probability that a standard normal number is below x."""
    return 0.5 * (1.0 + jax.lax.erf(x * np.float32(0.5**0.5)))
