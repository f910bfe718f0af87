"""A pretraining experiment: a program and its data, from a config to a trained run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shlex
from pathlib import Path

import grain
import numpy as np
from ml_collections import ConfigDict

from pe_jax import data
from pe_jax.console.terminal import say, tell
from pe_jax.models import BertConfig, train_flops
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.pretraining.pretraining_config import resolve, stage_configs, tokenizer_file
from pe_jax.tasks.pretraining.program import Program, make_program
from pe_jax.tasks.run import Training, introduce, saved_tokenizer, train
from pe_jax.tasks.start import open_start
from pe_jax.tasks.text_split import TextSplit, load_text
from pe_jax.training import sharding, workdir
from pe_jax.training.loop import Cadence, Stage, evaluate
from pe_jax.training.pytrees import Batch, Params, Scalars
from pe_jax.training.step import TrainState, make_eval_step
from pe_jax.training.transplant import Changes, transplant

_HELD_OUT_SEED = 20_210_503  # Held-out pairs and masks are the same for every run and seed.


@dataclasses.dataclass(frozen=True)
class PretrainingStage(Stage):
    """A stage with its held-out data.

    Attributes:
      held_out: global batches of held-out text.
      rows, length: of the global batch.
      examples: how many make an epoch.
    """

    held_out: list[Batch]
    rows: int
    length: int
    examples: int


@dataclasses.dataclass(frozen=True)
class PretrainingExperiment(Program):
    """A program and its data: everything that a config stands for, ready to run."""

    text: TextSplit
    stages: list[PretrainingStage]


def build(config: ConfigDict, tokenizer: Path | None = None) -> PretrainingExperiment:
    """Everything that a resolved `config` stands for; reads the data, trains nothing.

    Args:
      tokenizer: the run's own, where it has one already; default see `tokenizer_file`.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    mesh = sharding.data_mesh()
    configs = stage_configs(config)
    for stage in configs:
        sharding.check_rows(stage.batch_size, mesh, stage.accumulation)
    text = load_text(config.data, str(tokenizer or tokenizer_file(config)))
    examples = [
        _examples(config, stage, text, text.train, text.train_documents) for stage in configs
    ]
    steps = [
        stage.steps or math.ceil(stage.epochs * len(some) / stage.batch_size)
        for stage, some in zip(configs, examples, strict=True)
    ]
    model = model_config(config, vocab_size=text.vocabulary.size)
    program = make_program(config, mesh, model, sum(steps))
    eval_step = sharding.parallelize_eval(
        make_eval_step(program.task), mesh, program.shardings.params
    )

    def evaluation(batches: list[Batch], step: int, params: Params) -> Scalars:
        del step
        return evaluate(eval_step, params, batches)

    stages = []
    for number, stage in enumerate(configs):
        held_out = _held_out_batches(program, stage, text)
        stages.append(
            PretrainingStage(
                name=f"length {stage.length}",
                steps=steps[number],
                batches=_training_batches(config, number, stage, examples[number]),
                train_step=program.train_step(stage),
                evaluate=functools.partial(evaluation, held_out),
                held_out=held_out,
                rows=stage.batch_size,
                length=stage.length,
                examples=len(examples[number]),
                flops=functools.partial(_flops, model, stage.max_predictions),
            )
        )
    return PretrainingExperiment(**vars(program), text=text, stages=stages)


def _flops(model: BertConfig, predictions: int, rows: int, length: int) -> float:
    return train_flops(model, rows, length, predictions)


def _examples(
    config: ConfigDict,
    stage: ConfigDict,
    text: TextSplit,
    corpus: data.TokenizedCorpus,
    documents: np.ndarray,
) -> data.PretrainingExamples:
    return data.PretrainingExamples(
        corpus,
        documents,
        text.vocabulary,
        stage.length,
        stage.max_predictions,
        config.data.mask_rate,
        config.data.short_probability,
    )


def _training_batches(
    config: ConfigDict, number: int, stage: ConfigDict, examples: data.PretrainingExamples
) -> grain.IterDataset:
    """This host's batches of the stage with that number."""
    host, hosts = sharding.host()
    return data.batches(
        examples,
        batch_size=stage.batch_size,
        seed=config.seed + number,  # Each stage has an order of its own.
        host=host,
        hosts=hosts,
        workers=config.data.workers,
    )


def _held_out_batches(program: Program, stage: ConfigDict, text: TextSplit) -> list[Batch]:
    """Global batches of held-out examples, the same for every run on this text."""
    examples = _examples(program.config, stage, text, text.held_out, text.held_out_documents)
    host, hosts = sharding.host()
    rows = stage.batch_size
    batches = data.batches(examples, batch_size=rows, seed=_HELD_OUT_SEED, host=host, hosts=hosts)
    count = max(1, round(program.config.eval_examples / rows))
    by_rows = sharding.by_rows(program.mesh)
    return [sharding.to_global(batch, by_rows) for batch in itertools.islice(iter(batches), count)]


def run(config: ConfigDict, folder: Path) -> PretrainingExperiment:
    """Trains what `config` describes, or resumes the run in `folder`; returns the experiment."""
    config = resolve(config)
    workdir.check(folder, config)
    saved = saved_tokenizer(folder)
    introduce(folder, config.init)
    _introduce_text(config.data)
    experiment = build(config, saved if saved.exists() else None)
    for stage in experiment.stages:
        epochs = stage.steps * stage.rows / stage.examples
        tell(
            "Batch",
            f"{stage.name}, {stage.rows:,} rows; {stage.steps:,} steps, {epochs:.2g} epochs",
        )

    def start(fresh: TrainState) -> TrainState:
        if not config.init:
            return fresh
        params, changes = transplant_start(experiment, fresh.params)
        say(f"Parameters from {config.init}:\n{changes}")
        return fresh._replace(params=params)

    training = Training(
        config,
        experiment.stages,
        fresh=experiment.init(),
        start=start,
        schedule=experiment.schedule,
        placed=sharding.by_rows(experiment.mesh),
        tokenizer=experiment.text.tokenizer,
        cadence=Cadence(config.log_every, config.eval_every, config.checkpoint_every),
    )
    train(training, folder)
    return experiment


def _introduce_text(config: ConfigDict) -> None:
    """Says what is read and, where every host might tokenize the same text, how to do that once."""
    if config.source.startswith("shards:"):
        tell("Text", config.source)
        return
    tell("Text", f"{config.source}; tokenized now, unless it is in the cache")
    if sharding.host()[1] > 1 and config.source != "pydoc":
        tell("Hint", "every host tokenizes all of it, unless they share PE_JAX_CACHE; once, with")
        source, vocab = shlex.quote(config.source), config.vocab or "tokenizer.json"
        tell("", f"pe-jax prepare --source={source} --vocab={vocab} --out=SHARDS")


def transplant_start(experiment: PretrainingExperiment, params: Params) -> tuple[Params, Changes]:
    """Fresh `params` with everything that fits taken from the model that the run starts from.

    Raises:
      ValueError: if it has no parameters yet, or a part other than the positions does not fit.
    """
    old = open_start(experiment.config.init).params(experiment.shardings_of)
    return transplant(params, old, position=experiment.config.keep_position)
