"""One cell of the suite: an encoding on a task, all seeds trained and tested as one program.

Shapes: S seeds, N examples, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.files import Json
from pe_jax.common.schema import as_dict, changed
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.models import Bert, BertConfig
from pe_jax.models.flops import train_flops
from pe_jax.models.layers import BertModule
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.run import Run
from pe_jax.trainer.tasks.seeds import SeedsProgram, seed_mesh
from pe_jax.trainer.tasks.train import train
from pe_jax.trainer.training.loop import Stage
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import (
    Batch,
    HostBatch,
    Params,
    PyTree,
    Scalars,
    Sums,
)
from pe_jax.trainer.training.step import Task, cache_by_arguments, make_task
from pe_jax.trainer.training.workdir import ResolvedConfig
from research.json_files import read_series
from research.length_generalisation.config import LengthGeneralisationConfig
from research.length_generalisation.rows import row_length, rows
from research.length_generalisation.tasks import AlgorithmicTask

_TEST_SEED = 20_230_526  # Test examples are the same for every encoding and seed.


@dataclasses.dataclass(frozen=True)
class Cell:
    """Scores of the seeds of an encoding on a task.

    Attributes:
      losses: training loss in the last tenth of the steps, nats a symbol, `[S]`.
      accuracy: by length of the inputs, the share of symbols asked for that are right, `[S]`.
      exact: by length, the share of examples whose whole answer is right, `[S]`.
      seconds: training and evaluation took, compilation included.
    """

    losses: list[float]
    accuracy: dict[int, list[float]]
    exact: dict[int, list[float]]
    seconds: float


class BertForSymbols(BertModule):
    """A symbol of the vocabulary for every token."""

    def setup(self):
        self.bert = Bert(self.config)
        self.symbols = self.dense(self.config.vocab_size, "symbols")

    def __call__(
        self,
        tokens: Int[Array, "B L"],
        mask: Bool[Array, "B L"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B L V"]:
        hidden = self.bert(tokens, None, mask, deterministic=deterministic)
        return self.symbols(hidden).astype(jnp.float32)


@cache_by_arguments
def symbols_task(config: BertConfig) -> Task:
    """Training on the mean loss of all symbols asked for."""

    def counts(batch: Batch) -> Sums:
        count = batch["asked"].sum().astype(jnp.float32)
        return {"loss": count, "accuracy": count}

    def sums(logits: jax.Array, batch: Batch) -> Sums:
        loss, right = cross_entropy(logits, batch["targets"])
        answer_mask = batch["asked"]
        return {
            "loss": jnp.where(answer_mask, loss, 0).sum(),
            "accuracy": jnp.where(answer_mask, right, 0).sum(),
        }

    inputs = {"tokens": jnp.int32, "mask": jnp.bool_}
    return make_task(BertForSymbols(config), inputs, counts, sums)


@cache_by_arguments
def _make_answers(config: BertConfig) -> Callable[[Params, Batch], Sums]:
    """Return `(params, batch) -> {name: [B]}` of each example: how many symbols are right, and
    `exact`, 1 if all that are asked for are."""
    task = symbols_task(config)

    def answers(params: Params, batch: Batch) -> Sums:
        _, right = cross_entropy(task.outputs(params, batch), batch["targets"])
        answer_mask = batch["asked"]
        return {
            "right": jnp.where(answer_mask, right, 0).sum(-1),
            "exact": jnp.where(answer_mask, right, 1).min(-1),
        }

    return answers


class _CompleteConfig(ResolvedConfig[LengthGeneralisationConfig]):
    """A config that leaves nothing of its model open: config.json has it as it is."""

    def as_dict(self, *, defaults: bool = True) -> Json:
        return as_dict(self.config, defaults=defaults)


def run(
    task: AlgorithmicTask,
    model: BertConfig,
    config: LengthGeneralisationConfig,
    folder: Path,
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
        model,
        symbols_task(model),
        optimizer,
        schedule,
        seed_mesh(len(config.seeds)),
        config.seeds,
    )
    answers = program.outputs(_make_answers(model))

    def evaluate(step: int, params: Params) -> Scalars:
        del step
        by_seed: dict[str, np.ndarray] = {}
        for length in config.test_lengths:
            by_seed |= _score(functools.partial(answers, params), task, length, config)
        return {
            f"{name}/{i}": value
            for name, values in by_seed.items()
            for i, value in enumerate(values.tolist())
        }

    stage = Stage(
        name=f"{position} on {config.tasks}",
        steps=steps,
        batches=functools.partial(_training_batches, task, config),
        train_step=program.train_step(),
        evaluate=evaluate,
        flops=functools.partial(train_flops, model, predictions=0),
    )
    # The last line of the log covers the last tenth of the steps, also where a run was stopped.
    saved_config = changed(config, {"vector": "", "position": position})
    run = Run(
        resolved=_CompleteConfig(saved_config, model),
        program=program,
        stages=[stage],
        every=(steps - max(1, steps // 10), 0, 0),
    )
    train(run, folder)
    way_out = f"Delete {folder}, and the same command trains that model again."

    def by_seed(name: str) -> list[float]:
        series = (
            read_series(folder, f"{name}/{i}", way_out)
            for i in range(len(config.seeds))
        )
        return [[*by_step.values()][-1] for by_step in series]

    lengths = sorted(config.test_lengths)
    return Cell(
        losses=by_seed("train/loss"),
        accuracy={length: by_seed(f"held_out/accuracy/{length}") for length in lengths},
        exact={length: by_seed(f"held_out/exact/{length}") for length in lengths},
        seconds=time.perf_counter() - begin,
    )


def _training_batches(
    task: AlgorithmicTask, config: LengthGeneralisationConfig, begin: int
) -> grain.IterDataset:
    """Batches `[S, B, T]` from number `begin` on; the nth of a seed depends on these two alone."""
    size = row_length(task, config.length)

    def draw(seed: int, step: int) -> HostBatch:
        rng = np.random.default_rng((seed, step))
        lengths = rng.integers(1, config.length + 1, config.batch_size)
        return rows(task, rng, lengths, size)

    def make_batch(step: int) -> HostBatch:
        by_seed = [draw(seed, step) for seed in config.seeds]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *by_seed)

    batches = grain.MapDataset.range(begin, config.steps).map(make_batch)
    return batches.to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    )


def _score(
    answers: Callable[[HostBatch], PyTree],
    task: AlgorithmicTask,
    length: int,
    config: LengthGeneralisationConfig,
) -> dict[str, np.ndarray]:
    """Return the scores of each seed on inputs of one length."""
    rng = np.random.default_rng((_TEST_SEED, length))
    lengths, size = np.full(config.test_batch_size, length), row_length(task, length)
    right, exact, symbols = np.zeros(len(config.seeds)), np.zeros(len(config.seeds)), 0
    for _ in range(config.test_examples // config.test_batch_size):
        batch = rows(task, rng, lengths, size)
        symbols += batch["asked"].sum()
        scored = jax.device_get(answers(batch))
        right, exact = right + scored["right"].sum(1), exact + scored["exact"].sum(1)
    return {
        f"accuracy/{length}": right / symbols,
        f"exact/{length}": exact / config.test_examples,
    }
