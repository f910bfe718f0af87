"""Time attention of one layer, forward and backward: encodings and implementations.

Command:  python benchmarks/attention_layer.py [--length=512] [--encodings=none --encodings=alibi]
Hardware: one CPU, otherwise idle; any device that jax finds.
Time:     two minutes.

Does the cost fall with a window? (docs/measurements.md)

    python benchmarks/attention_layer.py --length=4096 --rows=1 --implementations=auto \
        --encodings=none \
        $(for reach in 32 64 128 512 1024; do echo "--encodings=window(max_distance=$reach)"; done)

Sides take turns. Printed are the median of the times with the least, and the median of the ratios
to the first side in the same round with the least and the greatest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
from _layer import gradients_of_layer
from absl import app, flags

_LENGTH = flags.DEFINE_integer("length", 256, "Queries and keys.")
_ROWS = flags.DEFINE_integer("rows", 8, "Of the batch.")
_ENCODINGS = flags.DEFINE_multi_string(
    "encodings", ["learned_relative"], "Names with options."
)
_IMPLEMENTATIONS = flags.DEFINE_list(
    "implementations", ["naive", "table", "fused"], "Implementations of attention."
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Of queries and so on."
)
_PER_ROW = flags.DEFINE_bool(
    "per_row", False, "Positions are arrays, as of packed sequences."
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Of each.")
_HEADS, _SIZE = 4, 64


def prepare(name: str, implementation: str) -> Callable[[], float]:
    """Seconds of one call."""
    shape = _ROWS.value, _LENGTH.value, _HEADS, _SIZE
    dtype, per_row = _DTYPE.value, _PER_ROW.value
    compiled, arguments = gradients_of_layer(
        name, implementation, shape, dtype, per_row=per_row
    )

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return time.perf_counter() - start

    seconds()
    return seconds


def main(_: list[str]) -> None:
    sides = [
        (name, implementation)
        for name in _ENCODINGS.value
        for implementation in _IMPLEMENTATIONS.value
    ]
    calls = {side: prepare(*side) for side in sides}
    rounds = [
        {side: call() for side, call in calls.items()} for _ in range(_ROUNDS.value)
    ]
    for name, implementation in sides:
        times = [1e3 * times[name, implementation] for times in rounds]
        ratios = [times[name, implementation] / times[sides[0]] for times in rounds]
        print(
            f"{_ROWS.value} x {_LENGTH.value} {_DTYPE.value} {name:30s} {implementation:9s} "
            f"{statistics.median(times):8.1f} ms (least {min(times):.1f}), ratio "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
