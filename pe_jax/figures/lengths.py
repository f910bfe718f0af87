"""Scores by the length of inputs, and of encodings on tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import NullLocator, PercentFormatter

from pe_jax.figures import style

_COLUMNS = 4  # Of panels, at most.


class LengthPanel(NamedTuple):
    """One task.

    Attributes:
      title: of the panel.
      curves: line -> length -> scores of the seeds, 0 to 1.
      chance: the score of a guess; None if it is 0.
    """

    title: str
    curves: Mapping[str, Mapping[int, Sequence[float]]]
    chance: float | None


@style.applied
def length_curves(
    panels: Sequence[LengthPanel], path: str | Path, *, title: str, trained: int, vector: str = ""
) -> Path:
    """Mean scores against the length of inputs, shaded from the least to the greatest seed.

    Args:
      trained: the longest inputs of training.
    """
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = style.new(max(2.7 * columns + 0.6, 5.6), 2.2 * rows + 0.7, title)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    lines = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        for number, (name, curve) in enumerate(panel.curves.items()):
            lengths = np.array(sorted(curve))
            scores = np.array([curve[length] for length in lengths])  # [M, S]
            look = style.line_style(number)
            (lines[name],) = axes.plot(lengths, scores.mean(1), lw=1.2, **look)
            axes.fill_between(
                lengths, scores.min(1), scores.max(1), color=look["color"], alpha=0.12, lw=0
            )
        axes.set_xscale("log")
        axes.set_xticks(lengths, [str(length) for length in lengths], fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvspan(lengths[0], trained, color="0.92", zorder=0)
        if panel.chance is not None:
            axes.axhline(panel.chance, color="0.5", lw=0.8, ls=(0, (1, 2)), zorder=0)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(panel.title)
        axes.grid(alpha=0.3)
    for axes in grid[-1, : len(panels) - (rows - 1) * columns]:
        axes.set_xlabel("symbols of the input")
    style.legend_below(figure, lines)
    return style.save(figure, path, vector)


@style.applied
def score_map(
    scores: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    path: str | Path,
    *,
    title: str,
    vector: str = "",
) -> Path:
    """Scores `[R, C]`, 0 to 1, as a map with their values in points."""
    figure = style.new(0.55 * len(columns) + 3.6, 0.28 * len(rows) + 2.4, title)
    axes = figure.subplots()
    image = axes.imshow(scores, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    for (row, column), value in np.ndenumerate(scores):
        colour = "white" if value < 0.6 else "black"
        axes.text(
            column, row, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=7
        )
    bar = figure.colorbar(image, ax=axes, fraction=0.04)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))
    return style.save(figure, path, vector)
