"""Proximity matrices side by side: the paper's figures 2, 3, 5 and 7."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pe_jax.figures import style

_COLUMNS = 4  # At most.


class Panel(NamedTuple):
    """A matrix `[N, N]`, NaN where it has no entries: its title, first and last position or offset,
    and labels of the axes."""

    title: str
    matrix: np.ndarray
    first: int
    last: int
    rows: str = "position"
    columns: str = "position"


@style.applied
def matrix_grid(
    panels: Sequence[Panel],
    path: str | Path,
    *,
    title: str,
    label: str,
    limits: tuple[float, float],
    vector: str = "",
) -> Path:
    """Matrices as images in a grid with one colour scale for all of them.

    Args:
      label: of the colour scale, with its unit.
      limits: ends of the scale; of a signed quantity symmetric about 0.
      vector: "pdf" or "svg" writes that file as well.
    """
    rows = -(-len(panels) // _COLUMNS)
    columns = -(-len(panels) // rows)  # Balanced: six panels are two rows of three.
    figure = style.new(max(2.7 * columns + 1.1, 4.6), 2.75 * rows + 0.7, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    below = above = False  # Whether any value is beyond the ends of the scale.
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.set_facecolor("0.8")  # What has no entries.
        edges = (panel.first - 0.5, panel.last + 0.5)
        image = axes.imshow(
            panel.matrix,
            cmap=style.colour_map(limits),
            vmin=limits[0],
            vmax=limits[1],
            extent=(*edges, edges[1], edges[0]),
            interpolation="nearest",
        )
        below |= bool(np.nanmin(panel.matrix) < limits[0])
        above |= bool(np.nanmax(panel.matrix) > limits[1])
        axes.set_title("\n".join(textwrap.fill(x, 34) for x in panel.title.splitlines()))
        axes.set_xlabel(panel.columns)
        axes.set_ylabel(panel.rows)
    figure.colorbar(
        image,
        ax=[axes for axes in grid.flat[: len(panels)]],
        label=label,
        extend=("neither", "min", "max", "both")[below + 2 * above],
        shrink=min(1.0, 0.85 if rows == 1 else 0.6),
    )
    return style.save(figure, path, vector)
