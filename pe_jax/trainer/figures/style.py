"""Fonts, a palette for the colour-blind, panels and legends of all figures, and their files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from pe_jax.common.files import to_path, writing
from pe_jax.encodings import ENCODINGS

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
# in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.", (0, (7, 1, 1, 1, 1, 1)), (0, (2, 1)), (0, (3, 4)))

# Of encodings, by the folder of `pe_jax.encodings` that has them. An encoding that joins several
# families is "joined"; "own" is one of another package.
FAMILIES: dict[str, str] = {
    "none": "#000000",
    "absolute": "#0072B2",
    "relative": "#D55E00",
    "bias": "#009E73",
    "rotary": "#CC79A7",
    "content": "#E69F00",
    "modifiers": "#7F7F7F",
    "joined": "#56B4E9",
    "own": "#8C564B",
}
# Towards black or white; with 7 dashes, 21 of a family are different.
_SHADES = (0.0, -0.35, 0.35)
VECTOR = ("pdf", "svg")

_COLUMNS = 4  # Of panels, at most.

# Mean widths in inches, with some room: of a title's characters, of a legend's, of its line.
_TITLE_CHARACTER = 0.085
_LEGEND_CHARACTER = 0.068
_LEGEND_HANDLE = 0.6
_LEGEND_ROW = 0.2  # Height.


class LineStyle(TypedDict):
    color: str
    linestyle: str | tuple[int, tuple[int, ...]]


def encoding_styles(names: Sequence[str]) -> list[LineStyle]:
    """Colours and dashes of encodings, by names as configs write them; options do not matter.

    An encoding looks the same in every figure: its family has a colour, its place in the family the
    shade and the dashes. Only where two of `names` would look the same does the later one get other
    dashes. The nth empty name is a line of no encoding.
    """
    styles: list[LineStyle] = []
    for place, name in enumerate(names):
        if not name:
            dashes = _DASHES[place % len(_DASHES)]
            styles.append({"color": to_hex(COLOURS[place]), "linestyle": dashes})
            continue
        family, number = _family(name)
        rgb = np.array(to_rgb(FAMILIES[family]))
        shade = _SHADES[number % len(_SHADES)]
        rgb = rgb + (1 - rgb) * shade if shade > 0 else rgb * (1 + shade)
        for other in range(len(_DASHES)):
            dashes = _DASHES[(number + other) % len(_DASHES)]
            style: LineStyle = {"color": to_hex(tuple(rgb)), "linestyle": dashes}
            if style not in styles:
                break
        styles.append(style)
    return styles


def encoding_family(name: str) -> str:
    """The family of an encoding, a key of `FAMILIES`."""
    return _family(name)[0]


def _family(name: str) -> tuple[str, int]:
    """Return the family of an encoding and its place there; of combinations, a sum over places."""
    # Decoders add causal, which is no position; words before "=" are options.
    words = re.findall(r"\w+\b(?!\s*=)", name.removesuffix("+causal"))
    families = {word: _folder(word) for word in words if word in ENCODINGS}
    shown = set(families.values())
    for minor in ("none", "modifiers"):  # They count where there is nothing else.
        if shown != {minor}:
            shown.discard(minor)
    family = "joined" if len(shown) > 1 else next(iter(shown), "own")
    alone = len(families) == 1
    places = [other for other in ENCODINGS if not alone or _folder(other) == family]
    number = 0
    for word in families:
        number = 5 * number + places.index(word)
    return family, number


def _folder(name: str) -> str:
    """Return the family of one encoding: the folder that its function is in."""
    package, _, rest = ENCODINGS[name].__module__.partition(".encodings.")
    folder = "none" if name == "none" else rest.partition(".")[0]
    return folder if package == "pe_jax" and folder in FAMILIES else "own"


def colour_map(limits: tuple[float, float]) -> str:
    """For a scale with these ends: signed quantities have a neutral colour at 0, its middle.

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
      size, margins: width and height, in inches, of a panel and of all that is around them.
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
    """Break the lines of a title after so many characters, at spaces or in names after + and _."""
    lines = re.sub(r"([+_])(?=\w)", "\\1\0 ", title).splitlines()
    filled = "\n".join(textwrap.fill(line, width) for line in lines)
    return filled.replace("\0 ", "").replace("\0", "")


def legend_below(figure: Figure, lines: Mapping[str, Artist]) -> None:
    """One legend for all panels, as many names beside each other as fit; the figure grows."""
    column = _LEGEND_CHARACTER * max(map(len, lines)) + _LEGEND_HANDLE
    beside = max(1, min(int(figure.get_figwidth() / column), len(lines)))
    rows = -(-len(lines) // beside)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * rows)
    figure.legend(
        list(lines.values()),
        list(lines),
        loc="outside lower center",
        ncols=beside,
        fontsize=8,
        handlelength=3,
    )


def _take_names_for_text(figure: Figure) -> None:
    """Draw titles and legends as they are: between two `$` Matplotlib would read TeX."""
    texts = [*figure.texts, *(axes.title for axes in figure.axes)]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in filter(None, legends):
        texts += legend.get_texts()
    for text in texts:
        text.set_parse_math(False)


@applied
def save(figure: Figure, path: str | Path, vector: str = "") -> Path:
    """Write a figure as PNG to `path`, and beside it as `vector` ("pdf" or "svg") if given.

    Raises:
      OSError: if it cannot be written.
    """
    path = to_path(path)
    _take_names_for_text(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    # 256 colours, each within 6 of 255 of its own: a third of the bytes.
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
