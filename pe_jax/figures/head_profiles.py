"""Numbers of every head of every layer, as maps side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from pe_jax.figures import style


class HeadProfile(NamedTuple):
    """Values `[N, H, M]` of N layers and H heads, NaN where a layer has none."""

    title: str
    values: np.ndarray


@style.applied
def head_profiles(
    panels: Sequence[HeadProfile],
    path: str | Path,
    *,
    title: str,
    columns: str,
    label: str,
    limits: tuple[float, float],
    vector: str = "",
) -> Path:
    """Maps side by side with one colour scale: a row for each head, lines between layers.

    Args:
      columns: what the M are.
      label: of the colour scale.
      limits: ends of the scale.
    """
    layers, heads, _ = panels[0].values.shape
    height = min(max(0.09 * layers * heads, 2.2), 7.0)
    wrapped = textwrap.fill(title, 32 * len(panels))
    figure = style.new(2.6 * len(panels) + 1.3, height + 1.2, wrapped)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    above = False
    for axes, panel in zip(grid, panels, strict=True):
        rows = panel.values.reshape(layers * heads, -1)
        above |= bool((rows > limits[1]).any())
        image = axes.imshow(
            rows, cmap="viridis", vmin=limits[0], vmax=limits[1], aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        for edge in range(1, layers):
            axes.axhline(edge * heads - 0.5, color="white", lw=0.8)
        axes.set_title(panel.title)
        axes.set_xlabel(columns)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    grid[0].set_yticks((np.arange(layers) + 0.5) * heads - 0.5, range(layers))
    grid[0].set_ylabel("layer, a row for each head")
    figure.colorbar(
        image, ax=list(grid), label=label, aspect=25, extend="max" if above else "neither"
    )
    return style.save(figure, path, vector)
