"""Tables of numbers as coloured cells: correlations, and what a sweep over two axes found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pe_jax.figures import style


@style.applied
def correlation_map(
    values: np.ndarray,
    p_values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    path: str | Path,
    *,
    title: str,
    label: str,
    vector: str = "",
) -> Path:
    """Correlations in [-1, 1]; a star where p < 0.05, a dash where there is none to speak of.

    Args:
      values, p_values: `[rows, columns]`, NaN where a column is constant.
    """
    figure = style.new(1.5 * len(columns) + 3.4, 0.42 * len(rows) + 1.6, title)
    axes = figure.subplots()
    image = axes.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for y in range(len(rows)):
        for x in range(len(columns)):
            value, known = values[y, x], np.isfinite(values[y, x])
            text = f"{value:+.2f}{'*' if p_values[y, x] < 0.05 else ''}" if known else "–"
            dark = known and abs(value) > 0.6
            axes.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    figure.colorbar(image, ax=axes, label=label)
    return style.save(figure, path, vector)


@style.applied
def sweep_map(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    path: str | Path,
    *,
    title: str,
    label: str,
    row_name: str,
    column_name: str,
    vector: str = "",
) -> Path:
    """What a sweep measured, over two of its axes, both on a logarithmic scale.

    Args:
      values: `[rows, columns]`.
    """
    figure = style.new(6.4, 4.4, title)
    axes = figure.subplots()
    image = axes.pcolormesh(columns, rows, values, cmap="viridis", shading="nearest")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(column_name)
    axes.set_ylabel(row_name)
    levels = np.unique(np.quantile(values, [0.25, 0.5, 0.75, 0.9]).round())
    if np.ptp(values) > 0:
        lines = axes.contour(columns, rows, values, levels=levels, colors="white", linewidths=0.8)
        axes.clabel(lines, fmt="%g", fontsize=7)
    figure.colorbar(image, ax=axes, label=label)
    return style.save(figure, path, vector)
