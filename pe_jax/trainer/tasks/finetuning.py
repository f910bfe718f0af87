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
from pe_jax.trainer.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.trainer.console.terminal import Progress, log, log_field
from pe_jax.trainer.data.rows import (
    TrainingBatches,
    evaluation_batches,
    training_batches,
)
from pe_jax.trainer.tasks.finetuning_task import FinetuningTask, score_name
from pe_jax.trainer.tasks.glue import glue_problem
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource, start_model
from pe_jax.trainer.tasks.run import Run
from pe_jax.trainer.tasks.seeds import SeedsProgram, seed_mesh
from pe_jax.trainer.tasks.squad import squad_problem
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
    problem: FinetuningTask
    outputs: Callable[
        [Params, HostBatch], PyTree
    ]  # Of all seeds: leaves `[S, B, ...]`.
    # Batches by held-out set, each with the numbers of its rows.
    held_out: dict[str, list[tuple[HostBatch, np.ndarray]]]
    length: int  # Of the longest inputs.

    def score(self, step: int, params: Params) -> Scalars:
        """Write predictions to `predictions/` of the folder; return the mean of each score over the
        seeds by its name, and under `name/seed_0` and so on the score of each seed."""
        by_seed: dict[str, list[float]] = collections.defaultdict(list)
        folder = self.folder / "predictions" / f"step_{step}"
        for held_out, outputs in self.held_out_outputs(params).items():
            leaves, tree = jax.tree.flatten(outputs)
            for seed, seed_leaves in zip(self.seeds, zip(*leaves)):
                seed_outputs = jax.tree.unflatten(tree, seed_leaves)
                scores, predictions = self.problem.score(held_out, seed_outputs)
                for metric, value in scores.items():
                    by_seed[score_name(metric, held_out)].append(value)
                for name, values in predictions.items():
                    write_text(folder / f"seed_{seed}_{name}.json", json.dumps(values))
        scalars = {name: float(np.mean(values)) for name, values in by_seed.items()}
        for name, values in by_seed.items():
            scalars |= {f"{name}/seed_{seed}": x for seed, x in zip(self.seeds, values)}
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
            return jax.tree.map(
                lambda *xs: np.concatenate(xs, axis=1)[:, order], *parts
            )

        outputs = {name: collect(batches) for name, batches in self.held_out.items()}
        progress.close()
        return outputs

    def _cut_and_pad(self, x: np.ndarray, count: int) -> np.ndarray:
        """Return outputs `[S, count, L]` of a short batch `[S, B, ...]`, padded to `length`."""
        more = self.length - x.shape[2] if self.problem.per_token else 0
        padding = [(0, 0), (0, 0), (0, more)]
        return np.pad(x[:, :count], padding, constant_values=np.finfo(x.dtype).min)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRun(Run[FinetuningConfig]):
    """A run that fine-tunes several seeds."""

    program: SeedsProgram
    problem: FinetuningTask
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
        problem = squad_problem(config, model, words)
    else:
        problem = glue_problem(config, model, words)
    for note in problem.notes:
        log(note)
    lengths = (*(size for size in data.buckets if size < data.length), data.length)
    rows = data.batch_size
    steps = config.steps or max(
        1, round(config.epochs * (len(problem.train.sizes()) // rows))
    )
    hosts = jax.process_index(), jax.process_count()
    batches = TrainingBatches(problem.train, lengths, rows, config.seeds, steps, *hosts)
    program = make_program(config, mesh, model, problem.task, steps)
    held_out = {
        name: evaluation_batches(rows, lengths, data.eval_batch_size)
        for name, rows in problem.held_out.items()
    }
    outputs = program.outputs(problem.task.outputs)
    scorer = Scorer(folder, config.seeds, problem, outputs, held_out, data.length)
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
    return FinetuningRun(
        resolved=resolved,
        program=program,
        stages=[stage],
        summary=[
            (
                "Batch",
                f"{rows:,} rows of each of {len(config.seeds)} seeds; {steps:,} steps",
            )
        ],
        digests={
            f"{config.task}, {name} data": each.digest()
            for name, each in {"training": problem.train, **problem.held_out}.items()
        },
        every=(config.log_every, config.eval_every, checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        start=lambda fresh: start_from(config, program, fresh)[0],
        tokenizer=words,
        problem=problem,
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
    and log it; ValueError if the model has no parameters yet, or its encoder does not fit."""
    replicated = sharding.replicated(program.mesh)
    old = PretrainedSource(config.init).params(
        lambda tree: jax.tree.map(lambda _: replicated, tree),
        program.model.max_length,
        config.resize,
    )
    merge = functools.partial(transplant, heads=False)
    _, changes = merge(jax.eval_shape(program.task.init, jax.random.key(0)), old)
    log(f"Parameters from {config.init}:\n{changes}")
    merge_seeds = jax.vmap(lambda params, old: merge(params, old)[0], in_axes=(0, None))
    return jax.jit(merge_seeds, out_shardings=program.shardings.params)(
        fresh, old
    ), changes


def run(
    config: FinetuningConfig, folder: Path, profile: range = range(0)
) -> FinetuningRun:
    """Fine-tune `config`, or resume; see `pretraining.run`. Adds `predictions/`, see `Scorer`."""
    resolved = resolve(config, folder)
    tokenizer = log_run_header(folder, resolved)
    log_field("Data", f"{config.task}, read and tokenized now")
    run = build(resolved, folder, tokenizer)
    train(run, folder, profile)
    return run
