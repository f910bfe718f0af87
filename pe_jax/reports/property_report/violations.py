"""Violations of one matrix or several by name, and their columns in tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pe_jax import properties
from pe_jax.properties import Toeplitz
from pe_jax.shapes import Array

Numbers = dict[str, float]


def violations(phi: Array | Toeplitz, windows: Sequence[int]) -> Numbers:
    """Return the violations of one proximity matrix, 0 = the property holds.

    Args:
      phi: `[L, L]`, or a `Toeplitz` of one.
      windows: of monotonicity; those that do not fit are skipped.
    """
    return {name: float(value) for name, value in violations_of_each(phi, windows).items()}


def violations_of_each(
    phi: Array | Toeplitz, windows: Sequence[int], where: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the violations of matrices `[*B, L, L]`, each `[*B]`.

    Args:
      windows: of monotonicity; those that do not fit are skipped.
      where: entries that exist, `[L, L]`, default all. Symmetry is left out if none of them has a
        mirror image.
    """
    length = phi.shape[-1]
    positions = np.arange(length)
    distance = np.abs(positions[:, None] - positions)
    farthest = length - 1 if where is None else distance[where].max(initial=0)
    values = {
        "translation_invariance": properties.translation_invariance(phi, where=where),
        "translation_invariance_skip_1": properties.translation_invariance(
            phi, skip=1, where=where
        ),
        **{
            f"monotonicity_{window}": properties.monotonicity(phi, window, where=where)
            for window in windows
            if window <= farthest
        },
        "monotonicity_all": properties.monotonicity(phi, where=where),
        "monotonicity_all_weighted": properties.monotonicity(phi, weighted=True, where=where),
    }
    if where is None or (where & where.T & (distance > 0)).any():
        values["symmetry"] = properties.symmetry(phi, where=where)
    return {name: np.asarray(value) for name, value in values.items()}


def headings(windows: Sequence[int]) -> dict[str, str]:
    """Return the names of the violations that tables show, with their column headings."""
    return {
        "translation_invariance": "TI",
        "translation_invariance_skip_1": "TI, [1:]",
        **{f"monotonicity_{window}": f"mono. {window}" for window in windows},
        "monotonicity_all": "mono. all",
        "symmetry": "symm.",
    }


def cells(numbers: Numbers, windows: Sequence[int]) -> list[float | None]:
    """Return the numbers of `headings`; None for one that is missing."""
    return [numbers.get(name) for name in headings(windows)]


def average(several: Sequence[Numbers]) -> Numbers:
    """Return the mean of each violation over heads, layers or models, where all have it: a layer
    with a window may lack some."""
    shared = [name for name in several[0] if all(name in numbers for numbers in several)]
    return {name: float(np.mean([numbers[name] for numbers in several])) for name in shared}
