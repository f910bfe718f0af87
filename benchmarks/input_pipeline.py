"""Does feeding keep up? Examples per second of the input pipeline against those of the step.

    python benchmarks/input_pipeline.py [--config=configs/quickstart.py] [--config.KEY=...]

Both in one process and one run, in turn: a few seconds of pulling batches with nothing else going
on, a few seconds of steps on one batch held on the device, several rounds. Prints the medians and
their ratio, and writes them to --out as JSON. The ratio should be far above 1: the pipeline shares
the machine with the step while training.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
from absl import app, flags
from ml_collections import config_flags

from pe_jax.common.schema import from_values
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.training import sharding

_CONFIG = config_flags.DEFINE_config_file("config", "configs/quickstart.py")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each.")
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Of one round of one side.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")


def per_second(rows: int, once) -> float:
    """Rows a second of calling `once` for the time of a round."""
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < _SECONDS.value or not calls:
        once()
        calls += 1
    return calls * rows / elapsed


def main(_) -> None:
    config: PretrainingConfig = from_values(_CONFIG.value, PretrainingConfig)
    experiment = pretraining.build(text_training.resolve(config))
    program = experiment.program
    results: list[dict] = []
    for stage in experiment.stages:
        state = program.init()
        batch = sharding.to_global(
            next(iter(stage.batches(0))), sharding.by_rows(program.mesh)
        )

        def step(stage=stage, batch=batch):
            nonlocal state
            state, metrics = stage.train_step(state, batch)
            jax.block_until_ready(metrics)

        step()  # Compiles.
        feed, train = [], []
        for _ in range(_ROUNDS.value):
            # A new iterator each round, its first batch not counted: none is ready before the clock
            # starts, and none is made behind the step's back.
            iterator = iter(stage.batches(0))
            next(iterator)
            rows = batch["tokens"].shape[0]
            feed.append(per_second(rows, lambda: next(iterator)))  # noqa: B023
            del iterator
            train.append(per_second(rows, step))
        results.append(
            {
                "stage": stage.name,
                "pipeline_examples_per_second": statistics.median(feed),
                "step_examples_per_second": statistics.median(train),
                "ratio": statistics.median(
                    f / t for f, t in zip(feed, train, strict=True)
                ),
            }
        )
        row = results[-1]
        print(
            f"{stage.name}, {program.model.encoding().name}: "
            f"pipeline {row['pipeline_examples_per_second']:,.0f} examples/s, "
            f"step {row['step_examples_per_second']:,.0f} examples/s, ratio {row['ratio']:.1f}"
        )
    if _OUT.value:
        Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
