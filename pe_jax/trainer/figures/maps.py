"""Colour maps: matrices, numbers by head, tables of correlations and scores, sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_jax.trainer.figures import style


class Panel(NamedTuple):
    """A matrix, NaN where it has no entries."""

    title: str
    matrix: np.ndarray
    # Number of the first row and of the first column, such as an offset.
    first: int = 0
    rows: str = "position"  # Labels of the axes.
    columns: str = "position"


@style.applied
def matrix_grid(
    panels: Sequence[Panel], *, title: str, label: str, limits: tuple[float, float]
) -> Figure:
    """Draw matrices, or numbers by layer and head, in a grid with one colour scale (paper, figures
    2, 3, 5 and 7).

    Args:
      label: of the colour scale, with its unit.
      limits: ends of the scale; of a signed quantity symmetric about 0.
    """
    low, high = limits
    figure, grid = style.new_panels(len(panels), (2.1, 2.2), (1.0, 0.6), title)
    gridspec = grid[0].get_gridspec()
    columns = gridspec.ncols if gridspec else 1
    one_kind = len({(panel.rows, panel.columns) for panel in panels}) == 1
    for i, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        axes.set_facecolor("0.8")  # Shows where there are no entries.
        height, width = panel.matrix.shape
        left = panel.first - 0.5
        image = axes.imshow(
            panel.matrix,
            cmap=style.colour_map(limits),
            vmin=low,
            vmax=high,
            extent=(left, left + width, left + height, left),
            interpolation="nearest",
            aspect="equal" if height == width else "auto",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axes.set_title(style.wrapped(panel.title, 24))
        # Where all panels have the same labels, those at the edges of the grid are enough.
        if not one_kind or i % columns == 0:
            axes.set_ylabel(panel.rows)
        if not one_kind or i + columns >= len(panels):
            axes.set_xlabel(panel.columns)
    below = any(np.nanmin(panel.matrix) < low for panel in panels)
    above = any(np.nanmax(panel.matrix) > high for panel in panels)
    extend = ("neither", "min", "max", "both")[below + 2 * above]
    shrink = 1.0 if len(panels) <= 4 else 0.6
    figure.colorbar(image, ax=grid, label=label, extend=extend, shrink=shrink)
    return figure


@style.applied
def head_profiles(
    panels: Sequence[tuple[str, np.ndarray]],
    *,
    title: str,
    columns: str,
    label: str,
    limits: tuple[float, float],
) -> Figure:
    """Draw M numbers of every head side by side with one colour scale: a row for each head, lines
    between layers.

    Args:
      panels: title, numbers `[N, H, M]`, NaN where a layer has none.
      columns, label, limits: name of the M; of the colour scale, and its ends.
    """
    low, high = limits
    layers, heads, _ = panels[0][1].shape
    height = min(max(0.09 * layers * heads, 2.2), 7.0)
    figure, grid = style.new_panels(
        len(panels), (2.6, height), (1.3, 1.2), title, sharey=True
    )
    for axes, (name, values) in zip(grid, panels, strict=True):
        image = axes.imshow(
            values.reshape(layers * heads, -1),
            cmap="viridis",
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
        )
        for edge in range(1, layers):
            axes.axhline(edge * heads - 0.5, color="white", lw=0.8)
        axes.set(title=name, xlabel=columns)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    middles = (np.arange(layers) + 0.5) * heads - 0.5
    grid[0].set_yticks(middles, list(map(str, range(layers))))
    grid[0].set_ylabel("layer, a row for each head")
    above = any((values > high).any() for _, values in panels)
    figure.colorbar(
        image, ax=grid, label=label, aspect=25, extend="max" if above else "neither"
    )
    return figure


@style.applied
def correlation_map(
    cells: Sequence[tuple[str, str, float | None, float | None]], *, title: str
) -> Figure:
    """Draw correlations as a table of coloured cells; a star if p < 0.05, a dash for None.

    Args:
      cells: row, column, correlation in [-1, 1] and p-value, row by row; None for a constant.
    """
    rows = list(dict.fromkeys(row for row, *_ in cells))
    columns = list(dict.fromkeys(column for _, column, *_ in cells))
    figure = style.new(1.5 * len(columns) + 3.4, 0.42 * len(rows) + 1.6, title)
    axes = figure.subplots()
    shape = (len(rows), len(columns))
    values = np.array([value for _, _, value, _ in cells], float)  # NaN for None.
    values = values.reshape(shape)
    image = axes.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for (y, x), (_, _, value, p_value) in zip(np.ndindex(shape), cells, strict=True):
        text = "–"
        colour = "black"
        if value is not None and p_value is not None:
            star = "*" if p_value < 0.05 else ""
            text = f"{round(value, 2) + 0.0:+.2f}{star}"  # No -0.00.
            colour = "white" if abs(value) > 0.6 else "black"
        axes.text(x, y, text, ha="center", va="center", color=colour)
    labels = [column.replace(" ", "\n") for column in columns]
    axes.set_xticks(range(len(columns)), labels)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("score, higher is better")
    axes.set_ylabel("violation, 0 if the property holds")
    figure.colorbar(image, ax=axes, label="correlation; * p < 0.05, not corrected")
    return figure


@style.applied
def sweep_map(
    values: np.ndarray,
    rows: tuple[str, np.ndarray],
    columns: tuple[str, np.ndarray],
    *,
    title: str,
    label: str,
    marked: tuple[float, float] | None = None,
) -> Figure:
    """Draw the results of a sweep over two axes, both on a logarithmic scale.

    Args:
      values: `[rows, columns]`.
      rows, columns: name and ascending values of the axes.
      label: of the colour scale.
      marked: values of the row's and the column's axis that a cross marks, inside the axes.
    """
    row_name, y = rows
    column_name, x = columns
    figure = style.new(6.4, 4.4, title)
    plot = figure.subplots()
    grid = (x, y, values)
    image = plot.pcolormesh(*grid, cmap="viridis", shading="nearest")
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.set(xlabel=column_name, ylabel=row_name)
    levels = np.unique(np.quantile(values, [0.25, 0.5, 0.75, 0.9]).round())
    lines = None
    if np.ptp(values) > 0:
        lines = plot.contour(*grid, levels=levels, colors="white", linewidths=0.8)
    if marked:
        row, column = marked
        plot.plot([column], [row], "x", color="white", ms=9, mew=2)
        plot.annotate(
            f"{column_name} {column:,.0f}, {row_name} {row:,.0f}",
            (column, row),
            color="white",
            xytext=(-8, 6),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    scale = figure.colorbar(image, ax=plot, label=label)
    if lines is not None:
        scale.add_lines(lines)  # Their values; numbers on the map would collide.
    return figure
