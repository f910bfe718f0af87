"""Fonts, a palette for the colour-blind, panels and legends of all figures, and their files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pe_jax.files import to_path, writing

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

STYLE: dict[RcKeyType, float | str] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 11,
    "svg.fonttype": "none",
}

# Decorates every function that draws or saves: the style is restored after the call.
applied = matplotlib.rc_context(STYLE)

# Okabe and Ito's palette without its yellow, which is too pale for lines; dashes distinguish lines
# in print, and where there are more lines than colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
VECTOR = ("pdf", "svg")

_COLUMNS = 4  # Of panels, at most.

# Mean widths in inches, with some room: of a title's characters, of a legend's, of its line.
_TITLE_CHARACTER, _LEGEND_CHARACTER, _LEGEND_HANDLE = 0.085, 0.068, 0.6
_LEGEND_ROW = 0.2  # Height.


class LineStyle(TypedDict):
    color: str
    linestyle: str


def line_style(number: int) -> LineStyle:
    """Colour and dashes of the nth line of a plot; 28 of them are different."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(2 * (number // len(COLOURS)) + number) % len(DASHES)],
    }


def colour_map(limits: tuple[float, float]) -> str:
    """For a scale with these ends: signed quantities have a neutral colour at 0.

    Raises:
      ValueError: for a signed scale whose middle is not 0.
    """
    low, high = limits
    if low < 0 and low != -high:
        raise ValueError(f"A signed scale must be symmetric, got {limits}.")
    return "RdBu_r" if low < 0 else "viridis"


def new(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of a size in inches; opens no window and touches no global state."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.08, wspace=0.03)
    if title:
        figure.suptitle(wrapped(title, int(width / _TITLE_CHARACTER)))
    return figure


def new_panels(
    count: int,
    size: tuple[float, float],
    margins: tuple[float, float],
    title: str,
    *,
    least_width: float = 4.6,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with panels in balanced rows: six are two rows of three.

    Args:
      size: width and height of a panel, in inches.
      margins: width and height of all that is around them.
    """
    rows = -(-count // _COLUMNS)
    columns = -(-count // rows)
    width = max(size[0] * columns + margins[0], least_width)
    figure = new(width, size[1] * rows + margins[1], title)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid.flat[count:]:
        axes.remove()
    return figure, list(grid.flat[:count])


def wrapped(title: str, width: int = 34) -> str:
    """Break the lines of a title after so many characters, at spaces or after the + of a name."""
    lines = re.sub(r"\+(?=\w)", "+\0 ", title).splitlines()
    filled = "\n".join(textwrap.fill(line, width) for line in lines)
    return filled.replace("\0 ", "").replace("\0", "")


def legend_below(figure: Figure, lines: Mapping[str, Artist]) -> None:
    """One legend for all panels, as many names beside each other as fit; the figure grows."""
    column = _LEGEND_CHARACTER * max(map(len, lines)) + _LEGEND_HANDLE
    beside = max(1, min(int(figure.get_figwidth() / column), len(lines)))
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * -(-len(lines) // beside))
    figure.legend(
        list(lines.values()), list(lines), loc="outside lower center",
        ncols=beside, fontsize=8, handlelength=3,
    )  # fmt: skip


@applied
def save(figure: Figure, path: str | Path, vector: str = "") -> Path:
    """Write a figure as PNG to `path`, and beside it as `vector` ("pdf" or "svg") if given.

    The PNG has 256 colours, each within 6 of 255 of its own: a third of the bytes.
    """
    path = to_path(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    few = Image.open(drawn).convert("RGB")
    few = few.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            few.save(file, format="png", optimize=True)
        if vector:
            with path.with_suffix(f".{vector}").open("wb") as file:
                figure.savefig(file, format=vector)
    return path
