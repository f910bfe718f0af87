"""Starting from trained parameters, with the position encoding kept, changed or removed.

Paper, section 4: a pretrained BERT is trained further with its absolute position module replaced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from pe_jax.trainer.training.pytrees import Params, named_leaves

_POSITION = "bert/position/"


class Changes(NamedTuple):
    """Paths of the parameters that were kept from the old model, dropped from it, or are new."""

    kept: list[str]
    dropped: list[str]
    new: list[str]

    def __str__(self) -> str:
        dropped = ", ".join(self.dropped) or "nothing"
        new = ", ".join(self.new) or "nothing"
        return f"kept {len(self.kept)} arrays\ndropped: {dropped}\nnew: {new}"


def transplant(
    params: Params, old: Params, *, heads: bool = True, position: bool = True
) -> tuple[Params, Changes]:
    """Return `params` of a fresh model with everything that fits taken from `old`.

    Position parameters are matched by the name of their encoding: those of an encoding that both
    models have are kept, the others are dropped or stay as initialised.

    Args:
      params, old: parameters of a BERT with heads: the encoder under `bert`, its positions under
        `bert/position`. Arrays, or their shapes.
      heads: whether heads that both have must match; else they too are kept, dropped or new.
      position: whether position parameters that fit are kept; else they stay as initialised.

    Raises:
      ValueError: if parameters that must match differ in name or shape; every mismatch is listed.
    """
    new_leaves = dict(named_leaves(params))
    old_leaves = dict(named_leaves(old))
    modules_that_match = params.keys() & old.keys() if heads else {"bert"}
    kept = []
    mismatches = []
    for path in sorted(new_leaves.keys() | old_leaves.keys()):
        is_position = path.startswith(_POSITION)
        old_shape = _shape(old_leaves.get(path))
        new_shape = _shape(new_leaves.get(path))
        if old_shape == new_shape and (position or not is_position):
            kept.append(path)
        elif not is_position and path.partition("/")[0] in modules_that_match:
            mismatches.append(f"  {path}: {old_shape} there, {new_shape} here")
    if mismatches:
        raise ValueError(
            "The two models differ in more than their position encoding:\n"
            + "\n".join(mismatches)
        )
    changes = Changes(
        kept=kept,
        dropped=sorted(old_leaves.keys() - set(kept)),
        new=sorted(new_leaves.keys() - set(kept)),
    )
    merged = new_leaves | {path: old_leaves[path] for path in kept}
    tree = jax.tree.unflatten(jax.tree.structure(params), merged.values())
    return tree, changes


def _shape(leaf: jax.Array | None) -> str:
    return "nothing" if leaf is None else str(tuple(np.shape(leaf)))
