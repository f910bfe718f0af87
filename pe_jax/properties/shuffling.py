"""Shuffles of a text that keep its words, or other units, whole."""

from __future__ import annotations

import numpy as np

from pe_jax.common.shapes import Bool, Int


def shuffled_order(
    begins: Bool[np.ndarray, " L"], rng: np.random.Generator | None = None
) -> Int[np.ndarray, " L"]:
    """Return an order of a text's tokens: at place i is the token `order[i]` of the text.

    Args:
      begins: True where a unit begins that stays together, such as a word; the first token does.
      rng: draws a cyclic permutation of the units, so that each one moves. None swaps neighbours:
        the first unit and the second, the third and the fourth, and so on.
    """
    boundaries = np.flatnonzero(begins[1:]) + 1
    units = np.split(np.arange(len(begins)), boundaries)
    order = np.arange(len(units))
    if rng is None:
        last = len(units) // 2 * 2
        order[0:last:2] += 1
        order[1:last:2] -= 1
    else:
        cycle = rng.permutation(len(units))
        order[cycle] = np.roll(cycle, 1)
    return np.concatenate([units[i] for i in order])
