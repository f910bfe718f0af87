"""The trees that training passes around: their types, and the names of their leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

PyTree: TypeAlias = Any  # Leaves are arrays, shapes, or what a docstring says.
Params: TypeAlias = dict[
    str, Any
]  # Nested by module; arrays, or their shapes, are its leaves.
HostBatch: TypeAlias = dict[str, np.ndarray]  # This host's rows.
Batch: TypeAlias = dict[str, jax.Array]  # The global batch, sharded over the devices.
Sums: TypeAlias = dict[str, jax.Array]
Metrics: TypeAlias = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, count)
Scalars: TypeAlias = dict[str, float]

# From a tree of arrays, or of their shapes, to the sharding of each leaf.
ShardingsOf: TypeAlias = Callable[[PyTree], PyTree]


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves of a tree after their paths, such as "bert/token/embedding", in order."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
