"""Figures of the suite: scores by the length of inputs, and a map of encodings and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from pe_jax.trainer.figures import style


@style.applied
def length_curves(
    panels: Sequence[
        tuple[str, Mapping[str, Mapping[int, Sequence[float]]], float | None]
    ],
    *,
    title: str,
    trained: int,
) -> Figure:
    """Draw mean scores against the length of inputs, shaded from the least to the greatest seed.

    Args:
      panels: title; line -> length -> scores of the seeds, 0 to 1; the score of a guess, None if
        it is 0.
      trained: the longest inputs of training.
    """
    figure, grid = style.new_panels(
        len(panels), (2.7, 2.2), (0.6, 0.7), title, least_width=5.6, sharey=True
    )
    lines = {}
    for axes, (task, curves, chance) in zip(grid, panels, strict=True):
        for (name, curve), look in zip(
            curves.items(), style.encoding_styles([*curves])
        ):
            lengths = np.array(sorted(curve))
            scores = np.array([curve[length] for length in lengths])  # [M, S]
            (lines[name],) = axes.plot(lengths, scores.mean(1), lw=1.2, **look)
            axes.fill_between(
                lengths,
                scores.min(1),
                scores.max(1),
                color=look["color"],
                alpha=0.12,
                lw=0,
            )
        axes.set_xscale("log")
        axes.set_xticks(lengths, [str(length) for length in lengths], fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axvspan(lengths[0], trained, color="0.92", zorder=0)
        if chance is not None:
            axes.axhline(chance, color="0.5", lw=0.8, ls=(0, (1, 2)), zorder=0)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(task)
        axes.grid(alpha=0.3)
    figure.supxlabel("symbols of the input", fontsize=9)
    figure.supylabel("right answers; dotted: a guess", fontsize=9)
    style.legend_below(figure, lines)
    return figure


@style.applied
def score_map(
    scores: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, title: str
) -> Figure:
    """Draw scores `[R, C]`, 0 to 1, as a map with their values in points."""
    figure = style.new(0.55 * len(columns) + 3.6, 0.28 * len(rows) + 2.4, title)
    axes = figure.subplots()
    image = axes.imshow(scores, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="task", ylabel="position encoding")
    for (row, column), value in np.ndenumerate(scores):
        colour = "white" if value < 0.6 else "black"
        axes.text(
            column,
            row,
            f"{100 * value:.0f}",
            ha="center",
            va="center",
            color=colour,
            fontsize=7,
        )
    bar = figure.colorbar(image, ax=axes, fraction=0.04, label="right answers")
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1))
    return figure
