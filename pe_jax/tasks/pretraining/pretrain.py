"""Pretraining: masked language model and next sentence, from a config to a trained run.

`pretraining_task` is what to train, `make_program` what the devices run for it, `build` turns a
config into everything that a run needs, `run` trains it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from pe_jax import data
from pe_jax.console.terminal import say
from pe_jax.models import BertConfig, BertForPretraining, train_flops
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.run import saved_tokenizer, train
from pe_jax.tasks.start import open_start
from pe_jax.tasks.text_split import TextSplit, load_text
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding, workdir
from pe_jax.training.loop import Stage, evaluate
from pe_jax.training.step import Task, TrainState, init_state, make_eval_step, make_train_step
from pe_jax.training.transplant import Changes, transplant

_HELD_OUT_SEED = 20_210_503  # Held-out pairs and masks are the same for every run and seed.


def pretraining_task(config: BertConfig) -> Task:
    """The two losses of BERT, and the share of right answers of each."""
    model = BertForPretraining(config)

    def init(key: jax.Array) -> Any:
        one = jnp.zeros((1, 8), jnp.int32)
        return model.init(key, one, one[:, :1])["params"]

    def counts(batch: Any) -> dict[str, jax.Array]:
        masked, pairs = batch["masked_weights"].sum(), jnp.float32(len(batch["next_sentence"]))
        return {
            "masked_lm_loss": masked,
            "masked_lm_accuracy": masked,
            "next_sentence_loss": pairs,
            "next_sentence_accuracy": pairs,
        }

    def sums(params: Any, batch: Any, key: jax.Array | None) -> dict[str, jax.Array]:
        logits: Any = model.apply(
            {"params": params},
            batch["tokens"],
            batch["masked_positions"],
            batch["segments"],
            batch["valid"],
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
        )
        weights = batch["masked_weights"]
        mlm_loss, mlm_right = cross_entropy(logits.masked_lm, batch["masked_tokens"])
        nsp_loss, nsp_right = cross_entropy(logits.next_sentence, batch["next_sentence"])
        return {
            "masked_lm_loss": (weights * mlm_loss).sum(),
            "masked_lm_accuracy": (weights * mlm_right).sum(),
            "next_sentence_loss": nsp_loss.sum(),
            "next_sentence_accuracy": nsp_right.sum(),
        }

    return Task(init, counts, sums, losses=("masked_lm_loss", "next_sentence_loss"))


@dataclasses.dataclass(frozen=True)
class Program:
    """What the devices run for a config: everything about its steps but the data."""

    config: ConfigDict
    model: BertConfig
    task: Task
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: jax.sharding.Mesh
    shardings: TrainState

    def place(self, tree: Any) -> Any:
        """Where a state, or a part of one, lies: the sharding of each leaf."""
        return sharding.state_shardings(self.mesh, self.config.parallel, tree)

    def init(self) -> TrainState:
        """The state before the first step, in its place; nothing is read from disk."""
        placed = jax.jit(self._make_state, out_shardings=self.shardings)
        return placed(jax.random.key(self.config.seed))

    def abstract_state(self) -> TrainState:
        """The shapes, dtypes and shardings of `init`; takes no memory."""
        return sharding.abstract(_state_shapes(self.task, self.optimizer), self.shardings)

    def abstract_batch(self, stage: ConfigDict) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes, dtypes and shardings of a global batch of `stage`."""
        return sharding.abstract(batch_shapes(stage), sharding.by_rows(self.mesh))

    def train_step(self, stage: ConfigDict) -> Any:
        """The jitted step of `stage`: `(state, global batch) -> (state, metrics)`."""
        step = make_train_step(self.task, self.optimizer, accumulation=stage.accumulation)
        return sharding.parallelize(step, self.mesh, self.config.parallel, self.shardings)

    def _make_state(self, key: jax.Array) -> TrainState:
        return init_state(self.task, self.optimizer, key)


def _state_shapes(task: Task, optimizer: optax.GradientTransformation) -> TrainState:
    return jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))


def make_program(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: BertConfig, steps: int
) -> Program:
    """What `config` runs on the devices of `mesh` in `steps` steps.

    Args:
      model: see `model_config`.
    """
    schedule, optimizer = optimizers.from_config(config.optimizer, steps)
    task = pretraining_task(model)
    task = task._replace(sums=sharding.gather(task.sums, mesh, config.parallel))
    state = _state_shapes(task, optimizer)
    shardings = sharding.state_shardings(mesh, config.parallel, state)
    return Program(config, model, task, optimizer, schedule, mesh, shardings)


def batch_shapes(stage: ConfigDict) -> dict[str, jax.ShapeDtypeStruct]:
    """What `data.batches` gives for `stage`, all hosts together: shapes and dtypes."""
    rows, length, predictions = stage.batch_size, stage.length, stage.max_predictions
    shape = jax.ShapeDtypeStruct
    return {
        "tokens": shape((rows, length), jnp.int32),
        "segments": shape((rows, length), jnp.int32),
        "valid": shape((rows, length), jnp.bool_),
        "masked_positions": shape((rows, predictions), jnp.int32),
        "masked_tokens": shape((rows, predictions), jnp.int32),
        "masked_weights": shape((rows, predictions), jnp.float32),
        "next_sentence": shape((rows,), jnp.int32),
    }


@dataclasses.dataclass(frozen=True)
class PretrainingStage(Stage):
    """A stage, and what there is to know of its data.

    Attributes:
      held_out: global batches of held-out text.
      rows, length: of the global batch.
      examples: how many make an epoch.
    """

    held_out: list[Any]
    rows: int
    length: int
    examples: int


@dataclasses.dataclass(frozen=True)
class PretrainingExperiment(Program):
    """A program and what it runs on: everything that a config stands for, ready to run."""

    text: TextSplit
    stages: list[PretrainingStage]


def resolve(config: ConfigDict) -> ConfigDict:
    """`config` with what it leaves open of its model filled in from the one that it starts from.

    These are the sizes that `config.model` does not give one by one, and constants that it has no
    keys for. A learned table of positions that goes on keeps its length, if the inputs fit it.

    Raises:
      ValueError: if there is nothing to start from at `config.init`.
    """
    if not config.init:
        return config
    start, own = open_start(config.init).model, model_config(config)
    open_sizes = [name for name in _SIZES if config.model[name] is None]
    longest = max(stage.length for stage in stage_configs(config))
    learned = [_has_table(model) for model in (start, own)]
    length = ["max_length"] if all(learned) and longest <= start.max_length else []
    taken = {
        name: getattr(start, name)
        for name in (*open_sizes, *_CONSTANTS, *length)
        if getattr(start, name) != getattr(own, name)
    }
    if taken:
        say(f"Of the model at {config.init}: {', '.join(f'{k} {v}' for k, v in taken.items())}")
    resolved = config.copy_and_resolve_references()
    resolved.model = ConfigDict({**resolved.model.to_dict(), **taken})
    return resolved


# What a model that goes on from another has to have of it; the latter have no keys of their own.
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
_CONSTANTS = ("num_segments", "layer_norm_epsilon")


def _has_table(model: BertConfig) -> bool:
    return "learned_absolute" in model.position.split("+")


def tokenizer_file(config: ConfigDict) -> str:
    """The tokenizer that a run of `config` is to have; empty where it trains its own.

    Raises:
      ValueError: if the run starts from a model with other words.
    """
    vocab = config.data.vocab
    if not config.init:
        return vocab
    started = open_start(config.init).tokenizer()
    words = lambda file: data.load_tokenizer(file).get_vocab()
    if vocab and words(vocab) != words(started):
        raise ValueError(
            f"The words of config.data.vocab={vocab} are not those of {started}, which the model "
            f"at {config.init} was trained with: leave config.data.vocab empty."
        )
    return str(started)


def build(config: ConfigDict, tokenizer: Path | None = None) -> PretrainingExperiment:
    """Everything that a resolved `config` stands for; reads the data, trains nothing.

    Args:
      tokenizer: the run's own, where it has one already; default see `tokenizer_file`.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    mesh = sharding.data_mesh()
    stages = stage_configs(config)
    for stage in stages:
        sharding.check_rows(stage.batch_size, mesh, stage.accumulation)
    model_config(config)  # Its names are checked before any text is read.
    text = load_text(config.data, str(tokenizer or tokenizer_file(config)))
    examples = [
        _examples(config, stage, text, text.train, text.train_documents) for stage in stages
    ]
    steps = [
        stage.steps or math.ceil(stage.epochs * len(some) / stage.batch_size)
        for stage, some in zip(stages, examples, strict=True)
    ]
    model = model_config(config, vocab_size=text.vocabulary.size)
    program = make_program(config, mesh, model, sum(steps))
    host, hosts = sharding.host()
    eval_step = make_eval_step(program.task)
    eval_step = sharding.parallelize_eval(eval_step, mesh, program.shardings.params)
    built = []
    for number, (stage, count, some) in enumerate(zip(stages, steps, examples, strict=True)):
        batches = data.batches(
            some,
            batch_size=stage.batch_size,
            seed=config.seed + number,  # Each stage has an order of its own.
            host=host,
            hosts=hosts,
            workers=config.data.workers,
        )
        held_out = _held_out_batches(config, stage, text, mesh)
        built.append(
            PretrainingStage(
                name=f"length {stage.length}",
                steps=count,
                batches=batches,
                train_step=program.train_step(stage),
                evaluate=functools.partial(_evaluate, eval_step, held_out),
                held_out=held_out,
                rows=stage.batch_size,
                length=stage.length,
                examples=len(some),
                flops=functools.partial(_flops, model, stage.max_predictions),
            )
        )
    return PretrainingExperiment(**vars(program), text=text, stages=built)


def _evaluate(eval_step: Any, batches: list[Any], step: int, params: Any) -> dict[str, float]:
    del step
    return evaluate(eval_step, params, batches)


def _flops(model: BertConfig, predictions: int, rows: int, length: int) -> float:
    return train_flops(model, rows, length, predictions)


def initial_positions(config: ConfigDict, model: BertConfig) -> Any:
    """The position parameters that a run of `config` draws before its first step."""
    make = jax.jit(
        lambda key: (
            init_state(pretraining_task(model), optax.identity(), key)
            .params["bert"]
            .get("position", {})
        )
    )
    return make(jax.random.key(config.seed))


def stage_configs(config: ConfigDict) -> list[ConfigDict]:
    """The stages that a config gives steps or epochs.

    Raises:
      ValueError: if there is none, or one has both.
    """
    stages = [stage for stage in (config.stage1, config.stage2) if stage.steps or stage.epochs]
    if not stages:
        raise ValueError("Nothing to train: give config.stage1 (or stage2) steps or epochs.")
    for stage in stages:
        if stage.steps and stage.epochs:
            raise ValueError(
                f"A stage takes steps or epochs, got steps={stage.steps}, epochs={stage.epochs}."
            )
    return stages


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


def run(config: ConfigDict, folder: Path) -> PretrainingExperiment:
    """Trains what `config` says, or goes on with the run in `folder`; returns the experiment."""
    config = resolve(config)
    workdir.check(folder, config)
    saved = saved_tokenizer(folder)
    experiment = build(config, saved if saved.exists() else None)

    def start(fresh: TrainState) -> TrainState:
        if not config.init:
            return fresh
        params, changes = transplant_start(experiment, fresh.params)
        say(f"Parameters from {config.init}:\n{changes}")
        return fresh._replace(params=params)

    train(
        config,
        folder,
        experiment.stages,
        fresh=experiment.init(),
        start=start,
        schedule=experiment.schedule,
        placed=sharding.by_rows(experiment.mesh),
        tokenizer=experiment.text.tokenizer,
    )
    return experiment


def transplant_start(experiment: PretrainingExperiment, params: Any) -> tuple[Any, Changes]:
    """Fresh `params` with everything that fits taken from the model that the run starts from.

    Raises:
      ValueError: if it has no parameters yet, or a part other than the positions does not fit.
    """
    start = open_start(experiment.config.init)
    old = start.params(experiment.place)
    return transplant(params, experiment.model.encoding(), old, start.encoding)


def _held_out_batches(
    config: ConfigDict, stage: ConfigDict, text: TextSplit, mesh: Any
) -> list[Any]:
    """Global batches of held-out examples, the same for every run on this text."""
    examples = _examples(config, stage, text, text.held_out, text.held_out_documents)
    host, hosts = sharding.host()
    rows = stage.batch_size
    batches = data.batches(examples, batch_size=rows, seed=_HELD_OUT_SEED, host=host, hosts=hosts)
    count = max(1, round(config.eval_examples / rows))
    return [
        sharding.to_global(b, sharding.by_rows(mesh))
        for b in itertools.islice(iter(batches), count)
    ]
