"""Curves and bars: scores over epochs, cosines and their sums, quantities by layer or offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from pe_jax.trainer.figures import style


class Curve(NamedTuple):
    """A quantity of one model, in the panel of that quantity."""

    panel: str  # The quantity with its unit, the label of the y axis.
    label: str  # Of the x axis.
    model: str  # In the legend.
    encoding: str  # For colour and dashes; empty for a line of no encoding.
    x: np.ndarray  # `[N]`, as the next two.
    y: np.ndarray
    error: np.ndarray | None = None  # Standard errors.
    # Range of y: rounding errors are not drawn as if they were a shape.
    least: float = 0.0
    mark: int | None = None  # Index of a point to mark.


@style.applied
def prediction_plot(
    panels: Sequence[tuple[str, np.ndarray]],
    *,
    positions: np.ndarray,
    train: np.ndarray,
    title: str,
    quantity: str = "position",
) -> Figure:
    """Draw the position predicted from the position vector against the true one, a panel per fit.

    Args:
      panels: title, predicted positions `[N]`.
      positions, train: the true ones `[N]`, and True at those of training.
      quantity: name of the predicted quantity, for the axes.
    """
    figure, grid = style.new_panels(
        len(panels), (4.2, 3.9), (0, 0), title, least_width=5.6
    )
    low, high = positions.min(), positions.max()
    margin = 0.25 * (high - low)
    for axes, (name, predicted) in zip(grid, panels, strict=True):
        axes.plot([low, high], [low, high], color="0.5", lw=1, label="exact", zorder=0)
        for label, chosen, marker, colour in (
            ("test", ~train, "o", style.COLOURS[1]),
            ("train", train, ".", style.COLOURS[0]),
        ):
            x = positions[chosen]
            y = predicted[chosen]
            axes.plot(x, y, marker, ms=2.5, color=colour, label=label)
        axes.set_ylim(low - margin, high + margin)
        is_outside = (predicted < low - margin) | (predicted > high + margin)
        if is_outside.any():
            name += f"\n({is_outside.sum()} out of range)"
        axes.set_title(name)
        axes.set(xlabel=f"true {quantity}", ylabel=f"predicted {quantity}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, markerscale=2)
    return figure


@style.applied
def offset_curves(
    panels: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]],
    *,
    title: str,
    label: str,
) -> Figure:
    """Draw a quantity against the offset: thin lines are heads, the thick one their mean, shaded ±
    its spread over positions.

    Args:
      panels: title, mean over the heads `[M]` at the offsets from -(L - 1) to L - 1, its spread
        over the positions at an offset `[M]`, and single heads `[H, M]`; NaN where there is none.
    """
    figure, grid = style.new_panels(len(panels), (2.7, 2.2), (0.6, 0.7), title)
    for axes, (name, mean, spread, heads) in zip(grid, panels, strict=True):
        offsets = np.arange(len(mean)) - len(mean) // 2
        axes.plot(offsets, heads.T, color="0.7", lw=0.6)
        blue = style.COLOURS[0]
        axes.fill_between(
            offsets, mean - spread, mean + spread, color=blue, alpha=0.25, lw=0
        )
        axes.plot(offsets, mean, color=blue, lw=1.4)
        axes.set_title(style.wrapped(name))
        axes.grid(alpha=0.3)
    figure.supxlabel("offset j − i of the key from the query", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return figure


@style.applied
def model_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    powers: bool = False,
    percent: bool = False,
    switches: Mapping[float, str] | None = None,
) -> Figure:
    """Draw a panel for each quantity, with a line for each model, shaded ± its standard error; a
    model has the same look in all of them, and there is one legend.

    Args:
      powers: x are 0 and powers of two, on a scale of powers of two.
      percent: y are shares.
      switches: x at which something changes -> annotation.
    """
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.panel, []).append(curve)
    models = {curve.model: curve.encoding for curve in curves}
    looks = dict(zip(models, style.encoding_styles(list(models.values()))))
    size = (5.8, 3.6) if len(panels) == 1 else (3.0, 2.5)
    figure, grid = style.new_panels(len(panels), size, (0.6, 0.6), title)
    drawn = {}
    for axes, (panel, lines) in zip(grid, panels.items(), strict=True):
        for curve in lines:
            drawn[curve.model] = _draw_curve(axes, curve, looks[curve.model])
        low, high = axes.get_ylim()
        least = lines[0].least
        if high - low < least:
            axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
        axes.set(xlabel=lines[0].label, ylabel=style.wrapped(panel, int(15 * size[1])))
        axes.grid(alpha=0.3)
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        for place, annotation in (switches or {}).items():
            axes.axvline(place, color="0.6", lw=1, zorder=0)
            axes.annotate(
                annotation,
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color="0.35",
            )
        if powers:
            _scale_by_powers(axes, max(line.x.max() for line in lines))
        else:
            whole = all((line.x == np.round(line.x)).all() for line in lines)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole, min_n_ticks=1))
    style.legend_below(figure, {model: drawn[model] for model in models})
    return figure


def _draw_curve(axes: Axes, curve: Curve, look: style.LineStyle) -> Line2D:
    x = curve.x
    y = curve.y
    dots = "o" if len(x) <= 40 else ""  # Those of many points would hide the dashes.
    (line,) = axes.plot(x, y, marker=dots, ms=2.5, lw=1.2, **look)
    color = look["color"]
    if curve.error is not None:
        low = y - curve.error
        high = y + curve.error
        axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
    if curve.mark is not None:
        axes.plot(x[curve.mark], y[curve.mark], "o", ms=5, color=color)
    return line


def _scale_by_powers(axes: Axes, last: float) -> None:
    """Set a scale of 0, 1, 2, 4, ...; every other power has its number where there are many."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=1)
    axes.set_xlim(-0.2, 1.25 * max(last, 1))
    count = int(np.log2(max(last, 1))) + 1
    powers = range(0, count, 1 if count < 8 else 2)
    ticks = [0, *(2**power for power in powers)]
    axes.set_xticks(ticks, list(map(str, ticks)), fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())


@style.applied
def layer_shares(
    panels: Sequence[tuple[str, Mapping[str, np.ndarray]]], *, title: str, label: str
) -> Figure:
    """Draw shares as bars on top of each other, a bar for each layer, a panel for each model.

    Args:
      panels: title, and name of a share -> `[N]`. Shares sum to 1 or less; the rest is not drawn.
    """
    figure, grid = style.new_panels(
        len(panels), (2.5, 2.1), (0.6, 1.0), title, sharey=True
    )
    bars = {}
    for axes, (model, shares) in zip(grid, panels, strict=True):
        below: float | np.ndarray = 0.0
        for number, (name, share) in enumerate(shares.items()):
            layers = range(len(share))
            color = style.COLOURS[number]
            bars[name], *_ = axes.bar(
                layers, share, bottom=below, width=0.85, color=color
            )
            below = below + share
        axes.set(title=style.wrapped(model, 30), xlabel="layers passed")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.supylabel(label, fontsize=9)
    style.legend_below(figure, bars)
    return figure
