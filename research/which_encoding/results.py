"""The trained models of the comparison, and their pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.json_files import read_json_lines
from research.which_encoding import candidates
from research.which_encoding.names import FOLDER, encodings_to_compare

# Of each seed, by the name of an encoding.
Lines = Mapping[str, Sequence[Mapping[str, Any]]]


def read_lines(name: str, folder: Path = FOLDER) -> Lines:
    """Return the lines of `results.jsonl` or `pictures.jsonl` at the learning rate that was chosen
    for each encoding; at that of all other parameters for encodings without a choice yet.

    They stand under the encoding's name in the comparison, whatever size at the start was chosen.
    """
    by_treatment = defaultdict(list)
    for record in read_json_lines(folder / name):
        by_treatment[record["position"], record["ratio"]].append(record)
    lines = {}
    for encoding in encodings_to_compare():
        chosen = candidates.best(encoding, folder) or (encoding, 1.0)
        records = by_treatment[chosen] or by_treatment[encoding, 1.0]
        if records:
            lines[encoding] = records
    return lines


def at_one_rate(folder: Path = FOLDER) -> Lines:
    """Return the lines of `results.jsonl` with one learning rate for all parameters, by the name of
    the encoding; those of other sizes at the start are left out."""
    names = encodings_to_compare()
    by_name = defaultdict(list)
    for record in read_json_lines(folder / "results.jsonl"):
        name = record["position"]
        if record["ratio"] == 1 and name in names:
            by_name[name].append(record)
    return by_name
