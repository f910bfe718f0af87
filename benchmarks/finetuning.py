"""What do batches by length save, what do five seeds in one program cost, and one after another?

    python benchmarks/finetuning.py --init=RUN --task=mrpc --data_dir=TFDS

Whole training steps of a GLUE task from a pretrained run, the sides in turns, several rounds. Each
round of a side takes the same number of steps from its own stream of batches. Prints for each side
real tokens (without padding) and all tokens a second, and ratios of real tokens a second:

- one seed with buckets of lengths, against one seed with every input padded to the longest;
- all seeds in one program, against one seed: 1 means that five take as long as five runs do;
- a device takes its seeds one after another, as it does on a CPU, against all of them at once.
"""

import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
from absl import app, flags

from pe_jax.common.schema import from_values
from pe_jax.trainer.configs import glue
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.tasks import finetuning as experiments
from pe_jax.trainer.training import sharding

_INIT = flags.DEFINE_string(
    "init", None, "Workdir of a pretraining run.", required=True
)
_TASK = flags.DEFINE_string("task", "mrpc", "Of GLUE.")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Where tfds datasets lie.")
_LENGTH = flags.DEFINE_integer("length", 128, "Of the longest inputs.")
_BUCKETS = flags.DEFINE_list("buckets", ["16", "32", "64", "96"], "Shorter lengths.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "In one program.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Of the computation."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each.")
_STEPS = flags.DEFINE_integer("steps", 8, "Of one round.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")


class Rates(NamedTuple):
    """Tokens a second: without padding, and all."""

    real: float
    all: float


class Side:
    """A program and its stream of batches."""

    def __init__(self, seeds: int, buckets: tuple[int, ...], *, in_turn: bool = True):
        config = glue.get_config()
        config.task, config.init, config.seeds = (
            _TASK.value,
            _INIT.value,
            tuple(range(seeds)),
        )
        config.data.update(
            data_dir=_DATA_DIR.value, length=_LENGTH.value, buckets=buckets
        )
        config.model.dtype, config.resize = _DTYPE.value, "interpolate"
        config.steps = 10**6
        with mock.patch("pe_jax.trainer.tasks.seeds.in_turn", return_value=in_turn):
            self._run_of_seeds = experiments.build(
                experiments.resolve(from_values(config, FinetuningConfig)),
                Path("unused"),
            )
            self._train_step = self._run_of_seeds.program.train_step()
        self._state = self._run_of_seeds.program.init()
        self._step = 0
        source = self._run_of_seeds.batches
        first = {
            source[n]["tokens"].shape[-1]: n for n in range(source.steps_per_epoch)
        }
        for step in first.values():  # Compiles all lengths that there are.
            self._run(source[step])

    def _next(self):
        self._step += 1
        return self._run_of_seeds.batches[self._step - 1]

    def _run(self, batch) -> None:
        placed = self._run_of_seeds.program.batch_sharding
        self._state, metrics = self._train_step(
            self._state, sharding.to_global(batch, placed)
        )
        jax.block_until_ready(metrics)

    def round(self) -> Rates:
        batches = [self._next() for _ in range(_STEPS.value)]
        start = time.perf_counter()
        for batch in batches:
            self._run(batch)
        seconds = time.perf_counter() - start
        real = sum(int(np.sum(batch["mask"])) for batch in batches)
        return Rates(
            real / seconds, sum(batch["tokens"].size for batch in batches) / seconds
        )


def main(_) -> None:
    buckets = tuple(int(n) for n in _BUCKETS.value)
    sides = {
        "one seed, padded": Side(1, ()),
        "one seed, buckets": Side(1, buckets),
        f"{_SEEDS.value} seeds, buckets": Side(_SEEDS.value, buckets),
        "all of them at once": Side(_SEEDS.value, buckets, in_turn=False),
    }
    rates: dict[str, list[Rates]] = {name: [] for name in sides}
    for number in range(_ROUNDS.value):
        print(f"round {number + 1} of {_ROUNDS.value}", flush=True)
        for name, side in sides.items():
            rates[name].append(side.round())
    padded, bucketed, together, at_once = rates
    ratios: dict[str, list[float]] = {}
    found = {
        "task": _TASK.value,
        "dtype": _DTYPE.value,
        "rates": rates,
        "ratios": ratios,
    }
    for name in sides:
        real, everything = (
            statistics.median(r[n] for r in rates[name]) for n in range(2)
        )
        print(f"{name:20s} {real:9,.0f} tokens/s, {everything:9,.0f} with padding")
    for what, one, other in (
        ("buckets against padding", bucketed, padded),
        ("seeds together against one", together, bucketed),
        ("seeds in turn against at once", together, at_once),
    ):
        each = [a.real / b.real for a, b in zip(rates[one], rates[other], strict=True)]
        ratios[what] = each
        print(
            f"{what}: {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
        )
    if _OUT.value:
        Path(_OUT.value).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
