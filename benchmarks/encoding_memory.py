"""Memory of attention with every encoding, and on request its time, against attention without.

Command:  python benchmarks/encoding_memory.py [--length=4096] [--encodings=fire --rounds=3]
Hardware: one CPU; for times one core of it, as with `taskset -c 0`.
Time:     six minutes for the memory of all encodings, most of it compiling.

One layer of two heads, forward and backward, `embed` and the projections to queries and keys that
an encoding may ask for included: the temporary memory of the compiled program in MiB, at positions
0, 1, 2, ... and, after a comma, with --packed at positions that start again in the middle of the
row. Ratios are to `none`. With --rounds=N each encoding is run N times next to `none`, and the
median of the ratios of their processor times is printed with the least and the greatest.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import catalogue
import jax
import numpy as np
from absl import app, flags
from catalogue.cost import LONG, layer_step, temporary_bytes
from jax.stages import Compiled

from pe_jax.encodings import PositionEncoding, from_name, none

_LENGTH = flags.DEFINE_integer("length", 4096, "Queries and keys.")
_ENCODINGS = flags.DEFINE_multi_string(
    "encodings", [], "Names with options; default: all."
)
_PACKED = flags.DEFINE_bool(
    "packed", False, "Positions of two documents in the row as well."
)
_ROUNDS = flags.DEFINE_integer("rounds", 0, "Of times.")
MIB = 2**20


def sizes() -> dict[str, int]:
    """Return the sizes that encodings are built for."""
    return LONG | {"max_length": _LENGTH.value}


def program(encoding: PositionEncoding, *, packed: bool) -> tuple[Compiled, Mapping]:
    """Return the compiled layer with its gradients, and its arguments."""
    positions = np.arange(_LENGTH.value) % (_LENGTH.value // 2) if packed else None
    step, arguments = layer_step(encoding, sizes(), positions)
    return step.lower(arguments).compile(), arguments


def seconds(run: Compiled, arguments: Mapping) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    jax.block_until_ready(run(arguments))
    return time.process_time() - start


def main(_) -> None:
    names = _ENCODINGS.value or [row.name for row in catalogue.rows(sizes())]
    baseline = program(none(), packed=False)
    least = temporary_bytes(baseline[0]) / MIB
    print(f"none: {least:.0f} MiB at {_LENGTH.value} tokens")
    for name in names:
        encoding = from_name(name, **sizes())
        compiled = program(encoding, packed=False)
        memory = [temporary_bytes(compiled[0]) / MIB]
        if _PACKED.value:
            memory.append(temporary_bytes(program(encoding, packed=True)[0]) / MIB)
        cells = [
            ", ".join(f"{n:.0f}" for n in memory),
            ", ".join(f"{n / least:.1f}" for n in memory),
        ]
        if _ROUNDS.value:
            for side in (compiled, baseline):
                seconds(*side)
            ratios = [
                seconds(*compiled) / seconds(*baseline) for _ in range(_ROUNDS.value)
            ]
            median = statistics.median(ratios)
            cells.append(f"{median:.1f} ({min(ratios):.1f}–{max(ratios):.1f})")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
