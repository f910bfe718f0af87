"""Quality against cost of the encodings that were compared, as docs/figures/which_encoding.png.

python research/which_encoding/figure.py
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

from pe_jax.figures.style import FAMILIES, encoding_family, legend_below, new, save
from research.which_encoding.names import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
_PLACES = [(x, y) for y in (0, 7, -7, 14, -14, 21, -21, 28, -28, 36, -36, 45, -45) for x in (6, -6)]


def points() -> dict[str, tuple[float, float]]:
    """Return cost (attention of 512 tokens, forward and backward, over that of `none`) and loss at
    64 tokens, mean over seeds, of the encodings that have both."""
    costs = json.loads((ROOT / "docs/catalogue.json").read_text(encoding="utf-8"))["rows"]
    by_options = {options: name for name, options in OPTIONS.items()}
    losses = defaultdict(list)
    lines = (ROOT / "research/which_encoding/results.jsonl").read_text(encoding="utf-8")
    for record in map(json.loads, lines.splitlines()):
        losses[record["position"]].append(record["loss/64"])
    titles = {name: by_options.get(name, name) for name in losses}
    return {
        titles[name]: (costs[titles[name]]["cost"][0], statistics.fmean(values))
        for name, values in losses.items()
        if titles[name] in costs
    }


def label(axes: Axes, marks: dict[str, tuple[float, float]], canvas: FigureCanvasAgg) -> None:
    """Write each name beside its mark, where no other name or mark is."""
    renderer = canvas.get_renderer()
    at = axes.transData.transform(list(marks.values()))
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    limits = axes.get_window_extent(renderer)
    for name, place in marks.items():
        text = None
        for x, y in _PLACES:
            text = axes.annotate(
                name, place, (x, y), textcoords="offset points", fontsize=8, va="center",
                ha="left" if x > 0 else "right",
                arrowprops={"arrowstyle": "-", "color": "0.7", "lw": 0.5} if abs(y) > 7 else None,
            )  # fmt: skip
            box = text.get_window_extent(renderer)
            inside = limits.x0 < box.x0 and box.x1 < limits.x1 and limits.y0 < box.y0
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def main() -> None:
    marks = points()
    figure = new(8.5, 5.6, "Relative positions learn most in a million tokens, and few cost much")
    axes = figure.subplots()
    axes.set_xscale("log")
    ticks = np.array([1, 1.2, 1.5, 2, 3, 5, 10, 20])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    shown = {}
    for name, (cost, loss) in marks.items():
        family = encoding_family(name)
        shown[family] = axes.plot(cost, loss, "o", color=FAMILIES[family], markersize=6)[0]
    axes.set_xlabel("time of attention, forward and backward, over that without positions")
    axes.set_ylabel("masked-LM loss, 64 tokens, in nats: lower is better")
    axes.set_xlim(0.88, max(cost for cost, _ in marks.values()) * 1.6)
    axes.margins(y=0.08)
    legend_below(figure, {name: shown[name] for name in FAMILIES if name in shown})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # Names are placed by the sizes that it finds.
    figure.set_layout_engine("none")
    label(axes, marks, canvas)
    save(figure, ROOT / "docs/figures/which_encoding.png")


if __name__ == "__main__":
    main()
