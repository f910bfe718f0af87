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
        return (
            f"kept {len(self.kept)} arrays\n"
            f"dropped: {', '.join(self.dropped) or 'nothing'}\n"
            f"new: {', '.join(self.new) or 'nothing'}"
        )


def transplant(
    params: Params, old: Params, *, heads: bool = True, position: bool = True
) -> tuple[Params, Changes]:
    """`params` of a fresh model with everything that fits taken from `old`.

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
    fresh, had = dict(named_leaves(params)), dict(named_leaves(old))
    fits = {
        path
        for path in fresh.keys() & had.keys()
        if fresh[path].shape == had[path].shape
        and (position or not path.startswith(_POSITION))
    }
    both = params.keys() & old.keys() if heads else {"bert"}
    wrong = [
        f"  {path}: {_shape(had.get(path))} there, {_shape(fresh.get(path))} here"
        for path in sorted((fresh.keys() | had.keys()) - fits)
        if not path.startswith(_POSITION) and path.partition("/")[0] in both
    ]
    if wrong:
        raise ValueError(
            "The two models differ in more than their position encoding:\n"
            + "\n".join(wrong)
        )
    merged = [had[path] if path in fits else leaf for path, leaf in fresh.items()]
    changes = Changes(
        sorted(fits), sorted(had.keys() - fits), sorted(fresh.keys() - fits)
    )
    return jax.tree.unflatten(jax.tree.structure(params), merged), changes


def _shape(leaf: jax.Array | None) -> str:
    return "nothing" if leaf is None else str(tuple(np.shape(leaf)))
