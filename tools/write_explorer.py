"""Compute the numbers of the site's explorer: docs/explorer.json, from which docs/conf.py makes it.

    python tools/write_explorer.py [--all]

Encodings that have none there are computed, or all with --all, which takes ten minutes on a core.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pe_jax.common.files import write_text
from pe_jax.encodings.parser import for_text
from pe_jax.encodings.registry import ENCODINGS, call_text, options_of
from pe_jax.trainer.reports.explorer import base_size, formulas, untrained
from pe_jax.trainer.reports.explorer_page import Entry

FILE = Path(__file__).resolve().parent.parent / "docs/explorer.json"

# Options that change the picture, of the last encoding of a sum; all combinations are shown. The
# page opens with the first four encodings.
GRID: dict[str, dict[str, tuple]] = {
    "sinusoidal_absolute": {"base": (10000.0, 100.0, 1000.0, 100000.0)},
    "rope": {"base": (10000.0, 500.0, 160000.0, 1000000.0), "fraction": (1.0, 0.25)},
    "alibi": {"directed": (False, True), "exponent": (8.0, 4.0)},
    "kerple": {"kernel": ("log", "power")},
    "none": {},
    "learned_absolute": {},
    "learned_relative": {"max_distance": (64, 8)},
    "sinusoidal_relative": {"max_distance": (64, 8), "base": (10000.0, 100.0)},
    "learnable_sinusoidal_relative": {"max_distance": (64, 8)},
    "sinusoidal_concatenated": {"share": (0.25, 0.5)},
    "fourier_features": {"gamma": (100.0, 10.0)},
    "nezha": {"max_distance": (64, 8)},
    "deberta": {"num_buckets": (256, 32)},
    "t5": {"num_buckets": (32, 16), "bidirectional": (True, False)},
    "fire": {"directed": (False, True)},
    "sandwich": {"base": (10000.0, 100.0)},
    "tisa": {"kernels": (5, 1)},
    "fope": {"gain": (0.3, 1.0)},
    "pope": {"base": (10000.0, 500.0)},
    "string": {"base": (10000.0, 500.0)},
    "grape_m": {"base": (10000.0, 500.0)},
    "xpos+causal": {"scale_base": (512.0, 64.0)},
    "fox": {"gate_bias": (5.0, 2.0)},
    "rope (proportional)": {"base": (10000.0, 160000.0), "proportional": (0.5, 0.25)},
    "rope_linear": {"factor": (2.0, 4.0, 8.0)},
    "rope_ntk": {"factor": (2.0, 4.0, 8.0)},
    "rope_yarn": {"factor": (4.0, 8.0), "original_length": (128,)},
    "self_extend": {"window": (16, 8), "group": (4, 8)},
    "rerope": {"window": (16, 8)},
    "learned_absolute+rope": {},
    "alibi+rope": {"base": (10000.0, 500.0)},
    "rope+window": {"max_distance": (8, 16)},
}
SLOW = ("path_attention+causal",)


def choices() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return title, name and options of all that may be chosen."""
    others = [name for name in for_text() if name not in (*GRID, *SLOW)]
    for name, options in {**GRID, **{other: {} for other in others}}.items():
        encoding, causal, _ = name.partition(" ")[0].partition("+causal")
        *first, last = encoding.split("+")
        defaults = options_of(ENCODINGS[last])
        for values in itertools.product(*options.values()):
            chosen = dict(zip(options, values))
            changed = {
                option: x for option, x in chosen.items() if x != defaults[option]
            }
            yield "+".join([*first, call_text(last, changed)]) + causal, name, chosen


def main() -> None:
    known = {entry["title"]: entry for entry in read()}
    if "--all" in sys.argv[1:]:
        known.clear()
    for title, name, options in choices():
        if title not in known:
            print(title, file=sys.stderr, flush=True)
            known[title] = untrained(title)
            write([*known.values()])  # What is computed stays if the rest fails.
        note = formulas(base_size(title))
        known[title] = {**known[title], "name": name, "options": options, "note": note}
    write([known[title] for title, *_ in choices()])


def write(entries: Sequence[Entry]) -> None:
    """Write the file, an entry a line."""
    lines = (
        json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in entries
    )
    write_text(FILE, "[\n" + ",\n".join(lines) + "\n]\n")


def read() -> list[Entry]:
    """Return the entries of the file, none if there is none."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else []


if __name__ == "__main__":
    main()
