"""One cell of the suite: an encoding on a task, all seeds trained and tested as one program.

Shapes: S seeds, N examples, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator

import grain
import jax
import numpy as np

from pe_jax.length_generalisation.model import answers, symbols_task
from pe_jax.length_generalisation.rows import Rows, row_length, rows
from pe_jax.length_generalisation.task import AlgorithmicTask
from pe_jax.models import BertConfig, frequencies
from pe_jax.training import sharding
from pe_jax.training.optimizer import adamw, linear_schedule
from pe_jax.training.pytrees import Batch, Params
from pe_jax.training.step import (
    TrainState,
    TrainStep,
    init_seeds,
    make_train_step,
)

_TEST = 20_230_526  # Test examples are the same for every encoding and seed.


@dataclasses.dataclass(frozen=True)
class Training:
    """How all cells are trained.

    Attributes:
      seeds: of parameters and data, one program.
      length: inputs of 1 .. length symbols.
      steps, batch_size: the rows of each seed's batch.
      learning_rate: the peak, after a tenth of the steps.
      weight_decay: of matrices.
    """

    seeds: tuple[int, ...]
    length: int
    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How all cells are tested: so many examples of each length, in batches of so many rows."""

    lengths: tuple[int, ...]
    examples: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Score:
    """What the seeds reach on inputs of one length.

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


@dataclasses.dataclass(frozen=True)
class Programs:
    """What one encoding compiles: for each size of rows once, whatever the task."""

    init: Callable[[], TrainState]
    step: TrainStep
    outputs: Callable[[Params, Batch], dict[str, jax.Array]]
    mesh: jax.sharding.Mesh


@functools.cache
def programs(model: BertConfig, training: Training) -> Programs:
    mesh = sharding.seed_mesh(len(training.seeds))
    schedule = linear_schedule(training.learning_rate, training.steps // 10, training.steps)
    optimizer = adamw(
        schedule, functools.partial(frequencies, model), weight_decay=training.weight_decay, b2=0.98
    )
    task = symbols_task(model)
    shardings = sharding.of_seeds(mesh)
    return Programs(
        init=functools.partial(init_seeds, task, optimizer, training.seeds, shardings),
        step=sharding.parallelize_seeds(make_train_step(task, optimizer), mesh, shardings),
        outputs=sharding.parallelize_outputs(
            lambda params, batch: answers(model)(params, batch, None), mesh
        ),
        mesh=mesh,
    )


def run(
    task: AlgorithmicTask, model: BertConfig, training: Training, evaluation: Evaluation
) -> Cell:
    """Trains and tests all seeds."""
    begin = time.perf_counter()
    compiled = programs(model, training)
    state = compiled.init()
    placed = sharding.by_seeds_and_rows(compiled.mesh)
    last = training.steps - max(1, training.steps // 10)
    losses: list[jax.Array] = []
    for batch in _training_batches(task, training):
        state, metrics = compiled.step(state, sharding.to_global(batch, placed))
        total, count = metrics["loss"]
        losses.append(total / count)
        jax.block_until_ready(losses[-2:-1])  # One step ahead is enough, and all that hosts bear.
    return Cell(
        losses=np.mean(jax.device_get(losses[last:]), axis=0).tolist(),
        scores={
            length: _score(compiled, state.params, task, length, evaluation)
            for length in evaluation.lengths
        },
        seconds=time.perf_counter() - begin,
    )


def _training_batches(task: AlgorithmicTask, training: Training) -> Iterator[dict[str, np.ndarray]]:
    """Batches `[S, B, T]`; the nth of a seed depends on these two alone."""
    size = row_length(task, training.length)

    def make(step: int) -> dict[str, np.ndarray]:
        each = [_drawn(task, (seed, step), training, size) for seed in training.seeds]
        return {name: np.stack([getattr(one, name) for one in each]) for name in Rows._fields}

    batches = grain.MapDataset.range(training.steps).map(make)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))


def _drawn(task: AlgorithmicTask, seed: tuple[int, int], training: Training, size: int) -> Rows:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, training.length + 1, training.batch_size)
    return rows(task, rng, lengths, size)


def _score(
    compiled: Programs, params: Params, task: AlgorithmicTask, length: int, evaluation: Evaluation
) -> Score:
    rng = np.random.default_rng((_TEST, length))
    found, asked = [], 0
    for _ in range(evaluation.examples // evaluation.batch_size):
        batch = rows(task, rng, np.full(evaluation.batch_size, length), row_length(task, length))
        asked += batch.asked.sum()
        placed = sharding.split_rows(batch._asdict(), compiled.mesh)
        found.append(jax.device_get(compiled.outputs(params, placed)))
    total = {name: sum(one[name].sum(1) for one in found) for name in ("right", "exact")}
    return Score((total["right"] / asked).tolist(), (total["exact"] / evaluation.examples).tolist())
