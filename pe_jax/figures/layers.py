"""Shares of a whole by layer, of several models."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pe_jax.figures import style

_COLUMNS = 4  # Of panels, at most.
_LAYERS = "layers passed"


class SharePanel(NamedTuple):
    """Parts of a whole in the layers of one model.

    Attributes:
      title: of the panel.
      shares: name -> `[N]`, which sum to 1 or less; what is missing is not drawn.
    """

    title: str
    shares: Mapping[str, np.ndarray]


@style.applied
def layer_shares(
    panels: Sequence[SharePanel], path: str | Path, *, title: str, label: str, vector: str = ""
) -> Path:
    """Shares as bars on top of each other, a bar a layer, a panel a model.

    Args:
      label: of the shares.
    """
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    columns = -(-len(panels) // rows)
    figure = style.new(max(2.5 * columns + 0.6, 4.6), 2.1 * rows + 1.0, title)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    bars = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        below = np.zeros(len(next(iter(panel.shares.values()))))
        for number, (name, share) in enumerate(panel.shares.items()):
            bars[name], *_ = axes.bar(
                range(len(share)), share, bottom=below, width=0.85, color=style.COLOURS[number]
            )
            below = below + share
        axes.set_title(textwrap.fill(panel.title, 30))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", alpha=0.3)
        _by_layer(axes)
    figure.supylabel(label, fontsize=9)
    style.legend_below(figure, bars)
    return style.save(figure, path, vector)


def _by_layer(axes: Axes) -> None:
    axes.set_xlabel(_LAYERS)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
