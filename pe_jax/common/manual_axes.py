"""Arrays inside `jax.shard_map`, whose types say over which axes of the mesh they vary."""

from __future__ import annotations

from typing import TypeVar

import jax

from pe_jax.common.shapes import Array

Tree = TypeVar("Tree")


def vary_alike(arrays: Tree, *others: object) -> Tree:
    """Let all arrays of a tree vary over the mesh axes that any of them, or of `others`, does.

    JAX does so for the operands of its own operations, and sums the gradients of an array over the
    axes that it was cast to. A function with a derivative of its own has to do it first. Outside of
    `shard_map`, or with `check_vma=False`, nothing changes.
    """
    axes = frozenset().union(*map(_axes, jax.tree.leaves((arrays, others))))
    return jax.tree.map(lambda x: _cast(x, axes), arrays) if axes else arrays


def varies(*arrays: Array) -> bool:
    """True if any array varies over a mesh axis, as inside `shard_map` with its default check."""
    return any(map(_axes, arrays))


def _cast(x: Array, axes: frozenset[str]) -> Array:
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _axes(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying
