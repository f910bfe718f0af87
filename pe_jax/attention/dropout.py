"""Dropout with cheap random bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float


def dropout(x: Float[Array, "*B"], rate: float, key: jax.Array | None) -> Float[Array, "*B"]:
    """Sets each entry to 0 with probability `rate` and scales the rest to keep the mean.

    Sixteen random bits decide an entry. The rate is rounded to a multiple of 2^-16 and the scale
    uses the rounded rate, so the mean is exact.

    Args:
      key: None means no dropout.
    """
    if key is None or rate == 0.0:
        return x
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"A dropout rate lies in [0, 1), got {rate}.")
    dropped = round(rate * 2**16)
    keep = jax.random.bits(key, x.shape, jnp.uint16) >= dropped
    scale = 2**16 / (2**16 - dropped)
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))
