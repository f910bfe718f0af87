"""Fingerprints of trees of arrays, and their leaves that are not finite."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.training.pytrees import PyTree, named_leaves

Words = TypeVar("Words", np.ndarray, jax.Array)

_MULTIPLIER = 0x9E3779B1  # Knuth's: neighbouring positions differ in many bits.
_SMALL = 2**16  # Elements of a leaf that is examined without a program.


def fingerprint(tree: PyTree) -> str:
    """A checksum of every bit of the leaves, in hexadecimal, whatever their shardings.

    The words of a leaf are hashed with their positions and summed, which devices do for their own
    parts; the sums of the leaves are hashed with SHA-256. A single word that changes always changes
    the checksum; several go unnoticed with a probability of 2⁻³².

    Args:
      tree: arrays of 4-byte elements, and keys (`jax.random.key`); others raise TypeError.
    """
    return combine(examine(tree)[0].values())


def combine(sums: Iterable[int]) -> str:
    """The fingerprint of a tree from the sums of its leaves, see `examine`."""
    words = np.array([*sums], np.uint32)
    return hashlib.sha256(words.tobytes()).hexdigest()[:16]


def examine(tree: PyTree) -> tuple[dict[str, int], list[str]]:
    """Sums of the hashed words of the leaves by path, and the paths of leaves that are not finite
    in every element."""
    # Leaf by leaf: one program for each shape compiles many times faster than one for all leaves.
    # Sequentially: on a CPU, concurrent sums over several devices can deadlock.
    sums: dict[str, int] = {}
    not_finite = []
    for name, leaf in named_leaves(tree):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        is_small = leaf.size <= _SMALL and leaf.is_fully_addressable and not is_key
        examine_leaf = _examine_small_leaf if is_small else _examine_leaf
        leaf_sum, finite = examine_leaf(leaf)
        sums[name] = int(leaf_sum)
        if not finite:
            not_finite.append(name)
    return sums, not_finite


@jax.jit
def _examine_leaf(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of a leaf's hashed words, and whether it is finite."""
    finite = jnp.asarray(True)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        finite = jnp.isfinite(leaf).all()
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    _check_size(leaf.dtype)
    words = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)  # In the flattened leaf, which may be sharded.
    for axis in range(words.ndim):
        stride = jnp.uint32(math.prod(words.shape[axis + 1 :]) % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * stride
    return jnp.sum(_hash_words(words, position), dtype=jnp.uint32), finite


def _examine_small_leaf(leaf: jax.Array) -> tuple[np.uint32, np.bool_]:
    """`_examine_leaf` in NumPy, which takes less time than compiling it."""
    _check_size(leaf.dtype)
    values = np.asarray(leaf).ravel()
    hashes = _hash_words(values.view(np.uint32), np.arange(leaf.size, dtype=np.uint32))
    return np.sum(hashes, dtype=np.uint32), np.isfinite(values).all()


def _hash_words(words: Words, position: Words) -> Words:
    """Hash each uint32 word with its position: MurmurHash3's finalizer, which is a bijection."""
    words = words ^ position * np.uint32(_MULTIPLIER)
    words = (words ^ words >> 16) * np.uint32(0x85EBCA6B)
    words = (words ^ words >> 13) * np.uint32(0xC2B2AE35)
    return words ^ words >> 16


def _check_size(dtype: np.dtype) -> None:
    if dtype.itemsize != 4:
        raise TypeError(f"A fingerprint needs elements of 4 bytes, got {dtype}.")
