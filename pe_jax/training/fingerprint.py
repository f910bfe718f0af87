"""Checksum and finiteness check of a state, for saving and restoring it."""

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
    return examine(tree)[0]


def examine(tree: PyTree) -> tuple[int, list[str]]:
    """The fingerprint of a tree, and the paths of leaves that are not finite in every element."""
    # Leaf by leaf: one program for each shape compiles many times faster than one for all leaves.
    # Sequentially: on a CPU, concurrent sums over several devices can deadlock.
    total, not_finite = 0, []
    for i, (path, leaf) in enumerate(jax.tree.leaves_with_path(tree)):
        leaf_sum, finite = _examine_leaf(leaf)
        total += (2 * i + 1) * int(leaf_sum)
        if not finite:
            not_finite.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return total % _MODULUS, not_finite


@jax.jit
def _examine_leaf(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of a leaf, and whether it is finite."""
    finite = jnp.asarray(True)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        finite = jnp.isfinite(leaf).all()
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
    return jnp.sum(words * weight, dtype=jnp.uint32), finite
