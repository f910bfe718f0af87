"""Time the attention of combinations and options that docs/catalogue.json does not have.

python research/which_encoding/time_attention.py

Writes times.json beside this file: by name, the time of attention with 512 tokens at BERT-base's
sizes, forward and backward, over that of `none` in the same round; the median of 9 rounds. On an
idle CPU, two minutes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import catalogue
from catalogue.entries import SIZES, Entry

from pe_jax.common.files import write_text
from pe_jax.encodings import from_name
from research.which_encoding.names import FOLDER, OTHERS


def main() -> None:
    # The layers of a cycle differ, and its cost is the mean of theirs.
    built = {name: from_name(name, **SIZES) for name in OTHERS}
    rows = [Entry(name, one) for name, one in built.items() if one.layer(0) is one]
    costs, _ = catalogue.costs(rows, rounds=9, say=print)
    times = {name: round(cost.ratio, 2) for name, cost in costs.items()}
    write_text(FOLDER / "times.json", json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
