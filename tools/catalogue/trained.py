"""Scores and pictures of models trained with each encoding, by research/which_encoding."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pe_jax.encodings.parser import without_options
from research.which_encoding.candidates import is_compared
from research.which_encoding.names import OPTIONS, encodings_to_compare
from research.which_encoding.results import Lines

SCORES = {
    "loss/64": "loss, 64 tokens",
    "accuracy/64": "accuracy",
    "loss/256": "loss, 256",
    "loss/512": "loss, 512",
    "loss/256 after 60 steps": "256, after 60 steps",
}
NOT_MEASURED = "not measured yet"


def names_of(key: str, lines: Iterable[str] = ()) -> list[str]:
    """Return the encodings of the comparison that the card of `key` shows: the registered encoding
    with any options, alone or with `causal`, or a modifier that is joined with one other."""
    names = dict.fromkeys([*_planned(), *lines])
    plain = {name: without_options(name).removesuffix("+causal") for name in names}
    return [
        name
        for name, text in plain.items()
        if key in (text, text.partition("(")[0]) or text.endswith(f"+{key}")
    ]


_planned = functools.cache(encodings_to_compare)


def picture_name(key: str, pictures: Lines) -> str:
    """Return the encoding whose trained picture the card of `key` shows, or nothing."""
    names = names_of(key, pictures)
    return next((name for name in names if pictures.get(name)), "")


def defaults_of(key: str) -> list[str]:
    """Return the names under which the comparison has an encoding with its defaults."""
    return [key, f"{key}+causal", OPTIONS.get(key, key)]


def cells(name: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of `SCORES`: means over seeds, ± standard deviation of the first. Losses of
    an encoding whose learning rate was not chosen are upper bounds."""
    bound = "" if is_compared(name, records) else "≤ "
    found = []
    for score in SCORES:
        values = [record[score] for record in records if score in record]
        if not values:
            found.append("–")
            continue
        mean = statistics.fmean(values)
        is_loss = not score.startswith("accuracy")
        text = f"{bound}{mean:.2f}" if is_loss else f"{mean:.1%}"
        if len(values) > 1 and score == "loss/64":
            text += f" ± {statistics.stdev(values):.2f}"
        found.append(text)
    return found
