"""Is this commit as fast as another, and does it compute the same? Steps, a sweep, the start.

Command:  git worktree add ../old COMMIT; python benchmarks/compare.py ../old .
Hardware: one CPU, otherwise idle; any device that jax finds.
Time:     about two minutes an encoding and shape, half of them compiling; a minute for the rest.

Each checkout runs `train.py`'s step in a process of its own, on the same batch from the same seed;
a sweep of general matrices likewise; and its start, `train.py --help`, in a new process each time.
They take turns; a ratio is the second checkout's time over the first's in the same round. Printed
are the median of the ratios with the least and the greatest, and the losses after the same number
of steps, or the means of the sweep's results.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _step import make_batch
from absl import app, flags

_PARTS = flags.DEFINE_list("parts", ["step", "sweep", "start"], "What to compare.")
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

    def __init__(self, checkout: Path, worker: Path, job: dict):
        self.worker = worker
        self.process = subprocess.Popen(
            [sys.executable, worker, json.dumps(job)],
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
            raise RuntimeError(f"{self.worker} ended with {self.process.wait()}.")
        return json.loads(line)


def step(checkouts: list[Path], position: str, shape: str, folder: Path) -> str:
    """The training step with one encoding at one shape; each checkout's own worker runs it."""
    rows, length = (int(n) for n in shape.split("x"))
    vocab_size = 30_522
    batch = folder / f"{shape}.npz"
    arrays: dict[str, Any] = make_batch(rows, length, vocab_size)
    np.savez(batch, **arrays)
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
    worker = Path("benchmarks", "_jax_worker.py")
    sides = [Side(checkout, checkout / worker, job) for checkout in checkouts]
    return f"{_SIZE.value} {_DTYPE.value} {shape} {position:31s} {_served(sides, 'losses')}"


def sweep(checkouts: list[Path], length: int, count: int, folder: Path) -> str:
    """The matrices of sinusoids, by the worker here: an older checkout may have none."""
    settings = folder / "settings.npz"
    frequencies = np.exp(np.random.default_rng(0).uniform(np.log(1e-4), 0, (count, 32)))
    np.savez(settings, frequencies=frequencies.astype(np.float32))
    worker = Path(__file__).resolve().with_name("_sweep_worker.py")
    job = {"batch": str(settings), "length": length}
    sides = [Side(checkout, worker, job) for checkout in checkouts]
    return f"{f'sweep, {count} matrices, L = {length}':44s} {_served(sides, 'means')}"


def start(checkouts: list[Path]) -> str:
    """Until `train.py --help` is over: what is imported before anything runs."""

    def seconds(checkout: Path) -> float:
        begin = time.perf_counter()
        command = [sys.executable, str(checkout / "train.py"), "--help"]
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        subprocess.run(command, cwd=checkout, env=env, capture_output=True, check=False)
        return time.perf_counter() - begin

    calls = [functools.partial(seconds, one) for one in checkouts]
    in_turns(calls, rounds=1)  # Writes byte code.
    rounds = in_turns(calls, _ROUNDS.value)
    return f"{'start, train.py --help':44s} {_ratio(rounds)}"


def in_turns(sides: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Seconds of both sides in every round; each goes first in every other one."""
    found = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        took = {i: sides[i]() for i in order}
        found.append([took[0], took[1]])
    return found


def _served(sides: list[Side], what: str) -> str:
    """The ratio of two workers, and how far apart the numbers are that they computed."""
    last = [0.0, 0.0]

    def seconds(i: int) -> float:
        answer = sides[i].run(_STEPS.value)
        last[i] = answer["last_loss"]
        return answer["seconds"]

    rounds = in_turns([lambda: seconds(0), lambda: seconds(1)], _ROUNDS.value)
    for side in sides:
        side.close()
    numbers = [
        (side.about["first_loss"], end) for side, end in zip(sides, last, strict=True)
    ]
    apart = max(abs(a - b) for a, b in zip(*numbers, strict=True))
    new = numbers[1]
    return f"{_ratio(rounds)}; {what} {new[0]:.4f} to {new[1]:.4f}, at most {apart:.0e} apart"


def _ratio(rounds: list[list[float]]) -> str:
    old, new = (1e3 * statistics.median(side) for side in zip(*rounds, strict=True))
    ratios = [b / a for a, b in rounds]
    return (
        f"{old:7.1f} -> {new:7.1f} ms, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main(argv: list[str]) -> None:
    if len(argv) != 3:
        raise app.UsageError("Give two checkouts: benchmarks/compare.py OLD NEW.")
    if unknown := set(_PARTS.value) - {"step", "sweep", "start"}:
        raise app.UsageError(
            f"--parts are step, sweep and start, not {', '.join(unknown)}."
        )
    checkouts = [Path(checkout).resolve() for checkout in argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        if "start" in _PARTS.value:
            print(start(checkouts), flush=True)
        if "sweep" in _PARTS.value:
            for length, count in ((128, 200), (512, 25)):
                print(sweep(checkouts, length, count, Path(folder)), flush=True)
        if "step" in _PARTS.value:
            for shape in _SHAPES.value:
                for position in _ENCODINGS.value:
                    print(step(checkouts, position, shape, Path(folder)), flush=True)


if __name__ == "__main__":
    app.run(main)
