"""Numbers of every head of every layer, as maps side by side; changes by kind, as points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator

from pe_jax.figures import style


class HeadMap(NamedTuple):
    """Values `[N, H, M]` of N layers and H heads, NaN where a layer has none."""

    title: str
    values: np.ndarray


@style.applied
def head_maps(
    panels: Sequence[HeadMap],
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
    height = min(max(0.09 * layers * heads, 1.6), 7.0)
    figure = style.new(2.6 * len(panels) + 1.3, height + 1.2, title)
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
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    grid[0].set_yticks((np.arange(layers) + 0.5) * heads - 0.5, range(layers))
    grid[0].tick_params(axis="y", length=0)
    grid[0].set_ylabel("layer, a row for each head")
    figure.colorbar(image, ax=list(grid), label=label, extend="max" if above else "neither")
    return style.save(figure, path, vector)


class Changes(NamedTuple):
    """What several things do to a number, and the standard errors, `[C]` each."""

    means: np.ndarray
    errors: np.ndarray


@style.applied
def change_points(
    panels: Mapping[str, Mapping[str, Changes]],
    names: Sequence[str],
    path: str | Path,
    *,
    title: str,
    columns: str,
    label: str,
    vector: str = "",
) -> Path:
    """Changes as points with their standard errors, joined by lines, a line for each model.

    Args:
      panels: title -> model -> changes.
      names: of the C.
      columns: what the C are.
      label: of the changes, with their unit.
    """
    figure = style.new(3.1 * len(panels) + 0.6, 3.6, title)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    lines = {}
    for axes, (name, models) in zip(grid, panels.items(), strict=True):
        axes.axhline(0, color="0.5", lw=0.8, zorder=0)
        spread = 0.3 * (np.arange(len(models)) - (len(models) - 1) / 2) / len(models)
        for number, (model, changes) in enumerate(models.items()):
            lines[model] = axes.errorbar(
                np.arange(len(names)) + spread[number], changes.means, changes.errors,
                marker="o", ms=3.5, lw=1, capsize=2, **style.line_style(number),
            )  # fmt: skip
        axes.set_xticks(range(len(names)), names)
        axes.set_title(name)
        axes.set_xlabel(columns)
        axes.grid(alpha=0.3)
    grid[0].set_ylabel(label)
    if len(lines) > 1:
        figure.legend(
            list(lines.values()), list(lines), loc="outside lower center", ncols=3, fontsize=8
        )
    return style.save(figure, path, vector)
