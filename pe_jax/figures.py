"""Figures of matrices and tables that others computed (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

matplotlib.rcParams["font.size"] = 9


class Proximity(NamedTuple):
    """A panel: its title, Φ `[N, N]`, and the first and last position or offset on both axes."""

    title: str
    phi: np.ndarray
    first: int
    last: int
    axis: str


def proximity_figure(panels: Sequence[Proximity], path: str | Path, title: str = "") -> Path:
    """Proximity matrices side by side, as in the paper's figure 2, written to `path`.

    Each panel has its own colour scale: dot products of tables of different sizes share none.
    """
    figure = Figure(figsize=(4.2 * max(len(panels), 1) + 0.4, 4.2), layout="constrained")
    for axes, panel in zip(
        figure.subplots(1, max(len(panels), 1), squeeze=False)[0], panels, strict=False
    ):
        edges = (panel.first - 0.5, panel.last + 0.5)
        image = axes.imshow(
            panel.phi,
            cmap="viridis",
            extent=(*edges, edges[1], edges[0]),
            interpolation="nearest",
        )
        axes.set_title(panel.title)
        axes.set_xlabel(panel.axis)
        axes.set_ylabel(panel.axis)
        figure.colorbar(image, ax=axes, shrink=0.8, label="dot product")
    if title:
        figure.suptitle(title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
