"""Scores and pictures of models trained with each encoding, by research/which_encoding."""

from __future__ import annotations

import functools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_jax.encodings.parser import without_options
from research.which_encoding.names import OPTIONS, encodings_to_compare

FOLDER = Path(__file__).resolve().parents[2] / "research/which_encoding"
SCORES = {
    "loss/64": "loss, 64 tokens",
    "accuracy/64": "accuracy",
    "loss/256": "loss, 256",
    "loss/512": "loss, 512",
    "loss/256 after 60 steps": "256, after 60 steps",
}
NOT_MEASURED = "not measured yet"

Lines = Mapping[str, Sequence[Mapping[str, Any]]]  # Of each seed, by the name of an encoding.


def read_lines(name: str, folder: Path = FOLDER) -> Lines:
    """Return the lines of `results.jsonl` or `pictures.jsonl`; none without the file."""
    lines = defaultdict(list)
    path = folder / name
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        lines[record["position"]].append(record)
    return lines


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


def defaults_of(key: str) -> list[str]:
    """Return the names under which the comparison has an encoding with its defaults."""
    return [key, f"{key}+causal", OPTIONS.get(key, key)]


def cells(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of `SCORES`: means over seeds, ± standard deviation of the first."""
    found = []
    for name in SCORES:
        values = [record[name] for record in records if name in record]
        if not values:
            found.append("–")
            continue
        mean = statistics.fmean(values)
        text = f"{mean:.1%}" if name.startswith("accuracy") else f"{mean:.2f}"
        if len(values) > 1 and name == "loss/64":
            text += f" ± {statistics.stdev(values):.2f}"
        found.append(text)
    return found
