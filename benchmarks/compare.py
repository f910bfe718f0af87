"""Is this commit as fast as another, and does it compute the same? The training step of both.

Command:  git worktree add ../old COMMIT; python benchmarks/compare.py ../old .
Hardware: one CPU, otherwise idle; any device that jax finds.
Time:     about two minutes an encoding and shape, half of them compiling.

Each checkout runs `train.py`'s step in a process of its own, on the same batch from the same seed.
They take turns; a ratio is the second checkout's time over the first's in the same round. Printed
are the median of the ratios with the least and the greatest, and the losses after the same number
of steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _step import make_batch
from absl import app, flags

_ENCODINGS = flags.DEFINE_list(
    "encodings",
    ["learned_absolute", "learned_relative", "learnable_sinusoidal_relative"],
    "Names that both checkouts know, without options.",
)
_SHAPES = flags.DEFINE_list("shapes", ["16x128", "4x512"], "Rows x length.")
_SIZE = flags.DEFINE_string("size", "mini", "Of the model.")
_DTYPE = flags.DEFINE_string("dtype", "float32", "Of the computation.")
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Of each side.")
_STEPS = flags.DEFINE_integer("steps", 4, "Of a round.")


class Side:
    """A checkout's step, which runs when told to."""

    def __init__(self, checkout: Path, job: dict):
        self.process = subprocess.Popen(
            [sys.executable, checkout / "benchmarks" / "_jax_worker.py", json.dumps(job)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self._answer()

    def run(self, steps: int) -> dict:
        """Seconds a step, and the last loss."""
        assert self.process.stdin
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[1]} ended with {self.process.wait()}.")
        return json.loads(line)


def compare(old: Path, new: Path, position: str, shape: str, folder: Path) -> str:
    """A line for one encoding and shape."""
    rows, length = (int(n) for n in shape.split("x"))
    vocab_size = 30_522
    batch = folder / f"{shape}.npz"
    np.savez(batch, **make_batch(rows, length, vocab_size))
    job = {
        "batch": str(batch),
        "size": _SIZE.value,
        "max_length": length,
        "position": position,
        "dtype": _DTYPE.value,
        "sizes": {"vocab_size": vocab_size},
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
    }
    sides = [Side(checkout, job) for checkout in (old, new)]
    rounds = [
        # Each goes first in every other round.
        dict(zip(order, [sides[i].run(_STEPS.value) for i in order], strict=True))
        for number in range(_ROUNDS.value)
        for order in [(0, 1) if number % 2 else (1, 0)]
    ]
    for side in sides:
        side.close()
    ratios = [one[1]["seconds"] / one[0]["seconds"] for one in rounds]
    milliseconds = [1e3 * statistics.median(one[i]["seconds"] for one in rounds) for i in (0, 1)]
    losses = [(sides[i].about["first_loss"], rounds[-1][i]["last_loss"]) for i in (0, 1)]
    apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
    return (
        f"{_SIZE.value} {_DTYPE.value} {shape} {position:31s} {milliseconds[0]:7.1f} -> "
        f"{milliseconds[1]:7.1f} ms, ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
        f"{max(ratios):.3f}); losses {losses[1][0]:.4f} to {losses[1][1]:.4f}, "
        f"at most {apart:.0e} apart"
    )


def main(argv: list[str]) -> None:
    if len(argv) != 3:
        raise app.UsageError("Give two checkouts: benchmarks/compare.py OLD NEW.")
    old, new = (Path(checkout).resolve() for checkout in argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        for shape in _SHAPES.value:
            for position in _ENCODINGS.value:
                print(compare(old, new, position, shape, Path(folder)), flush=True)


if __name__ == "__main__":
    app.run(main)
