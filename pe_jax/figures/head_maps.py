"""A number of every head of a model: layers from top to bottom, heads from left to right."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from pe_jax.figures import style

_COLUMNS = 4  # Of panels, at most.


@style.applied
def head_maps(
    maps: Mapping[str, np.ndarray],
    path: str | Path,
    *,
    title: str,
    label: str,
    limits: tuple[float, float] = (0.0, 1.0),
    vector: str = "",
) -> Path:
    """One panel for each model.

    Args:
      maps: model -> `[N, H]`.
      label: of the colour scale.
      limits: ends of the scale.
    """
    rows = -(-len(maps) // _COLUMNS)
    columns = -(-len(maps) // rows)
    layers = max(len(values) for values in maps.values())
    height = min(0.25 * layers, 2.2) + 0.9
    figure = style.new(max(2.4 * columns + 1.1, 4.6), height * rows + 0.7, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(maps) :]:
        axes.remove()
    for axes, (name, values) in zip(grid.flat, maps.items(), strict=False):
        low, high = limits
        image = axes.imshow(
            values, cmap=style.colour_map(limits), vmin=low, vmax=high, interpolation="nearest",
            aspect="auto",
        )  # fmt: skip
        axes.set_title(textwrap.fill(name, 30))
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    shown = list(grid.flat[: len(maps)])
    figure.colorbar(image, ax=shown, label=label, shrink=0.85 if rows == 1 else 0.6)
    return style.save(figure, path, vector)
