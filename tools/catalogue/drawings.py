"""Images of cards: a heat map of logits and their curve over the offset, before and after training.

An image carries the curve that it shows, as the text `curve` of the PNG: so that only what has
changed is drawn again, and the curve before training is shown beside the one after.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from catalogue.entries import SIZES, Entry
from pe_jax.encodings import from_name
from pe_jax.properties import picture
from pe_jax.trainer import figures
from pe_jax.trainer.figures.style import applied, encoding_styles

# Windows and lengths that 32 positions show.
SHOWN = {
    "self_extend": "self_extend(window=16, group=8)",
    "rerope": "rerope(window=16)",
    "dual_chunk": "dual_chunk(chunk=12, original_length=16)",
    "window": "rope+window(max_distance=8)",
    "chunks": "rope+chunks(size=8)",
    "log_n": "rope+log_n(original_length=8)",
    "rope_dynamic_ntk": "rope_dynamic_ntk(factor=4, original_length=16)",
    "fope": "fope(original_length=64)",
}
_COLOURS = 48  # Of an image: half the bytes of 256.

# What modifiers are joined with, in code and in images.
PARTNERS = {
    "log_n": "rope", "ssmax": "rope", "dape": "alibi", "dape_v2": "alibi", "sink": "rope",
    "window": "rope", "chunks": "rope", "causal": "rope",
}  # fmt: skip


def shown_name(row: Entry) -> str:
    """Return the encoding that a card shows before training."""
    joined = f"{PARTNERS[row.key]}+{row.name}" if row.key in PARTNERS else row.name
    return SHOWN.get(row.key, joined)


def untrained(row: Entry) -> dict[str, Any]:
    """Return the picture of a card before training."""
    return picture(from_name(shown_name(row), **SIZES), lengths=[64])


def curve_of(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a picture that its image carries."""
    return {"by": numbers["by"], **numbers["curve"]}


def carried(path: Path) -> dict[str, Any] | None:
    """Return the curve that an image carries, or None if there is none."""
    if not path.exists():
        return None
    with Image.open(path) as image:
        return json.loads(image.info["curve"]) if "curve" in image.info else None


def save(
    numbers: dict[str, Any], name: str, path: Path, before: dict[str, Any] | None = None
) -> None:
    """Draw a picture (see `pe_jax.properties.picture`), of a trained model if there is `before`.

    Args:
      name: of the encoding.
      before: the curve before training, which is shown as well.
    """
    when = "before" if before is None else "after"
    title = f"{_short(name)}: {numbers['by']} {when} training"
    colour = encoding_styles([name])[0]["color"]
    figures.save(_draw(numbers, title, colour, before), path)
    text = PngInfo()
    text.add_text(
        "curve", json.dumps(curve_of(numbers), separators=(",", ":")), zip=True
    )
    few = Image.open(path).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, pnginfo=text, optimize=True)


def _short(name: str) -> str:
    return re.sub(r"\([\d., ]{12,}\)", "(…)", name)


@applied
def _draw(
    numbers: dict[str, Any], title: str, colour: str, before: dict[str, Any] | None
) -> Figure:
    heat = np.array(numbers["heat"], float)
    figure = figures.style.new(5.0, 2.3, title)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    limit = float(np.nanmax(np.abs(heat), initial=0)) or 1.0
    left.set_facecolor("0.8")
    left.imshow(heat, cmap="RdBu_r", vmin=-limit, vmax=limit)
    left.set(xlabel="key position", ylabel="query position")
    if before is not None:
        right.plot(
            before["offset"],
            _numbers(before["mean"]),
            "--",
            color="0.6",
            label="before",
        )
    x, mean, spread = (
        _numbers(numbers["curve"][name]) for name in ("offset", "mean", "spread")
    )
    right.fill_between(
        x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0
    )
    right.plot(x, mean, color=colour, label="after")
    right.set(
        xlabel="offset of the key", ylabel="standard deviations", xlim=(x[0], x[-1])
    )
    right.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    if before is not None:
        right.legend(fontsize=8, frameon=False)
    return figure


def _numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, float)
