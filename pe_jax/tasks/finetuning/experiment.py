"""Fine-tuning of several seeds as one program, from a config to a finished run.

The seeds share the pretrained encoder. Each draws its own head, its own order of the data and its
own dropout, exactly as it would alone.

Shapes: S seeds, N held-out rows, B rows of a batch, L length.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from grain.sharding import ShardOptions
from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pe_jax.data.glue_tasks import GLUE
from pe_jax.data.rows import EvaluationBatch, TrainingBatches, evaluation_batches, training_batches
from pe_jax.data.tokenizer import load_tokenizer
from pe_jax.models import BertConfig, train_flops
from pe_jax.tasks.finetuning.problem import Problem
from pe_jax.tasks.model import model_config
from pe_jax.tasks.start import open_start
from pe_jax.terminal import Progress, say
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding
from pe_jax.training.loop import Stage
from pe_jax.training.step import SEED_AXES, TrainState, init_state, make_train_step, over_seeds
from pe_jax.training.transplant import Changes, resize_positions, transplant
from pe_jax.training.writers import write_text

# config.task -> where its problem is made: `problem(config, model, tokenizer)`.
_PROBLEMS = {
    **dict.fromkeys(GLUE, ("classification", "glue_problem")),
    "squad": ("spans", "squad_problem"),
}
TASKS = tuple(_PROBLEMS)

_SECONDS_A_LINE = 10.0  # Of an evaluation that takes long, as SQuAD's does on a CPU.


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a fine-tuning config stands for, ready to run.

    Attributes:
      config: with the model's sizes filled in, see `resolve`.
      folder: where predictions are written.
      shardings: of the state of all seeds.
    """

    config: ConfigDict
    folder: Path
    model: BertConfig
    tokenizer: Tokenizer
    problem: Problem
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: jax.sharding.Mesh
    shardings: Any
    batches: TrainingBatches
    train_step: Callable[[TrainState, Any], Any]
    outputs: Callable[[Any, Any], Any]
    held_out: dict[str, list[EvaluationBatch]]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.config.seeds)

    @property
    def stage(self) -> Stage:
        """What the loop needs of it."""
        return Stage(
            name=self.config.task,
            steps=len(self.batches),
            batches=training_batches(self.batches),
            train_step=self.train_step,
            evaluate=self.score,
            flops=functools.partial(train_flops, self.model, predictions=0),
        )

    def place(self, tree: Any) -> Any:
        """Where parameters of all seeds lie: the sharding of each leaf."""
        return jax.tree.map(lambda _: sharding.by_seeds(self.mesh), tree)

    def fresh(self) -> TrainState:
        """The state of all seeds before the first step, nothing taken from another run."""
        make = functools.partial(init_state, self.problem.task, self.optimizer)
        placed = jax.jit(jax.vmap(make, out_axes=SEED_AXES), out_shardings=self.shardings)
        return placed(jax.vmap(jax.random.key)(np.array(self.seeds)))

    def score(self, step: int, params: Any) -> dict[str, float]:
        """Scores of all seeds on held-out data; predictions go to `predictions/` of the folder.

        Returns:
          The mean of each score over the seeds by its name, and under `name/seed_0` and so on the
          score of each.
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

    def held_out_outputs(self, params: Any) -> dict[str, Any]:
        """What the heads say of every held-out row, by held-out set: leaves `[S, N, ...]`."""
        count = sum(map(len, self.held_out.values()))
        progress = Progress(count, unit="held-out batches", lines=_SECONDS_A_LINE)
        collect = functools.partial(self._collect, params, progress)
        outputs = {name: collect(batches) for name, batches in self.held_out.items()}
        progress.close()
        return outputs

    def _collect(self, params: Any, progress: Progress, batches: list[EvaluationBatch]) -> Any:
        rows = sum(len(one.numbers) for one in batches)
        whole: Any = None
        for one in batches:
            found = self.outputs(params, sharding.split_rows(one.batch, self.mesh))
            found = jax.tree.map(self._filled, jax.device_get(found))
            if whole is None:
                shape = lambda x: np.empty((x.shape[0], rows, x.shape[2]), x.dtype)
                whole = jax.tree.map(shape, found)
            for into, some in zip(jax.tree.leaves(whole), jax.tree.leaves(found)):
                into[:, one.numbers] = some[:, : len(one.numbers)]
            progress.advance()
        return whole

    def _filled(self, x: np.ndarray) -> np.ndarray:
        """Outputs `[S, B, L]` of a short batch as long as those of the longest."""
        more = self.config.data.length - x.shape[2] if self.problem.per_token else 0
        return np.pad(x, [(0, 0), (0, 0), (0, more)], constant_values=np.finfo(x.dtype).min)


def _by_seed(outputs: Any) -> list[Any]:
    """A tree of `[S, N, ...]` as S trees of `[N, ...]`."""
    leaves, tree = jax.tree.flatten(outputs)
    return [jax.tree.unflatten(tree, each) for each in zip(*leaves)]


def resolve(config: ConfigDict) -> ConfigDict:
    """`config` with its model filled in from the pretrained one that it starts from.

    What `config.model` gives replaces the latter's own. A learned table of positions that is
    shorter than the inputs is lengthened, if `config.resize` says how.

    Raises:
      ValueError: without a pretrained model, or where its table is too short.
    """
    if config.task not in TASKS:
        raise ValueError(f"Fine-tuning knows the tasks {', '.join(TASKS)}; got {config.task!r}.")
    if not config.init:
        raise ValueError(
            "Fine-tuning starts from a pretrained run: give its workdir, --config.init=RUN, or the "
            "folder of a published BERT."
        )
    if len(set(config.seeds)) < len(config.seeds) or not config.seeds:
        raise ValueError(f"config.seeds are different numbers, got {tuple(config.seeds)}.")
    start = open_start(config.init).config
    given = {key: value for key, value in config.model.to_dict().items() if value is not None}
    resolved = config.copy_and_resolve_references()
    resolved.model = ConfigDict({**start.model.to_dict(), **given})
    fit_length(resolved)
    return resolved


def fit_length(config: ConfigDict) -> None:
    """Makes the model of `config` as long as its inputs, if it may be.

    Raises:
      ValueError: for inputs longer than a learned table of positions, if `config.resize` is empty.
    """
    length, rows = config.data.length, config.model.max_length
    if length <= rows:
        return
    if "learned_absolute" in config.model.position.split("+") and not config.resize:
        raise ValueError(
            f"Inputs of {length} tokens do not fit a learned table of {rows} positions: give "
            "--config.resize=interpolate or repeat (pe_jax.encodings.resize_table), give shorter "
            "inputs (--config.data.length), or start from a sinusoidal or relative encoding, which "
            "have no length."
        )
    config.model.max_length = length


def build(config: ConfigDict, folder: Path, tokenizer: Path | None = None) -> Experiment:
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
    module, make = _PROBLEMS[config.task]
    # Only now, as scores of GLUE need a package that pretraining does not.
    problems = importlib.import_module(f"pe_jax.tasks.finetuning.{module}")
    problem: Problem = getattr(problems, make)(config, model, text)
    for note in problem.notes:
        say(note)

    lengths = (*(size for size in data.buckets if size < data.length), data.length)
    per_epoch = len(problem.train.sizes()) // data.batch_size
    steps = config.steps or max(1, round(config.epochs * per_epoch))
    batches = TrainingBatches(
        problem.train,
        lengths,
        data.batch_size,
        tuple(config.seeds),
        steps,
        ShardOptions(*sharding.host()),
    )
    schedule, optimizer = optimizers.from_config(config.optimizer, steps)
    each = sharding.by_seeds(mesh)
    shardings = TrainState(sharding.replicated(mesh), each, each, each)  # type: ignore[arg-type]
    step = over_seeds(make_train_step(problem.task, optimizer, accumulation=config.accumulation))
    held_out = {
        name: evaluation_batches(rows, lengths, data.eval_batch_size)
        for name, rows in problem.held_out.items()
    }
    return Experiment(
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
        held_out=held_out,
    )


def start_from(experiment: Experiment, fresh: TrainState) -> tuple[TrainState, Changes]:
    """`fresh` with everything that fits taken from the model at `config.init`.

    Raises:
      ValueError: if it has no parameters yet, or its encoder does not fit.
    """
    start = open_start(experiment.config.init)
    old_encoding = start.encoding
    old = start.params(
        lambda tree: jax.tree.map(lambda _: sharding.replicated(experiment.mesh), tree)
    )
    if experiment.config.resize and "position" in old["bert"]:
        position = resize_positions(
            old_encoding,
            old["bert"]["position"],
            experiment.model.max_length,
            experiment.config.resize,
        )
        old = {**old, "bert": {**old["bert"], "position": position}}
    encoding = experiment.model.encoding()
    merge = lambda params, old: transplant(params, encoding, old, old_encoding, heads=False)
    one = jax.eval_shape(experiment.problem.task.init, jax.random.key(0))
    _, changes = merge(one, old)
    each = jax.vmap(lambda params, old: merge(params, old)[0], in_axes=(0, None))
    params = jax.jit(each, out_shardings=sharding.by_seeds(experiment.mesh))(fresh.params, old)
    return fresh._replace(params=params), changes
