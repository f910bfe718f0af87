"""What encodings learn in ten million tokens: a section of README.md, and a figure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from scipy import stats

from pe_jax.common.markdown import raw_table
from pe_jax.trainer.figures.style import encoding_styles, legend_below, new, save
from research.json_files import read_json_lines
from research.which_encoding import candidates, recipe
from research.which_encoding.names import FOLDER, TEN_MILLION
from research.which_encoding.results import Lines

FIGURE = Path(__file__).resolve().parents[2] / "docs/figures/which_encoding_tokens.png"
FEWEST = 5  # Encodings for a rank correlation.
_ABOUT = """
## Ten million tokens

Ten encodings, trained ten times as long: 1,000 steps of 64 rows of 16 tokens, 2,000 of 32 rows of
64 and 2,500 of 16 rows of 128, with the ratio and the scale that were chosen at a million tokens
(`more_tokens.py`). Columns 64 to 512 are losses at the end, on held-out rows of these lengths; the
longest that was trained is 128. {count} of {planned} encodings are trained.

![held-out loss over tokens, by encoding](../../docs/figures/which_encoding_tokens.png)

*At a grey line rows become longer, those in training and those that the loss is measured on.*

"""
_CORRELATION = """
Spearman's rank correlation of the losses at 64 tokens after one million and after ten million
tokens, over {count} encodings, is {value:.2f} (95 % interval {low:.2f} to {high:.2f}).
"""


def lines_of(seed: int) -> dict[str, Mapping[str, Any]]:
    """Return the lines of `more_tokens.jsonl` of a seed, by the name of the plan.

    Their own `position` is what was chosen, which may have another `scale`.
    """
    records = read_json_lines(FOLDER / "more_tokens.jsonl")
    by_position = {
        record["position"]: record for record in records if record["seed"] == seed
    }
    found: dict[str, Mapping[str, Any]] = {}
    for name in TEN_MILLION:
        choice = candidates.best(name)
        if choice and choice[0] in by_position:
            found[name] = by_position[choice[0]]
    return found


def correlation(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Return Spearman's rank correlation and its 95 % interval (Fisher's transformation, with the
    variance of Bonett and Wright, 2000)."""
    value = float(stats.spearmanr(a, b).statistic)
    # The transformation of ±1 is infinite.
    bounded = min(max(value, -1 + 1e-9), 1 - 1e-9)
    error = math.sqrt((1 + value**2 / 2) / (len(a) - 3))
    middle = math.atanh(bounded)
    low, high = math.tanh(middle - 1.96 * error), math.tanh(middle + 1.96 * error)
    return value, low, high


def section(by_name: Lines) -> list[str]:
    """Return the lines of the section; none without results."""
    first, second = lines_of(0), lines_of(1)
    if not first:
        return []
    short_losses = {name: by_name[name][0]["loss/64"] for name in first}
    rows = []
    for name in sorted(first, key=lambda name: first[name]["loss/64"]):
        losses = [f"{first[name][f'loss/{n}']:.2f}" for n in (64, 128, 256, 512)]
        again = f"{second[name]['loss/64']:.2f}" if name in second else ""
        trained = first[name]["position"]
        rows.append([f"`{trained}`", f"{short_losses[name]:.2f}", *losses, again])
    header = ["encoding", "64, a million", "64", "128", "256", "512", "64, second seed"]
    about = _ABOUT.format(count=len(first), planned=len(TEN_MILLION))
    lines = [about, *raw_table(header, rows)]
    if len(first) >= FEWEST:
        long_losses = [record["loss/64"] for record in first.values()]
        value, low, high = correlation([*short_losses.values()], long_losses)
        text = _CORRELATION.format(count=len(first), value=value, low=low, high=high)
        lines.append(text)
    return lines


def draw() -> None:
    """Draw held-out loss over tokens, if there are results; the legend has the worst first."""
    curves = {record["position"]: record["curve"] for record in lines_of(0).values()}
    if not curves:
        return
    names = sorted(curves, key=lambda name: curves[name][-1][1], reverse=True)
    figure = new(7.5, 4.5)
    axes = figure.subplots()
    lines: dict[str, Artist] = {}
    for name, look in zip(names, encoding_styles(names), strict=True):
        tokens, losses = zip(*curves[name], strict=True)
        millions = [count / 1e6 for count in tokens]
        (lines[name],) = axes.plot(millions, losses, marker=".", **look)
    for boundary in itertools.accumulate(map(math.prod, recipe.LONG_STAGES[:-1])):
        axes.axvline(boundary / 1e6, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("million tokens; rows of 16, then 64, then 128 tokens")
    axes.set_ylabel("held-out masked-LM loss, in nats")
    legend_below(figure, lines)
    save(figure, FIGURE)
