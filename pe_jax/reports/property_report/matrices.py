"""Figures of proximity matrices: panels in units in which matrices can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pe_jax import figures
from pe_jax.reports.property_report.render import Figure
from pe_jax.shapes import Array


def matrix_figure(
    name: str, panels: Sequence[figures.Panel], title: str, label: str, limit: float
) -> Figure:
    """Return a figure of matrices with a colour scale from -limit to limit."""
    limits = (-limit, limit)
    return Figure(name, figures.matrix_grid, panels, title=title, label=label, limits=limits)


def product_panel(title: str, phi: Array, x: np.ndarray, axis: str = "position") -> figures.Panel:
    """Return a panel of dot products at positions or offsets `x`, over the mean self-product, so
    that tables of any size share a colour scale."""
    size = float(np.mean(np.diagonal(phi)))
    unit = np.asarray(phi) / size if size > 0 else np.asarray(phi)
    return figures.Panel(title, unit, int(x[0]), int(x[-1]), axis, axis)


def logit_panel(title: str, phi: Array) -> figures.Panel:
    """Return a panel of logits less their mean, in standard deviations; zeros for a constant Φ."""
    phi = np.asarray(phi, np.float64)
    sigma = np.nanstd(phi)
    constant = sigma <= 1e-6 * max(np.nanmax(abs(phi)), 1e-30)
    shown = 0 * phi if constant else (phi - np.nanmean(phi)) / sigma
    digits = float(f"{sigma:.2g}")  # 140, where `.2g` prints 1.4e+02.
    title += "\nconstant" if constant else f"\nσ = {digits:g}"
    return figures.Panel(title, shown, 0, len(phi) - 1, "query position", "key position")


def logit_panels(title: str, phi: Array, heads: str) -> list[figures.Panel]:
    """Return panels of `[H, L, L]`: of the mean over heads, or of "each" head."""
    if heads == "each":
        return [logit_panel(f"{title}, head {h}", matrix) for h, matrix in enumerate(phi)]
    return [logit_panel(title, np.asarray(phi).mean(0))]
