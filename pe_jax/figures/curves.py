"""Curves and bars: scores over epochs, cosines and their sums, quantities by layer or offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from pe_jax.figures import style


class PsiCurve(NamedTuple):
    """ψ(m) / ψ(0) at m = 0, 1, ..., and the offset up to which it decreases."""

    name: str
    values: np.ndarray
    turning_point: int


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


class Line(NamedTuple):
    """Points of one model and their standard errors, all `[N]`."""

    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None


class CurvePanel(NamedTuple):
    """A quantity of one model or several. Panels with one title are drawn as one.

    Attributes:
      title: of the panel, the quantity with its unit.
      label: of the x axis.
      lines: by model; a model without the quantity has none.
      least: the least range of the y axis: rounding errors are not drawn as if they were a shape.
    """

    title: str
    label: str
    lines: Mapping[str, Line]
    least: float = 0.0


class LengthPanel(NamedTuple):
    """Scores on one task.

    Attributes:
      title: of the panel.
      curves: line -> length -> scores of the seeds, 0 to 1.
      chance: the score of a guess; None if it is 0.
    """

    title: str
    curves: Mapping[str, Mapping[int, Sequence[float]]]
    chance: float | None


@style.applied
def score_curves(
    curves: Sequence[tuple[str, np.ndarray, np.ndarray]],
    path: str | Path,
    *,
    score: str,
    switches: Mapping[float, str],
    title: str,
    vector: str = "",
) -> Path:
    """Draw scores against the epoch, one line per run (paper, figure 1).

    Args:
      curves: run, epochs, scores from 0 to 1.
      score: label of the y axis.
      switches: epochs at which the sequence length changes -> annotation.
    """
    figure = style.new(6.4, 4.0, title)
    axes = figure.subplots()
    lines = {}
    for number, (name, epochs, scores) in enumerate(curves):
        (lines[name],) = axes.plot(epochs, scores, marker="o", ms=3, **style.line_style(number))
    for epoch, annotation in switches.items():
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
    cosines: Sequence[tuple[str, np.ndarray]],
    path: str | Path,
    *,
    total: PsiCurve,
    title: str,
    vector: str = "",
) -> Path:
    """Draw (a) cosines of single frequencies and (b) their sum over all frequencies (paper,
    figure 4).

    Args:
      cosines: label and cos(w m) at m = 0, 1, ...
      total: the mean over all frequencies.
    """
    figure = style.new(9.2, 3.4, title)
    left, right = figure.subplots(1, 2)
    for number, (name, values) in enumerate(cosines):
        left.plot(values, label=name, lw=1.2, **style.line_style(number))
    left.set_title("(a) single frequencies")
    left.set_ylabel("cos(ω m)")
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))  # Beside the curves.
    right.plot(total.values, color=style.COLOURS[0])
    right.set_title("(b) sum over all frequencies")
    right.set_ylabel("ψ(m) / ψ(0)")
    _mark_turning_point(right, total, style.COLOURS[1])
    right.annotate(
        f"decreases up to m = {total.turning_point}",
        (total.turning_point, total.values[total.turning_point]),
        xytext=(6, 12), textcoords="offset points", fontsize=8,
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xlabel("offset m")
        axes.grid(alpha=0.3)
    return style.save(figure, path, vector)


@style.applied
def psi_curves(
    curves: Sequence[PsiCurve], path: str | Path, *, title: str, vector: str = ""
) -> Path:
    """Draw ψ(m) / ψ(0) of several sets of frequencies in one plot (figure 6); dots mark turning
    points."""
    figure = style.new(6.4, 4.0, title)
    axes = figure.subplots()
    lines = {}
    for number, curve in enumerate(curves):
        look = style.line_style(number)
        name = f"{curve.name} (decreases up to {curve.turning_point})"
        (lines[name],) = axes.plot(curve.values, **look)
        _mark_turning_point(axes, curve, look["color"])
    axes.set_xlabel("offset m, positions")
    axes.set_ylabel("ψ(m) / ψ(0)")
    axes.grid(alpha=0.3)
    style.legend_below(figure, lines)
    return style.save(figure, path, vector)


def _mark_turning_point(axes: Axes, curve: PsiCurve, colour: str) -> None:
    turn = curve.turning_point
    axes.plot([turn], [curve.values[turn]], "o", ms=5, color=colour)


@style.applied
def prediction_plot(
    panels: Sequence[tuple[str, np.ndarray]],
    path: str | Path,
    *,
    positions: np.ndarray,
    train: np.ndarray,
    title: str,
    quantity: str = "position",
    vector: str = "",
) -> Path:
    """Draw the position predicted from the position vector against the true one, a panel per fit.

    Args:
      panels: title, predicted positions `[N]`.
      positions: the true ones `[N]`.
      train: bool mask `[N]` of the training positions.
      quantity: name of the predicted quantity, for the axes.
    """
    figure = style.new(max(4.2 * len(panels), 5.6), 3.9, title)
    low, high = positions.min(), positions.max()
    margin = 0.25 * (high - low)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, predicted) in zip(grid, panels, strict=True):
        axes.plot([low, high], [low, high], color="0.5", lw=1, label="exact", zorder=0)
        for label, chosen, marker, colour in (("test", ~train, "o", 1), ("train", train, ".", 0)):
            axes.plot(
                positions[chosen], predicted[chosen], marker, ms=2.5, color=style.COLOURS[colour],
                label=label,
            )  # fmt: skip
        axes.set_ylim(low - margin, high + margin)
        outside = int(((predicted < low - margin) | (predicted > high + margin)).sum())
        axes.set_title(name + (f"\n({outside} out of range)" if outside else ""))
        axes.set_xlabel(f"true {quantity}")
        axes.set_ylabel(f"predicted {quantity}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, markerscale=2)
    return style.save(figure, path, vector)


@style.applied
def offset_curves(
    panels: Sequence[OffsetPanel], path: str | Path, *, title: str, label: str, vector: str = ""
) -> Path:
    """Draw a quantity against the offset: thin lines are heads, the thick one their mean, shaded ±
    its spread over positions.

    Args:
      label: of the quantity, with its unit.
    """
    figure, grid = style.new_panels(len(panels), (2.7, 2.2), (0.6, 0.7), title)
    for axes, panel in zip(grid, panels, strict=True):
        offsets = np.arange(len(panel.mean)) - len(panel.mean) // 2
        axes.plot(offsets, panel.heads.T, color="0.7", lw=0.6)
        low, high = panel.mean - panel.spread, panel.mean + panel.spread
        axes.fill_between(offsets, low, high, color=style.COLOURS[0], alpha=0.25, lw=0)
        axes.plot(offsets, panel.mean, color=style.COLOURS[0], lw=1.4)
        axes.set_title(style.wrapped(panel.title))
        axes.grid(alpha=0.3)
    figure.supxlabel("offset j − i of the key from the query", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return style.save(figure, path, vector)


@style.applied
def model_curves(
    panels: Sequence[CurvePanel],
    path: str | Path,
    *,
    title: str,
    powers: bool = False,
    vector: str = "",
) -> Path:
    """Draw panels with a line for each model, shaded ± its standard error; a model has the same
    look in all of them, and there is one legend.

    Args:
      powers: x are 0 and powers of two, on a scale of powers of two; else integers.
    """
    by_title: dict[str, CurvePanel] = {}
    for panel in panels:
        known = by_title.setdefault(panel.title, panel)
        by_title[panel.title] = known._replace(lines={**known.lines, **panel.lines})
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    looks = {name: style.line_style(number) for number, name in enumerate(names)}
    single = len(by_title) == 1
    figure, grid = style.new_panels(
        len(by_title), (5.8, 3.6) if single else (3.0, 2.5), (0.6, 0.6), title
    )
    drawn = {}
    for axes, panel in zip(grid, by_title.values(), strict=True):
        for name, (x, y, error) in panel.lines.items():
            look = looks[name]
            (drawn[name],) = axes.plot(x, y, marker="o", ms=2.5, lw=1.2, **look)
            if error is not None:
                axes.fill_between(x, y - error, y + error, color=look["color"], alpha=0.15, lw=0)
        low, high = axes.get_ylim()
        if high - low < panel.least:
            axes.set_ylim((low + high - panel.least) / 2, (low + high + panel.least) / 2)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.label)
        axes.grid(alpha=0.3)
        if powers:
            _scale_by_powers(axes, max(line.x.max() for line in panel.lines.values()))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    style.legend_below(figure, {name: drawn[name] for name in names})
    return style.save(figure, path, vector)


def _scale_by_powers(axes: Axes, last: float) -> None:
    """Set a scale of 0, 1, 2, 4, ...; every other power has its number where there are many."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=1)
    axes.set_xlim(-0.2, 1.25 * max(last, 1))
    count = int(np.log2(max(last, 1))) + 1
    ticks = [0, *(2**i for i in range(0, count, 1 if count < 8 else 2))]
    axes.set_xticks(ticks, list(map(str, ticks)), fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())


@style.applied
def layer_shares(
    panels: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    path: str | Path,
    *,
    title: str,
    label: str,
    vector: str = "",
) -> Path:
    """Draw shares as bars on top of each other, a bar for each layer, a panel for each model.

    Args:
      panels: title, and name of a share -> `[N]`. Shares sum to 1 or less; the rest is not drawn.
      label: of the shares.
    """
    figure, grid = style.new_panels(len(panels), (2.5, 2.1), (0.6, 1.0), title, sharey=True)
    bars = {}
    for axes, (model, shares) in zip(grid, panels, strict=True):
        below = np.zeros(len(next(iter(shares.values()))))
        for number, (name, share) in enumerate(shares.items()):
            bars[name], *_ = axes.bar(
                range(len(share)), share, bottom=below, width=0.85, color=style.COLOURS[number]
            )
            below = below + share
        axes.set_title(style.wrapped(model, 30))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", alpha=0.3)
        axes.set_xlabel("layers passed")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.supylabel(label, fontsize=9)
    style.legend_below(figure, bars)
    return style.save(figure, path, vector)


@style.applied
def length_curves(
    panels: Sequence[LengthPanel], path: str | Path, *, title: str, trained: int, vector: str = ""
) -> Path:
    """Draw mean scores against the length of inputs, shaded from the least to the greatest seed.

    Args:
      trained: the longest inputs of training.
    """
    figure, grid = style.new_panels(
        len(panels), (2.7, 2.2), (0.6, 0.7), title, least_width=5.6, sharey=True
    )
    lines = {}
    for axes, panel in zip(grid, panels, strict=True):
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
    figure.supxlabel("symbols of the input", fontsize=9)
    style.legend_below(figure, lines)
    return style.save(figure, path, vector)
