"""One cell of the suite: an encoding on a task, all seeds trained and tested as one program.

Shapes: S seeds, N examples, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import grain
import jax
import numpy as np

from pe_jax.configs.length_generalisation import LengthGeneralisationConfig
from pe_jax.configs.training import OptimizerConfig
from pe_jax.length_generalisation.model import answers, symbols_task
from pe_jax.length_generalisation.rows import Rows, row_length, rows
from pe_jax.length_generalisation.task import AlgorithmicTask
from pe_jax.models import BertConfig, train_flops
from pe_jax.schema import key
from pe_jax.tasks.train import SeedsProgram, make_optimizer, train
from pe_jax.training import sharding
from pe_jax.training.loop import Cadence, Stage
from pe_jax.training.pytrees import Batch, Metrics, Params, PyTree, Scalars
from pe_jax.training.step import TrainState
from pe_jax.training.workdir import read_metrics
from pe_jax.values import text

_TEST = 20_230_526  # Test examples are the same for every encoding and seed.


@dataclasses.dataclass(frozen=True)
class CellConfig(LengthGeneralisationConfig):
    """The config of a cell's run: the suite's with one task, and the encoding."""

    position: str = key("", text())


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores of the seeds on inputs of one length.

    Attributes:
      accuracy: the share of symbols asked for that are right, `[S]`.
      exact: the share of examples whose whole answer is right, `[S]`.
    """

    accuracy: list[float]
    exact: list[float]


@dataclasses.dataclass(frozen=True)
class Cell:
    """An encoding on a task.

    Attributes:
      losses: training loss in the last tenth of the steps, nats a symbol, `[S]`.
      scores: by length of the inputs.
      seconds: training and evaluation took, compilation included.
    """

    losses: list[float]
    scores: dict[int, Score]
    seconds: float


def run(
    task: AlgorithmicTask, model: BertConfig, config: LengthGeneralisationConfig, folder: Path
) -> Cell:
    """Train and test all seeds, or resume the run in `folder`.

    Args:
      config: of the suite, with this task alone in `config.tasks`.
    """
    begin = time.perf_counter()
    position, steps = model.encoding().name, config.steps
    optimizer_config = OptimizerConfig(
        learning_rate=config.learning_rate,
        warmup=(steps // 10) / steps,
        weight_decay=config.weight_decay,
        b2=0.98,
    )
    schedule, optimizer = make_optimizer(optimizer_config, steps, model)
    program = SeedsProgram(
        CellConfig(**{**vars(config), "vector": "", "position": position}),
        model,
        symbols_task(model),
        optimizer,
        schedule,
        sharding.seed_mesh(len(config.seeds)),
        config.seeds,
    )
    step, outputs = program.train_step(), program.outputs(answers(model))
    losses: deque[jax.Array] = deque(maxlen=max(1, steps // 10))

    def recorded_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        state, metrics = step(state, batch)
        total, count = metrics["loss"]
        losses.append(total / count)
        return state, metrics

    def evaluate(step: int, params: Params) -> Scalars:
        scalars: Scalars = {}
        for length in config.test_lengths:
            for name, by_seed in _score(outputs, program, params, task, length, config).items():
                scalars |= {f"{name}/{length}/{i}": value for i, value in enumerate(by_seed)}
        means = np.mean(jax.device_get([*losses]), axis=0)
        return scalars | {f"last_loss/{i}": value for i, value in enumerate(means.tolist())}

    stage = Stage(
        name=f"{position} on {config.tasks}",
        steps=steps,
        batches=_training_batches(task, config),
        train_step=recorded_step,
        evaluate=evaluate,
        flops=functools.partial(train_flops, model, predictions=0),
    )
    train(program, [stage], folder, cadence=Cadence(0, 0, 0))
    scalars = read_metrics(folder)[-1]

    def by_seed(name: str) -> list[float]:
        return [scalars[f"held_out/{name}/{i}"] for i in range(len(config.seeds))]

    return Cell(
        losses=by_seed("last_loss"),
        scores={
            length: Score(by_seed(f"accuracy/{length}"), by_seed(f"exact/{length}"))
            for length in sorted(config.test_lengths)
        },
        seconds=time.perf_counter() - begin,
    )


def _training_batches(
    task: AlgorithmicTask, config: LengthGeneralisationConfig
) -> grain.IterDataset:
    """Batches `[S, B, T]`; the nth of a seed depends on these two alone."""
    size = row_length(task, config.length)

    def draw(seed: int, step: int) -> Rows:
        rng = np.random.default_rng((seed, step))
        lengths = rng.integers(1, config.length + 1, config.batch_size)
        return rows(task, rng, lengths, size)

    def make(step: int) -> dict[str, np.ndarray]:
        drawn = [draw(seed, step) for seed in config.seeds]
        return {name: np.stack([getattr(row, name) for row in drawn]) for name in Rows._fields}

    batches = grain.MapDataset.range(config.steps).map(make)
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))


def _score(
    outputs: Callable[[Params, Batch], PyTree],
    program: SeedsProgram,
    params: Params,
    task: AlgorithmicTask,
    length: int,
    config: LengthGeneralisationConfig,
) -> dict[str, list[float]]:
    """Return the scores of each seed on inputs of one length."""
    rng = np.random.default_rng((_TEST, length))
    batches, symbols = [], 0
    for _ in range(config.test_examples // config.test_batch_size):
        lengths = np.full(config.test_batch_size, length)
        batch = rows(task, rng, lengths, row_length(task, length))
        symbols += batch.asked.sum()
        rows_of_devices = sharding.split_rows(batch._asdict(), program.mesh)
        batches.append(jax.device_get(outputs(params, rows_of_devices)))
    right, exact = (sum(batch[name].sum(1) for batch in batches) for name in ("right", "exact"))
    return {
        "accuracy": (right / symbols).tolist(),
        "exact": (exact / config.test_examples).tolist(),
    }
