"""Fine-tuning of several seeds as one program, from a config to a trained run.

The seeds share the pretrained encoder. Each draws its own head, its own order of the data and its
own dropout masks, exactly as it would alone.

Shapes: S seeds, N held-out rows, B rows of a batch, L length.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from pe_jax.common.files import write_text
from pe_jax.interop.tokenizer import load_tokenizer
from pe_jax.models import BertConfig
from pe_jax.models.flops import train_flops
from pe_jax.trainer.configs.finetuning import (
    ClassificationConfig,
    FinetuningConfig,
    SquadConfig,
    TaggingConfig,
)
from pe_jax.trainer.console.terminal import Progress, counted, log, log_field
from pe_jax.trainer.data.rows import (
    TrainingBatches,
    evaluation_batches,
    training_batches,
)
from pe_jax.trainer.tasks.classification import load_classification_task
from pe_jax.trainer.tasks.finetuning_task import (
    FinetuningTask,
    labels_file,
    prediction_path,
    score_name,
)
from pe_jax.trainer.tasks.glue import load_glue_task
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource, start_model
from pe_jax.trainer.tasks.run import Run
from pe_jax.trainer.tasks.seeds import SeedsProgram, seed_mesh
from pe_jax.trainer.tasks.squad import load_squad_task
from pe_jax.trainer.tasks.tagging import load_tagging_task
from pe_jax.trainer.tasks.train import log_run_header, train
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.loop import Stage
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import HostBatch, Params, PyTree, Scalars
from pe_jax.trainer.training.step import Task
from pe_jax.trainer.training.transplant import Changes, transplant
from pe_jax.trainer.training.workdir import ResolvedConfig

_SECONDS_A_LINE = 10.0  # For a long evaluation, such as SQuAD's on a CPU.


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores of all seeds on held-out data."""

    folder: Path  # Of the run, where predictions are written.
    seeds: tuple[int, ...]
    task: FinetuningTask
    # Of all seeds: leaves `[S, B, ...]`.
    outputs: Callable[[Params, HostBatch], PyTree]
    # Batches by held-out set, each with the numbers of its rows.
    held_out: dict[str, list[tuple[HostBatch, np.ndarray]]]
    length: int  # Of the longest inputs.

    def score(self, step: int, params: Params) -> Scalars:
        """Write predictions to `predictions/` of the folder; return the mean of each score over the
        seeds by its name, and under `name/seed_0` and so on the score of each seed."""
        by_seed: dict[str, list[float]] = collections.defaultdict(list)
        for held_out, outputs in self.held_out_outputs(params).items():
            leaves, tree = jax.tree.flatten(outputs)
            for number, seed in enumerate(self.seeds):
                seed_leaves = [leaf[number] for leaf in leaves]
                seed_outputs = jax.tree.unflatten(tree, seed_leaves)
                scores, predictions = self.task.score(held_out, seed_outputs)
                for metric, value in scores.items():
                    by_seed[score_name(metric, held_out)].append(value)
                for name, text in predictions.items():
                    write_text(prediction_path(self.folder, step, seed, name), text)
        scalars = {name: float(np.mean(values)) for name, values in by_seed.items()}
        for name, values in by_seed.items():
            for seed, value in zip(self.seeds, values, strict=True):
                scalars[f"{name}/seed_{seed}"] = value
        return scalars

    def held_out_outputs(self, params: Params) -> dict[str, PyTree]:
        """Return the head's outputs for every held-out row, by set: leaves `[S, N, ...]`."""
        count = sum(map(len, self.held_out.values()))
        progress = Progress(count, unit="held-out batch", lines=_SECONDS_A_LINE)

        def collect(batches: list[tuple[HostBatch, np.ndarray]]) -> PyTree:
            parts = []
            for batch, numbers in batches:
                outputs = jax.device_get(self.outputs(params, batch))
                cut = functools.partial(self._cut_and_pad, count=len(numbers))
                parts.append(jax.tree.map(cut, outputs))
                progress.advance()
            order = np.argsort(np.concatenate([numbers for _, numbers in batches]))
            joined = jax.tree.map(lambda *xs: np.concatenate(xs, axis=1), *parts)
            return jax.tree.map(lambda x: x[:, order], joined)

        outputs = {name: collect(batches) for name, batches in self.held_out.items()}
        progress.close()
        return outputs

    def _cut_and_pad(self, x: np.ndarray, count: int) -> np.ndarray:
        """Return outputs `[S, count, L]` of a short batch `[S, B, ...]`, padded to `length`."""
        more = self.length - x.shape[2] if self.task.per_token else 0
        padding = [(0, 0), (0, 0), (0, more)]
        is_integer = np.issubdtype(x.dtype, np.integer)
        limits = np.iinfo(x.dtype) if is_integer else np.finfo(x.dtype)
        return np.pad(x[:, :count], padding, constant_values=limits.min)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRun(Run[FinetuningConfig]):
    """A run that fine-tunes several seeds."""

    program: SeedsProgram
    task: FinetuningTask
    batches: TrainingBatches
    scorer: Scorer


def resolve(
    config: FinetuningConfig, folder: Path | None = None
) -> ResolvedConfig[FinetuningConfig]:
    """Fill in the model of `config` from the pretrained one, see `start_model`, and `fit_length`.

    Raises:
      ValueError: for an invalid value, or without a pretrained model.
    """
    model = config.model.resolve(start_model(config, folder))
    if model.implementation == "cudnn":
        raise ValueError(
            "config.model.implementation='cudnn' is not supported in fine-tuning: jax 0.11.2 "
            "cannot vmap it over seeds. Pass --config.model.implementation=auto, which also "
            "overrides the pretrained model's setting."
        )
    return ResolvedConfig(config, fit_length(model, config))


def fit_length(
    model: BertConfig, config: FinetuningConfig, key: str = "config.data.length"
) -> BertConfig:
    """Return a model that is as long as the inputs of `config`; `key` sets their length.

    Raises:
      ValueError: for inputs longer than a learned table of positions, if `config.resize` is empty.
    """
    length, rows = config.data.length, model.max_length
    if length <= rows:
        return model
    if model.encoding().max_length is not None and not config.resize:
        raise ValueError(
            f"Inputs of {length} tokens do not fit a learned table of {rows} positions. Set "
            "--config.resize=interpolate or repeat (pe_jax.encodings.resize_table), shorten "
            f"inputs (--{key}), or start from a sinusoidal or relative encoding, which has no "
            "maximum length."
        )
    return dataclasses.replace(model, max_length=length)


def build(
    resolved: ResolvedConfig[FinetuningConfig],
    folder: Path,
    tokenizer: Path | None = None,
) -> FinetuningRun:
    """Build the programs and read the data of a config; train nothing.

    Args:
      folder: where predictions are written, see `Scorer`.
      tokenizer: the run's own, where it has one already; default the pretrained model's.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    config, data = resolved.config, resolved.config.data
    mesh = seed_mesh(len(config.seeds))
    sharding.check_rows(
        "config.data.batch_size", data.batch_size, mesh, config.accumulation
    )
    sharding.check_rows("config.data.eval_batch_size", data.eval_batch_size, mesh)
    words = load_tokenizer(tokenizer or PretrainedSource(config.init).tokenizer())
    model = dataclasses.replace(resolved.model, vocab_size=words.get_vocab_size())
    if isinstance(config, SquadConfig):
        task = load_squad_task(config, model, words)
    elif isinstance(config, ClassificationConfig):
        task = load_classification_task(config, model, words)
    elif isinstance(config, TaggingConfig):
        task = load_tagging_task(config, model, words)
    else:
        task = load_glue_task(config, model, words)
    for note in task.notes:
        log(note)
    lengths = [size for size in data.buckets if size < data.length]
    lengths.append(data.length)
    steps_an_epoch = len(task.train.sizes()) // data.batch_size
    steps = config.steps or max(1, round(config.epochs * steps_an_epoch))
    batches = TrainingBatches(
        task.train,
        lengths,
        batch_size=data.batch_size,
        seeds=config.seeds,
        steps=steps,
        host=jax.process_index(),
        hosts=jax.process_count(),
    )
    program = make_program(config, mesh, model, task.objective, steps)
    held_out = {
        name: evaluation_batches(rows, lengths, data.eval_batch_size)
        for name, rows in task.held_out.items()
    }
    scorer = Scorer(
        folder=folder,
        seeds=config.seeds,
        task=task,
        outputs=program.outputs(task.objective.outputs),
        held_out=held_out,
        length=data.length,
    )
    stage = Stage(
        name=config.task,
        steps=steps,
        batches=functools.partial(training_batches, batches),
        train_step=program.train_step(config.accumulation),
        evaluate=scorer.score,
        flops=functools.partial(train_flops, model, predictions=0),
    )
    # By default a kill costs a tenth of the run at most.
    checkpoint_every = config.checkpoint_every or -(-steps // 10)
    batch = (
        f"{counted(data.batch_size, 'row')} for each of "
        f"{counted(len(config.seeds), 'seed')}"
    )
    checksums = {f"{config.task}, training data": task.train.checksum()}
    for name, rows in task.held_out.items():
        checksums[f"{config.task}, {name} data"] = rows.checksum()
    return FinetuningRun(
        resolved=resolved,
        program=program,
        stages=[stage],
        summary=[("Batch", f"{batch}; {steps:,} steps")],
        checksums=checksums,
        every=(config.log_every, config.eval_every, checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        start=lambda fresh: start_from(config, program, fresh)[0],
        tokenizer=words,
        task=task,
        batches=batches,
        scorer=scorer,
    )


def make_program(
    config: FinetuningConfig,
    mesh: jax.sharding.Mesh,
    model: BertConfig,
    task: Task,
    steps: int,
) -> SeedsProgram:
    """Return what `config` runs on the devices of a `seed_mesh` in `steps` steps, without data."""
    schedule, optimizer = make_optimizer(config.optimizer, steps, model)
    return SeedsProgram(model, task, optimizer, schedule, mesh, config.seeds)


def start_from(
    config: FinetuningConfig, program: SeedsProgram, fresh: Params
) -> tuple[Params, Changes]:
    """Return `fresh` parameters with everything that fits taken from the model at `config.init`,
    and what was taken, which is also printed.

    Raises:
      ValueError: if the model has no parameters yet, or its encoder does not fit.
    """
    replicated = sharding.replicated(program.mesh)
    old = PretrainedSource(config.init).params(
        lambda tree: jax.tree.map(lambda _: replicated, tree),
        program.model.max_length,
        config.resize,
    )
    shapes = jax.eval_shape(program.task.init, jax.random.key(0))
    _, changes = transplant(shapes, old, heads=False)
    log(f"Parameters from {config.init}:\n{changes}")

    def merge(params: Params, old: Params) -> Params:
        merged, _ = transplant(params, old, heads=False)
        return merged

    merge_seeds = jax.vmap(merge, in_axes=(0, None))
    merge_seeds = jax.jit(merge_seeds, out_shardings=program.shardings.params)
    return merge_seeds(fresh, old), changes


def run(
    config: FinetuningConfig, folder: Path, profile: range = range(0)
) -> FinetuningRun:
    """Fine-tune `config`, or resume; see `pretraining.run`. Adds `predictions/`, see `Scorer`."""
    resolved = resolve(config, folder)
    tokenizer = log_run_header(folder, resolved)
    log_field("Data", f"{config.task}, read and tokenized now")
    run = build(resolved, folder, tokenizer)
    if run.task.labels:
        labels = {"labels": run.task.labels}
        write_text(labels_file(folder), json.dumps(labels, indent=2) + "\n")
    train(run, folder, profile)
    return run
