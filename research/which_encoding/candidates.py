"""The learning rates and sizes at the start that each encoding may choose from, and its choice."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_jax.encodings import parameter_count
from research.json_files import read_json_lines
from research.which_encoding.names import (
    FOLDER,
    IN_DEPTH,
    encoding_of,
    encodings_to_compare,
)

# Learning rate of an encoding's parameters over that of all others.
RATIOS = (1.0, 10.0, 30.0, 100.0)
RATIOS_OF_INPUTS = (0.1, 0.3, 1.0, 3.0)  # Of vectors that are added to the input.

# An encoding that adds vectors to the input, at two other sizes of what it adds at the start.
OTHER_SIZES = {
    "learned_absolute": (
        "learned_absolute(stddev=0.006)",
        "learned_absolute(stddev=0.06)",
    ),
    "sinusoidal_absolute(scale=0.03)": (
        "sinusoidal_absolute(scale=0.01)",
        "sinusoidal_absolute(scale=0.1)",
    ),
    "learnable_sinusoidal_absolute(scale=0.03)": (
        "learnable_sinusoidal_absolute(scale=0.01)",
        "learnable_sinusoidal_absolute(scale=0.1)",
    ),
}


@functools.cache
def ratios(name: str) -> tuple[float, ...]:
    """Return the ratios to try; 1 alone for an encoding without parameters."""
    encoding = encoding_of(name)
    if parameter_count(encoding) == 0:
        return (1.0,)
    if any(part.embed for part in encoding.parts):
        return RATIOS_OF_INPUTS
    return RATIOS


def encodings_to_tune() -> list[str]:
    """Return the names of encodings that have a choice, those that matter most first."""
    names = dict.fromkeys([*IN_DEPTH, *encodings_to_compare()])
    return [name for name in names if len(ratios(name)) > 1 or name in OTHER_SIZES]


def losses_of(name: str, folder: Path = FOLDER) -> dict[tuple[str, float], float]:
    """Return the held-out losses of an encoding's candidates, by name with options and ratio."""
    return {
        (record["position"], record["ratio"]): record["loss/64"]
        for record in read_json_lines(folder / "selection.jsonl")
        if record["encoding"] == name
    }


def next_ratios(
    ratios_in_order: Sequence[float], losses: Mapping[float, float]
) -> list[float]:
    """Return the ratios to try next: the two in the middle, then the neighbours of the best.

    Nothing is left once these are worse: the loss is taken to rise on both sides of one minimum, as
    it did for the six encodings that tried all four.
    """
    middle = len(ratios_in_order) // 2
    first = ratios_in_order[middle - 1 : middle + 1]
    untried = [ratio for ratio in first if ratio not in losses]
    if untried:
        return untried
    best_place = ratios_in_order.index(min(losses, key=lambda ratio: losses[ratio]))
    neighbours = ratios_in_order[max(best_place - 1, 0) : best_place + 2]
    return [ratio for ratio in neighbours if ratio not in losses]


def missing(name: str, folder: Path = FOLDER) -> list[tuple[str, float]]:
    """Return the candidates of an encoding to train next: ratios, and when these are tried the
    sizes, at the best ratio; none if nothing is left, or nothing is to choose."""
    sizes = OTHER_SIZES.get(name, ())
    all_ratios = ratios(name)
    if len(all_ratios) == 1 and not sizes:
        return []
    losses = losses_of(name, folder)
    by_ratio = {
        ratio: loss for (position, ratio), loss in losses.items() if position == name
    }
    untried = next_ratios(all_ratios, by_ratio)
    if untried:
        return [(name, ratio) for ratio in untried]
    best_ratio = min(by_ratio, key=lambda ratio: by_ratio[ratio])
    return [(size, best_ratio) for size in sizes if (size, best_ratio) not in losses]


def best(name: str, folder: Path = FOLDER) -> tuple[str, float] | None:
    """Return the name with its options, and the ratio, that had the lowest held-out loss; None as
    long as candidates are missing."""
    if missing(name, folder):
        return None
    losses = losses_of(name, folder)
    if not losses:
        return name, 1.0
    return min(losses, key=lambda candidate: losses[candidate])


def is_compared(name: str, records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether results of an encoding are those of its choice; if not, their losses are upper
    bounds."""
    return best(name) == (records[0]["position"], records[0]["ratio"])


def ratio_text(name: str) -> str:
    """Return the chosen ratio of an encoding's learning rate; a dash if there is none."""
    choice = best(name)
    if len(ratios(name)) == 1 or choice is None:
        return "–"
    return f"{choice[1]:g}"
