"""Curves: scores over epochs, cosines and their sums, predicted positions (figures 1, 4, 6)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from pe_jax.figures import style

_COLUMNS = 4  # Of panels, at most.


@style.applied
def score_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    path: str | Path,
    *,
    score: str,
    title: str,
    switches: Mapping[float, str] | None = None,
    vector: str = "",
) -> Path:
    """A score against the epoch, one line per run (paper, figure 1).

    Args:
      curves: run -> (epochs, scores), scores from 0 to 1.
      switches: epochs at which the sequence length changes -> annotation.
    """
    figure = style.new(6.4, 4.0, title)
    axes = figure.subplots()
    lines = {}
    for number, (name, (epochs, scores)) in enumerate(curves.items()):
        (lines[name],) = axes.plot(epochs, scores, marker="o", ms=3, **style.line_style(number))
    for epoch, annotation in (switches or {}).items():
        axes.axvline(epoch, color="0.6", lw=1, zorder=0)
        axes.annotate(
            annotation, (epoch, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
            textcoords="offset points", va="top", fontsize=8, color="0.35",
        )  # fmt: skip
    axes.set_xlabel("epoch")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel(score)
    axes.grid(alpha=0.3)
    style.legend_below(figure, lines)
    return style.save(figure, path, vector)


@style.applied
def cosine_curves(
    cosines: Mapping[str, np.ndarray],
    total: np.ndarray,
    path: str | Path,
    *,
    title: str,
    turning_point: int,
    vector: str = "",
) -> Path:
    """(a) cosines of single frequencies, (b) the sum of all of them (paper, figure 4).

    Args:
      cosines: label -> cos(w m) at m = 0, 1, ...
      total: ψ(m) / ψ(0), the mean over all frequencies.
      turning_point: the offset up to which ψ decreases; a dot marks it.
    """
    figure = style.new(9.2, 3.4, title)
    left, right = figure.subplots(1, 2)
    for number, (name, values) in enumerate(cosines.items()):
        left.plot(values, label=name, lw=1.2, **style.line_style(number))
    left.set_title("(a) single frequencies")
    left.set_ylabel("cos(ω m)")
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))  # Beside the curves.
    right.plot(total, color=style.COLOURS[0])
    right.set_title("(b) sum over all frequencies")
    right.set_ylabel("ψ(m) / ψ(0)")
    _mark(right, turning_point, total, style.COLOURS[1])
    right.annotate(
        f"decreases up to m = {turning_point}", (turning_point, total[turning_point]),
        xytext=(6, 12), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xlabel("offset m")
        axes.grid(alpha=0.3)
    return style.save(figure, path, vector)


@style.applied
def psi_curves(
    curves: Mapping[str, np.ndarray],
    turning_points: Mapping[str, int],
    path: str | Path,
    *,
    title: str,
    vector: str = "",
) -> Path:
    """ψ(m) / ψ(0) of several sets of frequencies in one plot (figure 6).

    Args:
      turning_points: the offset up to which each decreases; a dot marks it.
    """
    figure = style.new(6.4, 4.0, title)
    axes = figure.subplots()
    lines = {}
    for number, (name, values) in enumerate(curves.items()):
        line = style.line_style(number)
        turn = turning_points[name]
        (lines[f"{name} (decreases up to {turn})"],) = axes.plot(values, **line)
        _mark(axes, turn, values, line["color"])
    axes.set_xlabel("offset m, positions")
    axes.set_ylabel("ψ(m) / ψ(0)")
    axes.grid(alpha=0.3)
    style.legend_below(figure, lines)
    return style.save(figure, path, vector)


@style.applied
def prediction_plot(
    positions: np.ndarray,
    panels: Sequence[tuple[str, np.ndarray, np.ndarray]],
    path: str | Path,
    *,
    title: str,
    what: str = "position",
    vector: str = "",
) -> Path:
    """Position predicted from the position vector against the true one, one panel per fit.

    Args:
      positions: the true ones `[N]`.
      panels: (title, predicted `[N]`, bool mask `[N]` of the training positions).
      what: name of the predicted quantity, for the axes.
    """
    figure = style.new(max(4.2 * len(panels), 5.6), 3.9, title)
    low, high = positions.min(), positions.max()
    for axes, (name, predicted, train) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        axes.plot([low, high], [low, high], color="0.5", lw=1, label="exact", zorder=0)
        axes.plot(
            positions[~train], predicted[~train], "o", ms=2.5, color=style.COLOURS[1],
            label="test",
        )  # fmt: skip
        axes.plot(
            positions[train], predicted[train], ".", ms=2.5, color=style.COLOURS[0],
            label="train",
        )  # fmt: skip
        margin = 0.25 * (high - low)
        axes.set_ylim(low - margin, high + margin)
        outside = int(((predicted < low - margin) | (predicted > high + margin)).sum())
        axes.set_title(name + (f"\n({outside} out of range)" if outside else ""))
        axes.set_xlabel(f"true {what}")
        axes.set_ylabel(f"predicted {what}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, markerscale=2)
    return style.save(figure, path, vector)


class OffsetPanel(NamedTuple):
    """Curves over the offsets from -(L - 1) to L - 1, NaN where there is none.

    Attributes:
      title: of the panel.
      mean: over the heads, `[M]`.
      spread: of the positions at an offset, `[M]`.
      heads: single heads, `[H, M]`.
    """

    title: str
    mean: np.ndarray
    spread: np.ndarray
    heads: np.ndarray


@style.applied
def offset_curves(
    panels: Sequence[OffsetPanel],
    path: str | Path,
    *,
    title: str,
    label: str,
    vector: str = "",
) -> Path:
    """A quantity against the offset: thin lines are heads, the thick one their mean, shaded ± its
    spread over positions.

    Args:
      label: of the quantity, with its unit.
    """
    rows = -(-len(panels) // _COLUMNS)
    columns = -(-len(panels) // rows)
    figure = style.new(max(2.7 * columns + 0.6, 4.6), 2.2 * rows + 0.7, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        offsets = np.arange(len(panel.mean)) - len(panel.mean) // 2
        axes.plot(offsets, panel.heads.T, color="0.7", lw=0.6)
        low, high = panel.mean - panel.spread, panel.mean + panel.spread
        axes.fill_between(offsets, low, high, color=style.COLOURS[0], alpha=0.25, lw=0)
        axes.plot(offsets, panel.mean, color=style.COLOURS[0], lw=1.4)
        axes.set_title("\n".join(textwrap.fill(x, 34) for x in panel.title.splitlines()))
        axes.grid(alpha=0.3)
    figure.supxlabel("offset j − i of the key from the query", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return style.save(figure, path, vector)


def _mark(axes: Axes, turn: int, values: np.ndarray, colour: str) -> None:
    axes.plot([turn], [values[turn]], "o", ms=5, color=colour)
