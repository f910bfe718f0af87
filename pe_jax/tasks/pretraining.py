"""Pretraining: masked language model and next sentence, from a config to a trained run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import jax.numpy as jnp

from pe_jax import data
from pe_jax.configs.pretraining import PretrainingConfig, PretrainingDataConfig, StageConfig
from pe_jax.console.terminal import say, tell
from pe_jax.models import BertConfig, BertForPretraining, train_flops
from pe_jax.models.config import from_config
from pe_jax.models.heads import PretrainingLogits
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.text_split import TextSplit, load_text
from pe_jax.tasks.train import Program, introduce, train
from pe_jax.training import sharding
from pe_jax.training.loop import Stage, evaluate
from pe_jax.training.optimizer import make_optimizer
from pe_jax.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.training.step import (
    Task,
    TrainState,
    make_eval_step,
    make_task,
    reused,
)

_HELD_OUT_SEED = 20_210_503  # Held-out pairs and masks are the same for every run and seed.


@dataclasses.dataclass(frozen=True)
class PretrainingExperiment:
    """A program and its data: everything that a config stands for, ready to run.

    Attributes:
      held_out: global batches of held-out text for each stage.
      epochs: how many each stage takes.
    """

    config: PretrainingConfig
    program: Program
    text: TextSplit
    stages: list[Stage]
    held_out: list[list[Batch]]
    epochs: list[float]


def run(
    config: PretrainingConfig, folder: Path, profile: range = range(0)
) -> PretrainingExperiment:
    """Train what `config` describes, or resume the run in `folder`; return the experiment.

    Args:
      profile: steps to trace, see `Profiler`.
    """
    config = resolve(config, folder)
    tokenizer = introduce(folder, config, config.init)
    _introduce_text(config.data)
    experiment = build(config, tokenizer)
    tell("Documents", experiment.text.summary())
    tell("Tokens", f"{experiment.text.vocabulary.size:,} in the vocabulary")
    for stage, keys, epochs in zip(
        experiment.stages, config.stages.values(), experiment.epochs, strict=True
    ):
        size = f"{stage.name}, {keys.batch_size:,} rows"
        tell("Batch", f"{size}; {stage.steps:,} steps, {epochs:.2g} epochs")

    def start(fresh: TrainState) -> TrainState:
        from pe_jax.tasks.start import transplant_start

        shardings_of = experiment.program.shardings_of
        params, changes = transplant_start(config, fresh.params, shardings_of)
        say(f"Parameters from {config.init}:\n{changes}")
        return fresh._replace(params=params)

    train(
        experiment.program,
        experiment.stages,
        folder,
        every=(config.log_every, config.eval_every, config.checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        keep_best=config.keep_best,
        start=start if config.init else None,
        tokenizer=experiment.text.tokenizer,
        data=experiment.text.digests(),
        profile=profile,
    )
    return experiment


@reused
def pretraining_task(config: BertConfig) -> Task:
    """Return the two losses of BERT, and the accuracy of each."""

    def counts(batch: Batch) -> Sums:
        masked, pairs = batch["masked_weights"].sum(), jnp.float32(len(batch["next_sentence"]))
        return {
            "masked_lm_loss": masked,
            "masked_lm_accuracy": masked,
            "next_sentence_loss": pairs,
            "next_sentence_accuracy": pairs,
        }

    def sums(logits: PretrainingLogits, batch: Batch) -> Sums:
        weights = batch["masked_weights"]
        mlm_loss, mlm_right = cross_entropy(logits.masked_lm, batch["masked_tokens"])
        nsp_loss, nsp_right = cross_entropy(logits.next_sentence, batch["next_sentence"])
        return {
            "masked_lm_loss": (weights * mlm_loss).sum(),
            "masked_lm_accuracy": (weights * mlm_right).sum(),
            "next_sentence_loss": nsp_loss.sum(),
            "next_sentence_accuracy": nsp_right.sum(),
        }

    inputs = ("tokens", "masked_positions", "segments", "valid")
    losses = ("masked_lm_loss", "next_sentence_loss")
    return make_task(BertForPretraining(config), inputs, counts, sums, losses)


# --- from a config to a program -------------------------------------------------------------------


def resolve(config: PretrainingConfig, folder: Path | None = None) -> PretrainingConfig:
    """Fill in what `config` leaves open of its model from the one that it starts from.

    Args:
      folder: of the run, which resumes also where `config.init` is gone.

    Raises:
      ValueError: for a value that is not right, or if there is nothing to start from at
        `config.init`.
    """
    if not config.stages:
        raise ValueError("Nothing to train: give config.stage1, 2 or 3 steps or epochs.")
    for name, stage in config.stages.items():
        # The largest number that is masked; see `PretrainingExamples`.
        masked = round(config.data.mask_rate * (stage.length - 3))
        if masked > stage.max_predictions:
            raise ValueError(
                f"config.data.mask_rate={config.data.mask_rate} masks {masked} of the "
                f"{stage.length - 3} tokens of an input, and config.{name}.max_predictions="
                f"{stage.max_predictions} allows fewer: raise it to {masked}, or lower the rate."
            )
    model = from_config(config.model)
    longest = max(stage.length for stage in config.stages.values())
    if config.init:
        from pe_jax.tasks.start import fill_in

        config = fill_in(config, longest, folder)
        model = from_config(config.model)
    rows = model.encoding().longest
    if rows is not None and longest > rows:
        name = next(name for name, stage in config.stages.items() if stage.length > rows)
        raise ValueError(
            f"config.{name}.length={config.stages[name].length} does not fit the {rows} positions "
            f"of {config.model.position!r}: raise config.model.max_length, or take a sinusoidal or "
            "relative encoding, which have no maximum length."
        )
    return config


def make_program(
    config: PretrainingConfig, mesh: jax.sharding.Mesh, model: BertConfig, steps: int
) -> Program:
    """Return what `config` runs on the devices of `mesh` in `steps` steps, without data."""
    schedule, optimizer = make_optimizer(config.optimizer, steps, model)
    task = pretraining_task(model)
    task = task._replace(sums=sharding.gather(task.sums, mesh, config.parallel))
    return Program(config, model, task, optimizer, schedule, mesh, (config.seed,), config.parallel)


# --- data -----------------------------------------------------------------------------------------


def build(config: PretrainingConfig, tokenizer: Path | None = None) -> PretrainingExperiment:
    """Build everything that a resolved `config` stands for; reads the data, trains nothing.

    Args:
      tokenizer: the run's own, where it has one already; default that of `config.init`, or
        `config.data.vocab`, or the run trains its own.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    mesh, stages = sharding.data_mesh(), list(config.stages.values())
    for stage in stages:
        sharding.check_rows(stage.batch_size, mesh, stage.accumulation)
    vocab = str(tokenizer or config.data.vocab)
    if config.init and not tokenizer:
        from pe_jax.tasks.start import tokenizer_file

        vocab = tokenizer_file(config)
    text = load_text(config.data, vocab)
    train = [_examples(config, stage, text) for stage in stages]
    steps = [
        stage.steps or math.ceil(stage.epochs * len(examples) / stage.batch_size)
        for stage, examples in zip(stages, train, strict=True)
    ]
    model = from_config(config.model, vocab_size=text.vocabulary.size)
    program = make_program(config, mesh, model, sum(steps))
    eval_step = sharding.parallelize_eval(
        make_eval_step(program.task), mesh, program.shardings.params
    )

    def make_stage(number: int, held_out: list[Batch]) -> Stage:
        stage = stages[number]

        def evaluate_stage(step: int, params: Params) -> Scalars:
            del step
            return evaluate(eval_step, params, held_out)

        # Each stage has an order of its own.
        seed, workers = config.seed + number, config.data.workers
        batches = _batches(train[number], stage, seed, workers=workers)
        return Stage(
            name=f"length {stage.length}",
            steps=steps[number],
            batches=batches,
            train_step=program.train_step(stage.accumulation),
            evaluate=evaluate_stage,
            flops=functools.partial(train_flops, model, predictions=stage.max_predictions),
        )

    held_out = []
    for stage in stages:  # The same for every run on this text.
        examples = _examples(config, stage, text, held_out=True)
        batches = _batches(examples, stage, _HELD_OUT_SEED)(0)
        count = max(1, round(config.eval_examples / stage.batch_size))
        rows = itertools.islice(iter(batches), count)
        held_out.append([sharding.to_global(batch, program.batch_sharding) for batch in rows])
    return PretrainingExperiment(
        config,
        program,
        text,
        stages=[make_stage(number, batches) for number, batches in enumerate(held_out)],
        held_out=held_out,
        epochs=[n * s.batch_size / len(examples) for n, s, examples in zip(steps, stages, train)],
    )


def _examples(
    config: PretrainingConfig, stage: StageConfig, text: TextSplit, *, held_out: bool = False
) -> data.PretrainingExamples:
    return data.PretrainingExamples(
        text.held_out if held_out else text.train,
        text.held_out_documents if held_out else text.train_documents,
        text.vocabulary,
        stage.length,
        stage.max_predictions,
        config.data.mask_rate,
        config.data.short_probability,
    )


def _batches(
    examples: data.PretrainingExamples, stage: StageConfig, seed: int, *, workers: int = 0
) -> Callable[[int], Iterable[HostBatch]]:
    """Return a function from n to this host's batches of a stage from batch n on."""
    return functools.partial(
        data.batches,
        examples,
        batch_size=stage.batch_size,
        seed=seed,
        host=jax.process_index(),
        hosts=jax.process_count(),
        workers=workers,
    )


def _introduce_text(config: PretrainingDataConfig) -> None:
    """Print what is read and, where every host might tokenize the same text, how to do it once."""
    if config.source.startswith("shards:"):
        tell("Text", config.source)
        return
    tell("Text", f"{config.source}; tokenized now, unless it is in the cache")
    if jax.process_count() > 1 and config.source != "pydoc":
        tell("Hint", "every host tokenizes all of it, unless they share PE_JAX_CACHE; once, with")
        source, vocab = shlex.quote(config.source), config.vocab or "tokenizer.json"
        tell("", f"pe-jax prepare --source={source} --vocab={vocab} --out=SHARDS")
