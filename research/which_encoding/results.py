"""The files of results and pictures of the comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

Lines = Mapping[
    str, Sequence[Mapping[str, Any]]
]  # Of each seed, by the name of an encoding.


def read_lines(name: str, folder: Path = FOLDER) -> Lines:
    """Return the lines of `results.jsonl` or `pictures.jsonl`; none without the file."""
    lines = defaultdict(list)
    path = folder / name
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        lines[record["position"]].append(record)
    return lines
