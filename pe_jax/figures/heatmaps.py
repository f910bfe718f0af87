"""Heat maps: correlations, and the results of a sweep over two axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pe_jax.figures import style


class CorrelationTable(NamedTuple):
    """Correlations in [-1, 1] of two groups of variables.

    Attributes:
      values, p_values: `[rows, columns]`, NaN if a variable is constant.
      rows, columns: names of the variables.
    """

    values: np.ndarray
    p_values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]


class Axis(NamedTuple):
    """An axis of a sweep: its name and its values, ascending."""

    name: str
    values: np.ndarray


@style.applied
def correlation_map(
    table: CorrelationTable, path: str | Path, *, title: str, label: str, vector: str = ""
) -> Path:
    """The correlations as coloured cells; a star if p < 0.05, a dash if the value is NaN."""
    values, p_values, rows, columns = table
    figure = style.new(1.5 * len(columns) + 3.4, 0.42 * len(rows) + 1.6, title)
    axes = figure.subplots()
    image = axes.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for y in range(len(rows)):
        for x in range(len(columns)):
            value = np.round(values[y, x], 2) + 0.0  # No -0.00.
            known = np.isfinite(value)
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
    axes: tuple[Axis, Axis],
    path: str | Path,
    *,
    title: str,
    label: str,
    marked: tuple[float, float] | None = None,
    vector: str = "",
) -> Path:
    """The results of a sweep over two axes, both on a logarithmic scale.

    Args:
      values: `[rows, columns]`.
      axes: of the rows and of the columns.
      label: of the colour scale.
      marked: values of the row's and the column's axis that a cross marks, inside the axes.
    """
    rows, columns = axes
    figure = style.new(6.4, 4.4, title)
    plot = figure.subplots()
    grid = (columns.values, rows.values, values)
    image = plot.pcolormesh(*grid, cmap="viridis", shading="nearest")
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.set_xlabel(columns.name)
    plot.set_ylabel(rows.name)
    levels = np.unique(np.quantile(values, [0.25, 0.5, 0.75, 0.9]).round())
    if np.ptp(values) > 0:
        lines = plot.contour(*grid, levels=levels, colors="white", linewidths=0.8)
        plot.clabel(lines, fmt="%g", fontsize=7)
    if marked:
        row, column = marked
        plot.plot([column], [row], "x", color="white", ms=9, mew=2)
        plot.annotate(
            f"{columns.name} {column:,.0f}, {rows.name} {row:,.0f}", (column, row), color="white",
            xytext=(-8, 6), textcoords="offset points", ha="right", fontsize=8,
        )  # fmt: skip
    figure.colorbar(image, ax=plot, label=label)
    return style.save(figure, path, vector)
