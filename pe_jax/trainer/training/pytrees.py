"""The trees that training passes around: their types, names of leaves, and checksums."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array

PyTree: TypeAlias = Any  # Leaves are arrays, shapes, or what a docstring says.
# Nested by module; arrays, or their shapes, are its leaves.
Params: TypeAlias = dict[str, Any]
HostBatch: TypeAlias = dict[str, np.ndarray]  # This host's rows.
Batch: TypeAlias = dict[str, jax.Array]  # The global batch, sharded over the devices.
Sums: TypeAlias = dict[str, jax.Array]
Metrics: TypeAlias = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, count)
Scalars: TypeAlias = dict[str, float]

# From a tree of arrays, or of their shapes, to the sharding of each leaf.
ShardingsOf: TypeAlias = Callable[[PyTree], PyTree]

_MULTIPLIER = 0x9E3779B1  # Knuth's: neighbouring positions differ in many bits.
# Elements of a leaf that NumPy examines, in less time than a program compiles.
_SMALL = 2**16


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves of a tree after their paths, such as "bert/token/embedding", in order."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]


def checksum(tree: PyTree) -> str:
    """Return a checksum of every bit of the leaves, in hexadecimal, whatever their shardings.

    The words of a leaf are hashed with their positions and summed, which devices do for their own
    parts; the sums of the leaves are hashed with SHA-256. A single word that changes always changes
    the checksum; several go unnoticed with a probability of 2⁻³².

    Args:
      tree: arrays of 4-byte elements, and keys (`jax.random.key`); others raise TypeError.
    """
    sums, _ = examine_leaves(tree)
    return combine_sums(sums.values())


def combine_sums(sums: Iterable[int]) -> str:
    """Return the checksum of a tree from the sums of its leaves, see `examine_leaves`."""
    words = np.array([*sums], np.uint32)
    return hashlib.sha256(words.tobytes()).hexdigest()[:16]


def examine_leaves(tree: PyTree) -> tuple[dict[str, int], list[str]]:
    """Return the sums of the leaves' hashed words by path, and the paths that are not finite."""
    # Leaf by leaf: one program for each shape compiles many times faster than one for all leaves.
    # Sequentially: on a CPU, concurrent sums over several devices can deadlock.
    sums: dict[str, int] = {}
    not_finite = []
    for name, leaf in named_leaves(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.dtype.itemsize != 4:
            raise TypeError(f"A checksum needs elements of 4 bytes, got {leaf.dtype}.")
        if leaf.size <= _SMALL and leaf.is_fully_addressable:
            leaf_sum, finite = _examine_leaf(np, np.asarray(leaf).ravel())
        else:
            leaf_sum, finite = _examine_on_devices(jnp, leaf)
        sums[name] = int(leaf_sum)
        if not finite:
            not_finite.append(name)
    return sums, not_finite


def _examine_leaf(xp: ModuleType, leaf: Array) -> tuple[Array, Array]:
    """The sum of a leaf's hashed words, and whether it is finite; `xp` is NumPy or `jax.numpy`."""
    strides = [
        np.uint32(math.prod(leaf.shape[axis + 1 :]) % 2**32)
        for axis in range(leaf.ndim)
    ]
    index = xp.indices(leaf.shape, np.uint32, sparse=True)  # The leaf may be sharded.
    position = sum((i * stride for i, stride in zip(index, strides)), xp.uint32(0))
    words = leaf.view(np.uint32) ^ position * np.uint32(_MULTIPLIER)
    # MurmurHash3's finalizer, which is a bijection.
    words = (words ^ words >> 16) * np.uint32(0x85EBCA6B)
    words = (words ^ words >> 13) * np.uint32(0xC2B2AE35)
    words = words ^ words >> 16
    return xp.sum(words, dtype=np.uint32), xp.isfinite(leaf).all()


_examine_on_devices = jax.jit(_examine_leaf, static_argnums=0)
