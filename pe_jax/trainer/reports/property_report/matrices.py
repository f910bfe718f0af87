"""Proximity matrices in a report: violations as numbers and cells of tables, and panels of figures
in units in which matrices can be compared."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from pe_jax import properties
from pe_jax.common.shapes import Array
from pe_jax.properties import Toeplitz
from pe_jax.properties.pictures import standardised
from pe_jax.trainer import figures

Numbers = dict[str, float]


def violations(phi: Array | Toeplitz, windows: Sequence[int]) -> Numbers:
    """Return the violations of one proximity matrix `[L, L]`; see `violations_of_each`."""
    values = violations_of_each(phi, windows)
    return {name: float(value) for name, value in values.items()}


def violations_of_each(
    phi: Array | Toeplitz, windows: Sequence[int], where: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the violations of matrices `[*B, L, L]`, each `[*B]`; 0 = the property holds.

    Args:
      windows: of monotonicity; those that do not fit are skipped.
      where: entries that exist, `[L, L]`, default all. Symmetry is left out if none of them has a
        mirror image.
    """
    length = phi.shape[-1]
    positions = np.arange(length)
    distance = np.abs(positions[:, None] - positions)
    farthest = length - 1 if where is None else distance[where].max(initial=0)
    invariance = functools.partial(properties.translation_invariance, phi, where=where)
    monotonicity = functools.partial(properties.monotonicity, phi, where=where)
    values = {
        "translation_invariance": invariance(),
        "translation_invariance_skip_1": invariance(skip=1),
    }
    for window in windows:
        if window <= farthest:
            values[f"monotonicity_{window}"] = monotonicity(window)
    values["monotonicity_all"] = monotonicity()
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
    """Return the mean of each violation over heads, layers or models, where all have it."""
    means = {}
    for name in several[0]:
        if all(name in numbers for numbers in several):
            means[name] = float(np.mean([numbers[name] for numbers in several]))
    return means


def product_panel(
    title: str, phi: Array, x: np.ndarray, axis: str = "position"
) -> figures.Panel:
    """Return a panel of dot products at positions or offsets `x`, over the mean self-product."""
    unit = np.asarray(phi)
    size = float(np.mean(np.diagonal(phi)))
    if size > 0:
        unit = unit / size
    return figures.Panel(title, unit, int(x[0]), axis, axis)


def logit_panel(title: str, phi: Array) -> figures.Panel:
    """Return a panel of logits less their mean, in standard deviations; zeros for a constant Φ."""
    shown, sigma = standardised(phi)
    digits = float(f"{sigma:.2g}")  # 140, where `.2g` prints 1.4e+02.
    if sigma:
        title += f"\nσ = {digits:g}"
    else:
        title += "\nconstant"
    return figures.Panel(title, shown, 0, "query position", "key position")


def logit_panels(title: str, phi: Array, heads: str) -> list[figures.Panel]:
    """Return panels of `[H, L, L]`: of the mean over heads, or of "each" head."""
    if heads != "each":
        return [logit_panel(title, np.asarray(phi).mean(0))]
    return [logit_panel(f"{title}, head {h}", matrix) for h, matrix in enumerate(phi)]
