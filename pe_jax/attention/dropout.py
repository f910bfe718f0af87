"""Dropout from a counter: whether an entry stays is a pure function of a key and its place.

Each entry's 32 bits come from hashing its row and column, so the mask is never stored, any tile of
it can be made again in the backward pass, and every implementation of attention, tiling and
sharding drops the same entries. (JAX's usual generator costs a CPU more than the matmuls beside
it.) The hash is an invertible multiply-xorshift on 32 bits (Steele & Lea 2014's construction with
the constants that Wellons found by search), keyed with 64 bits a row; its quality is not proven.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import check_floats
from pe_jax.common.shapes import Array, Float

# 2^32 over the golden ratio: spreads consecutive counters.
_GOLDEN = np.uint32(0x9E3779B9)
# Odd as well, so that a row's two keys walk apart.
_OTHER = np.uint32(0x85EBCA6B)
# Multipliers of the hash.
_FIRST = np.uint32(0x7FEB352D)
_SECOND = np.uint32(0x846CA68B)


def dropout(
    x: Float[Array, "*B"], rate: float, rng: jax.Array | None
) -> Float[jax.Array, "*B"]:
    """Set each entry to 0 with probability `rate` and scale the rest to keep the mean.

    Args:
      x: its last axis are the columns, all axes before it the rows that `keep` numbers.
      rng: None means no dropout.

    Raises:
      ValueError: for `x` that is no float, or a rate outside [0, 1).
    """
    check_floats(x=x)
    if rng is None or rate == 0.0:
        return jnp.asarray(x)
    shape = x.shape or (1,)
    rows = jax.lax.iota(jnp.uint32, math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    columns = jax.lax.iota(jnp.uint32, shape[-1])
    mask = keep(seed(rng), rows, columns, rate).reshape(x.shape)
    kept = x * jnp.asarray(scale(rate), x.dtype)
    return jnp.where(mask, kept, jnp.zeros((), x.dtype))


def seed(rng: jax.Array) -> jax.Array:
    """The 64 bits that `keep` takes, uint32 [2], from a JAX key of any kind."""
    return jax.random.bits(rng, (2,), jnp.uint32)


def keep(seed: Any, rows: Array, columns: Array, rate: float) -> jax.Array:
    """True, with probability 1 - rate, where the entry at (row, column) stays.

    Args:
      seed: uint32 [2], see `seed`.
      rows, columns: uint32 numbers that broadcast against each other; any tile of the whole.

    Raises:
      ValueError: for a rate outside [0, 1).
    """
    threshold = np.uint32(_threshold(rate))
    first = _mix(rows * _GOLDEN + seed[0])
    second = _mix(rows * _OTHER + seed[1])
    return _mix(columns * _GOLDEN + first, second) >= threshold


def scale(rate: float) -> float:
    """Factor of kept entries: the rate is a multiple of 2^-32, the mean exact.

    Raises:
      ValueError: for a rate outside [0, 1).
    """
    return 2**32 / (2**32 - _threshold(rate))


def _threshold(rate: float) -> int:
    """The least 32 bits, as a number, of an entry that stays."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout_rate must be in [0, 1), got {rate}.")
    return min(round(rate * 2**32), 2**32 - 1)


def _mix(x: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Spread every bit of `x` over all of them; `key` enters half-way."""
    x = (x ^ (x >> np.uint32(16))) * _FIRST
    x = x if key is None else x ^ key
    x = (x ^ (x >> np.uint32(15))) * _SECOND
    return x ^ (x >> np.uint32(16))
