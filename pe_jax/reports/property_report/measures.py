"""The metrics of one matrix by name, their columns in tables, and how estimates are written."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from pe_jax import properties
from pe_jax.properties import Estimate, Toeplitz
from pe_jax.shapes import Array

Numbers = dict[str, float]


def measure(phi: Array | Toeplitz, windows: Sequence[int]) -> Numbers:
    """The violations of one proximity matrix, 0 = the property holds (see `pe_jax.properties`).

    Args:
      phi: `[L, L]`, or a `Toeplitz` of one.
      windows: of monotonicity; those that do not fit are skipped.
    """
    return {name: float(value) for name, value in measure_each(phi, windows).items()}


def measure_each(
    phi: Array | Toeplitz, windows: Sequence[int], where: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The violations of matrices `[*B, L, L]`, each `[*B]`.

    Args:
      windows: of monotonicity; those that do not fit are skipped.
      where: entries that exist, `[L, L]`, default all. Symmetry is left out if none of them has a
        mirror image.
    """
    length = phi.shape[-1]
    at = np.arange(length)
    apart = np.abs(at[:, None] - at)
    farthest = length - 1 if where is None else apart[where].max(initial=0)
    fitting = [w for w in windows if w <= farthest]
    invariance = functools.partial(properties.translation_invariance, where=where)
    monotonicity = functools.partial(properties.monotonicity, where=where)
    found = {
        "translation_invariance": invariance(phi),
        "translation_invariance_skip_1": invariance(phi, skip=1),
        **{f"monotonicity_{w}": monotonicity(phi, w) for w in fitting},
        "monotonicity_all": monotonicity(phi),
        "monotonicity_all_weighted": monotonicity(phi, weighted=True),
    }
    if where is None or (where & where.T & (apart > 0)).any():
        found["symmetry"] = properties.symmetry(phi, where=where)
    return {name: np.asarray(value) for name, value in found.items()}


def measure_weights(weights: Array) -> Numbers:
    """Direction and distance of the softmaxed attention `[L, L]` among identical words."""
    found = {
        "forward_share": properties.forward_share(weights),
        "chen_locality": properties.chen_locality(weights),
        "chen_symmetry": properties.chen_symmetry(weights),
    }
    return {name: float(value) for name, value in found.items()}


def columns(windows: Sequence[int]) -> dict[str, str]:
    """Names of the numbers that tables show -> column headings."""
    return {
        "translation_invariance": "TI",
        "translation_invariance_skip_1": "TI, [1:]",
        **{f"monotonicity_{w}": f"mono. {w}" for w in windows},
        "monotonicity_all": "mono. all",
        "symmetry": "symm.",
    }


def cells(numbers: Numbers, names: Sequence[str]) -> list[str]:
    """Numbers with three decimals, a dash for a missing one."""
    return [f"{numbers[name]:.3f}" if name in numbers else "–" for name in names]


def to_unit(phi: Array) -> np.ndarray:
    """Φ over its mean self-proximity, so that tables of any size share a colour scale."""
    size = float(np.mean(np.diagonal(phi)))
    return np.asarray(phi) / size if size > 0 else np.asarray(phi)


def standardized(phi: Array) -> np.ndarray:
    """Φ less its mean, over its standard deviation; zeros for a constant one, NaN where it is."""
    phi = np.asarray(phi, np.float64)
    spread = np.nanstd(phi)
    constant = spread <= 1e-6 * max(np.nanmax(abs(phi)), 1e-30)
    return 0 * phi if constant else (phi - np.nanmean(phi)) / spread


def signed(one: Estimate, scale: float = 1.0, digits: int = 3) -> str:
    """A difference with its standard error."""
    mean, error = scale * float(one.mean), scale * float(one.error)
    return f"{mean:+.{digits}f} ± {error:.{digits}f}"


def two_digits(value: float | np.floating) -> str:
    """A number for a title: 140, where `.2g` has 1.4e+02."""
    return f"{float(f'{value:.2g}'):g}"
