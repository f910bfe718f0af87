"""Images of cards: a heat map of logits and their curve over the offset, before and after training.

The site draws them when it is built: of untrained encodings from docs/pictures.jsonl, of trained
models from research/which_encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from catalogue import trained
from catalogue.entries import SIZES, Entry
from pe_jax.common.files import write_text
from pe_jax.encodings import from_name
from pe_jax.properties import picture
from pe_jax.trainer import figures
from pe_jax.trainer.figures.style import applied, encoding_styles
from research.which_encoding.results import read_lines

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures.jsonl"
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
    """Compute the picture of a card before training: the numbers that `_draw` shows."""
    numbers = picture(from_name(shown_name(row), **SIZES), lengths=[64])
    return {name: numbers[name] for name in ("by", "heat", "curve")}


def read() -> dict[str, dict[str, Any]]:
    """Return the pictures of `PICTURES` by the key of their encoding."""
    lines = PICTURES.read_text(encoding="utf-8").splitlines()
    return {line["key"]: line["picture"] for line in map(json.loads, lines)}


def write(pictures: Mapping[str, dict[str, Any]]) -> None:
    """Write the pictures of untrained encodings to `PICTURES`, a line each."""
    lines = []
    for key, numbers in pictures.items():
        line = {"key": key, "picture": numbers}
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
    write_text(PICTURES, "\n".join(lines) + "\n")


def draw(rows: Sequence[Entry], folder: Path) -> None:
    """Draw the images of all cards, those of trained models included; takes half a minute.

    Args:
      rows: of the catalogue.
      folder: where to; the file names are those of the cards.
    """
    untrained_pictures = read()
    trained_pictures = read_lines("pictures.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    first_rows = {row.key: row for row in reversed(rows)}
    for key, row in first_rows.items():
        numbers = untrained_pictures[key]
        figures.save(_draw(numbers, shown_name(row)), folder / f"{key}.png")
        name = trained.picture_name(key, trained_pictures)
        if name:
            after = trained_pictures[name][0]["picture"]
            figure = _draw(after, name, before=numbers["curve"])
            figures.save(figure, folder / f"{key}_trained.png")


def _short(name: str) -> str:
    return re.sub(r"\([\d., ]{12,}\)", "(…)", name)


@applied
def _draw(
    numbers: Mapping[str, Any], name: str, before: Mapping[str, Any] | None = None
) -> Figure:
    """Draw a picture (see `pe_jax.properties.picture`), of a trained model if there is `before`.

    Args:
      name: of the encoding.
      before: the curve before training, which is shown as well.
    """
    measured = numbers["by"]
    if before is not None:
        title = f"{_short(name)}, trained: {measured}"
    elif measured == "logits":
        title = f"{_short(name)}, untrained: logits with W_Q = W_K"
    else:
        title = f"{_short(name)}, untrained: {measured}"
    colour = encoding_styles([name])[0]["color"]
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
        xlabel="offset of the key", ylabel=f"{measured}, in σ", xlim=(x[0], x[-1])
    )
    right.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    if before is not None:
        right.legend(fontsize=8, frameon=False)
    return figure


def _numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, float)
