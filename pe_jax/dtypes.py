"""The dtype of sums: float32, and float64 where an operand is (`JAX_ENABLE_X64`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array


def wide_dtype(*arrays: Array) -> np.dtype:
    """Return float64 if any array has it, else float32.

    Unlike `jnp.promote_types`, it allows `jax.numpy_dtype_promotion("strict")`.
    """
    return np.dtype(np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32)


def widened(x: Array) -> jax.Array:
    """Return `x` in its `wide_dtype`."""
    return jnp.asarray(x, wide_dtype(x))
