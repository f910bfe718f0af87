"""An axis of an array cut into blocks, and joined again."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array


def cut_axis(x: Array, block: int, axis: int, mode: str = "constant") -> jax.Array:
    """Return the blocks of an axis in front: `[B, L, ...] -> [N, B, block, ...]`.

    The last block is padded.

    Args:
      mode: of `jnp.pad`.
    """
    count = -(-x.shape[axis] // block)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, count * block - x.shape[axis])
    padded = jnp.pad(x, pad, mode)
    parts = padded.reshape(*x.shape[:axis], count, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def join_axis(parts: Array, axis: int, length: int) -> jax.Array:
    """Return blocks in front as one axis again: `[N, B, block, ...] -> [B, length, ...]`."""
    x = jnp.moveaxis(parts, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)
