"""Axes of queries and keys, declared with the fields of records, see `axes`.

Attention in blocks cuts queries and keys out of all arrays that it is computed from. Each field
says which axes these are:

    mask: Leaf = dataclasses.field(metadata=axes(queries=2, keys=3))
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

import jax

from pe_jax.common.records import Record
from pe_jax.common.shapes import Leaf

Tree = TypeVar("Tree")


def axes(*, queries: int | None = None, keys: int | None = None) -> dict[str, Any]:
    """Return metadata of a field whose arrays have an axis of queries, of keys, or of both."""
    return {"queries": queries, "keys": keys}


class PerToken(Record, pytree=True):
    """The same quantity of queries and of keys: arrays, or trees of arrays, `[L]` or
    `[#B, L, ...]`."""

    queries: Leaf = dataclasses.field(default=None, metadata=axes(queries=1))
    keys: Leaf = dataclasses.field(default=None, metadata=axes(keys=1))


def axes_of(x: Tree, side: Literal["queries", "keys"], axis: int | None = None) -> Tree:
    """Return a tree like `x`, as `in_axes` of `jax.vmap`: instead of each array the axis of its
    queries or keys, None if it has none.

    Args:
      axis: of arrays whose field declares no other.
    """

    def of_leaf(leaf: Any) -> Any:
        if dataclasses.is_dataclass(leaf):
            return axes_of(leaf, side, axis)
        return None if axis is None else min(axis, leaf.ndim - 1)  # `[L]` has no batch.

    if not dataclasses.is_dataclass(x):
        return jax.tree.map(of_leaf, x, is_leaf=dataclasses.is_dataclass)
    declared = {
        field.name: field.metadata.get(side, axis) for field in dataclasses.fields(x)
    }
    children, structure = jax.tree_util.tree_flatten_with_path(
        x, is_leaf=lambda child: child is not x
    )
    filled = [axes_of(child, side, declared[path[0].name]) for path, child in children]
    return jax.tree.unflatten(structure, filled)
