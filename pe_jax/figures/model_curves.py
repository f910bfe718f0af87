"""One line a model in every panel, and one legend for all: for many models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from pe_jax.figures import style

_COLUMNS = 4  # Of panels, at most.


class Line(NamedTuple):
    """Points of one model and their standard errors, all `[N]`."""

    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None


class CurvePanel(NamedTuple):
    """A quantity of several models.

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


@style.applied
def model_curves(
    panels: Sequence[CurvePanel],
    path: str | Path,
    *,
    title: str,
    powers: bool = False,
    vector: str = "",
) -> Path:
    """Panels with a line for each model, shaded ± its standard error; a model has the same look in
    all of them.

    Args:
      powers: x are 0 and powers of two, on a scale of powers of two; else integers.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    looks = {name: style.line_style(number) for number, name in enumerate(names)}
    rows = -(-len(panels) // _COLUMNS)
    columns = -(-len(panels) // rows)
    size = (3.0 * columns + 0.6, 2.5) if columns > 1 else (6.4, 3.6)
    height = size[1] * rows + 0.6
    figure = style.new(size[0], height, title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    drawn = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
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
            _powers(axes, max(line.x.max() for line in panel.lines.values()))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    style.legend_below(figure, {name: drawn[name] for name in names})
    return style.save(figure, path, vector)


def _powers(axes: Axes, last: float) -> None:
    """A scale of 0, 1, 2, 4, ...; every other power has its number where there are many."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=1)
    axes.set_xlim(-0.2, 1.25 * max(last, 1))
    count = int(np.log2(max(last, 1))) + 1
    shown = [2**i for i in range(0, count, 1 if count < 8 else 2)]
    axes.set_xticks([0, *shown], [str(one) for one in (0, *shown)], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
