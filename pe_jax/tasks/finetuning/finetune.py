"""Fine-tuning of several seeds as one program, from a config to a trained run.

The seeds share the pretrained encoder. Each draws its own head, its own order of the data and its
own dropout masks, exactly as it would alone.

Shapes: S seeds, N held-out rows, B rows of a batch, L length.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
from grain.sharding import ShardOptions
from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pe_jax.console.terminal import Progress, say, tell
from pe_jax.data.rows import EvaluationBatch, TrainingBatches, evaluation_batches, training_batches
from pe_jax.data.tokenizer import load_tokenizer
from pe_jax.files import write_text
from pe_jax.models import BertConfig, frequencies, train_flops
from pe_jax.tasks.finetuning.finetuning_config import PROBLEMS, resolve
from pe_jax.tasks.finetuning.problem import Problem
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.run import Training, introduce, saved_tokenizer, train
from pe_jax.tasks.start import open_start
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding, workdir
from pe_jax.training.loop import Cadence, Stage
from pe_jax.training.pytrees import Batch, Params, PyTree, Scalars
from pe_jax.training.step import (
    TrainState,
    TrainStep,
    init_seeds,
    make_train_step,
)
from pe_jax.training.transplant import Changes, transplant

_SECONDS_A_LINE = 10.0  # For a long evaluation, such as SQuAD's on a CPU.


@dataclasses.dataclass(frozen=True)
class FinetuningExperiment:
    """Everything that a fine-tuning config stands for, ready to run.

    Attributes:
      config: with the model's sizes filled in, see `resolve`.
      folder: where predictions are written.
      shardings: of the state of all seeds.
      outputs: `outputs(params, batch)` of all seeds: leaves `[S, B, ...]`.
    """

    config: ConfigDict
    folder: Path
    model: BertConfig
    tokenizer: Tokenizer
    problem: Problem
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: jax.sharding.Mesh
    shardings: TrainState
    batches: TrainingBatches
    train_step: TrainStep
    outputs: Callable[[Params, Batch], PyTree]
    held_out: dict[str, list[EvaluationBatch]]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.config.seeds)

    @property
    def stage(self) -> Stage:
        """The one stage of the training loop."""
        return Stage(
            name=self.config.task,
            steps=len(self.batches),
            batches=training_batches(self.batches),
            train_step=self.train_step,
            evaluate=self.score,
            flops=functools.partial(train_flops, self.model, predictions=0),
        )

    def shardings_of(self, tree: PyTree) -> PyTree:
        """The sharding of each leaf of the parameters of all seeds."""
        return jax.tree.map(lambda _: sharding.by_seeds(self.mesh), tree)

    def init(self) -> TrainState:
        """The state of all seeds before the first step, nothing taken from another run."""
        return init_seeds(self.problem.task, self.optimizer, self.seeds, self.shardings)

    def score(self, step: int, params: Params) -> Scalars:
        """Scores of all seeds on held-out data; predictions go to `predictions/` of the folder.

        Returns:
          The mean of each score over the seeds by its name, and under `name/seed_0` and so on the
          score of each seed.
        """
        scored = []
        for seed, outputs in zip(self.seeds, _by_seed(self.held_out_outputs(params))):
            one = self.problem.score(outputs)
            scored.append(one.scores)
            for name, kept in one.predictions.items():
                path = self.folder / "predictions" / f"step_{step}" / f"seed_{seed}_{name}.json"
                write_text(path, json.dumps(kept))
        means = {name: float(np.mean([one[name] for one in scored])) for name in scored[0]}
        details = {
            f"{name}/seed_{seed}": value
            for seed, one in zip(self.seeds, scored)
            for name, value in one.items()
        }
        return {**means, **details}

    def held_out_outputs(self, params: Params) -> dict[str, PyTree]:
        """The head's outputs for every held-out row, by held-out set: leaves `[S, N, ...]`."""
        count = sum(map(len, self.held_out.values()))
        progress = Progress(count, unit="held-out batch", lines=_SECONDS_A_LINE)
        collect = functools.partial(self._collect, params, progress)
        outputs = {name: collect(batches) for name, batches in self.held_out.items()}
        progress.close()
        return outputs

    def _collect(
        self, params: Params, progress: Progress, batches: list[EvaluationBatch]
    ) -> PyTree:
        rows = sum(len(one.numbers) for one in batches)
        whole: PyTree = None
        for one in batches:
            found = self.outputs(params, sharding.split_rows(one.batch, self.mesh))
            found = jax.tree.map(self._padded, jax.device_get(found))
            if whole is None:
                shape = lambda x: np.empty((x.shape[0], rows, x.shape[2]), x.dtype)
                whole = jax.tree.map(shape, found)
            for into, some in zip(jax.tree.leaves(whole), jax.tree.leaves(found)):
                into[:, one.numbers] = some[:, : len(one.numbers)]
            progress.advance()
        return whole

    def _padded(self, x: np.ndarray) -> np.ndarray:
        """Outputs `[S, B, L]` of a short batch, padded to the length of the longest."""
        more = self.config.data.length - x.shape[2] if self.problem.per_token else 0
        return np.pad(x, [(0, 0), (0, 0), (0, more)], constant_values=np.finfo(x.dtype).min)


def _by_seed(outputs: PyTree) -> list[PyTree]:
    """A tree of `[S, N, ...]` as S trees of `[N, ...]`."""
    leaves, tree = jax.tree.flatten(outputs)
    return [jax.tree.unflatten(tree, each) for each in zip(*leaves)]


def build(config: ConfigDict, folder: Path, tokenizer: Path | None = None) -> FinetuningExperiment:
    """Everything that a resolved `config` stands for; reads the data, trains nothing.

    Args:
      folder: of the run.
      tokenizer: the run's own, where it has one already; default the pretrained model's.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    data = config.data
    mesh = sharding.seed_mesh(len(config.seeds))
    sharding.check_rows(data.batch_size, mesh, config.accumulation)
    sharding.check_rows(data.eval_batch_size, mesh)
    text = load_tokenizer(tokenizer or open_start(config.init).tokenizer())
    model = model_config(config, vocab_size=text.get_vocab_size())
    problem = PROBLEMS[config.task](config, model, text)
    for note in problem.notes:
        say(note)
    lengths = (*(size for size in data.buckets if size < data.length), data.length)
    batches = _training_batches(config, problem, lengths)
    schedule, optimizer = optimizers.from_config(
        config.optimizer, len(batches), functools.partial(frequencies, model)
    )
    shardings = sharding.of_seeds(mesh)
    step = make_train_step(problem.task, optimizer, accumulation=config.accumulation)
    return FinetuningExperiment(
        config=config,
        folder=folder,
        model=model,
        tokenizer=text,
        problem=problem,
        optimizer=optimizer,
        schedule=schedule,
        mesh=mesh,
        shardings=shardings,
        batches=batches,
        train_step=sharding.parallelize_seeds(step, mesh, shardings),
        outputs=sharding.parallelize_outputs(problem.outputs, mesh),
        held_out={
            name: evaluation_batches(rows, lengths, data.eval_batch_size)
            for name, rows in problem.held_out.items()
        },
    )


def _training_batches(
    config: ConfigDict, problem: Problem, lengths: tuple[int, ...]
) -> TrainingBatches:
    rows, seeds = config.data.batch_size, tuple(config.seeds)
    per_epoch = len(problem.train.sizes()) // rows
    steps = config.steps or max(1, round(config.epochs * per_epoch))
    shard = ShardOptions(*sharding.host())
    return TrainingBatches(problem.train, lengths, rows, seeds, steps, shard)


def start_from(experiment: FinetuningExperiment, fresh: TrainState) -> tuple[TrainState, Changes]:
    """`fresh` with everything that fits taken from the model at `config.init`.

    Raises:
      ValueError: if it has no parameters yet, or its encoder does not fit.
    """
    start = open_start(experiment.config.init)
    old = start.params(
        lambda tree: jax.tree.map(lambda _: sharding.replicated(experiment.mesh), tree)
    )
    if experiment.config.resize and "position" in old["bert"]:
        to = experiment.model.max_length, experiment.config.resize
        position = start.model.encoding().resize(old["bert"]["position"], *to)
        old = {**old, "bert": {**old["bert"], "position": position}}
    merge = functools.partial(transplant, heads=False)
    one = jax.eval_shape(experiment.problem.task.init, jax.random.key(0))
    _, changes = merge(one, old)
    each = jax.vmap(lambda params, old: merge(params, old)[0], in_axes=(0, None))
    params = jax.jit(each, out_shardings=sharding.by_seeds(experiment.mesh))(fresh.params, old)
    return fresh._replace(params=params), changes


def run(config: ConfigDict, folder: Path) -> FinetuningExperiment:
    """Fine-tunes what `config` describes, or resumes the run in `folder`; returns the experiment.

    Writes, next to what every run writes, `predictions/` (see `FinetuningExperiment.score`).

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    config = resolve(config)
    workdir.check(folder, config)
    saved = saved_tokenizer(folder)
    introduce(folder, config.init)
    tell("Data", f"{config.task}; prepared once, then read from the cache")
    experiment = build(config, folder, saved if saved.exists() else None)
    rows, seeds = config.data.batch_size, len(config.seeds)
    tell("Batch", f"{rows:,} rows of each of {seeds} seeds; {experiment.stage.steps:,} steps")

    def start(fresh: TrainState) -> TrainState:
        state, changes = start_from(experiment, fresh)
        say(f"Parameters from {config.init}:\n{changes}")
        return state

    training = Training(
        config,
        [experiment.stage],
        fresh=experiment.init(),
        start=start,
        schedule=experiment.schedule,
        placed=sharding.by_seeds_and_rows(experiment.mesh),
        tokenizer=experiment.tokenizer,
        cadence=_cadence(config, experiment.stage.steps),
    )
    train(training, folder)
    return experiment


def _cadence(config: ConfigDict, steps: int) -> Cadence:
    """By default a kill costs a tenth of the run at most."""
    return Cadence(config.log_every, config.eval_every, config.checkpoint_every or -(-steps // 10))
