"""A checksum of a state: a checkpoint that is not restored as it was saved is noticed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.training.pytrees import PyTree

_MODULUS = 2**32


def fingerprint(tree: PyTree) -> int:
    """A sum over every bit of the leaves, modulo 2³², whatever their shardings.

    Each 32-bit word is weighted by an odd number that depends on its position: a word that changes
    changes the sum, and words that are swapped almost surely do.

    Args:
      tree: arrays of 4-byte elements, and keys (`jax.random.key`).

    Raises:
      TypeError: for elements of another size.
    """
    # Leaf by leaf: one program for each shape compiles many times faster than one for all leaves.
    # Sequentially: on a CPU, concurrent sums over several devices can deadlock.
    sums = (int(_sum(leaf)) for leaf in jax.tree.leaves(tree))
    return sum((2 * i + 1) * s for i, s in enumerate(sums)) % _MODULUS


@jax.jit
def _sum(leaf: jax.Array) -> jax.Array:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if leaf.dtype.itemsize != 4:
        raise TypeError(f"A fingerprint is of elements of 4 bytes, got {leaf.dtype}.")
    words = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)  # In the flattened leaf, which may be sharded.
    for axis in range(words.ndim):
        stride = jnp.uint32(math.prod(words.shape[axis + 1 :]) % _MODULUS)
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * stride
    # Knuth's multiplier: neighbouring positions have very different weights.
    weight = position * jnp.uint32(0x9E3779B1) | 1
    return jnp.sum(words * weight, dtype=jnp.uint32)
