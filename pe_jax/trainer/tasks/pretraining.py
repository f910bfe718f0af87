"""Pretraining: masked language model, with next sentence or alone, from a config to a run."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.models import BertConfig, BertForMaskedLM, BertForPretraining
from pe_jax.models.flops import train_flops
from pe_jax.models.heads import PretrainingLogits
from pe_jax.trainer import data
from pe_jax.trainer.configs.pretraining import (
    PretrainingConfig,
    PretrainingDataConfig,
    PretrainingStageConfig,
    StageConfig,
)
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.tasks.text_training import TextRun
from pe_jax.trainer.tasks.train import train
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.loop import Stage, evaluate
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.trainer.training.step import Task, cache_by_arguments, make_task
from pe_jax.trainer.training.workdir import ResolvedConfig

Run = TextRun[PretrainingConfig]


def run(config: PretrainingConfig, folder: Path, profile: range = range(0)) -> Run:
    """Train what `config` describes, or resume the run in `folder`; return it.

    Args:
      profile: steps to trace, see `Loop`.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out. For
        what else may happen, see `train`.
    """
    resolved = text_training.resolve(config, folder)
    run = build(resolved, text_training.log_start(folder, resolved))
    train(run, folder, profile)
    return run


@cache_by_arguments
def pretraining_task(config: BertConfig) -> Task:
    """Return the two losses of BERT, and the accuracy of each."""

    def counts(batch: Batch) -> Sums:
        pairs = jnp.float32(len(batch["next_sentence"]))
        pair_counts = {"next_sentence_loss": pairs, "next_sentence_accuracy": pairs}
        return _masked_lm_counts(batch) | pair_counts

    def sums(logits: PretrainingLogits, batch: Batch) -> Sums:
        loss, right = cross_entropy(logits.next_sentence, batch["next_sentence"])
        pair_sums = {
            "next_sentence_loss": loss.sum(),
            "next_sentence_accuracy": right.sum(),
        }
        return _masked_lm_sums(logits.masked_lm, batch) | pair_sums

    names = ("tokens", "masked_positions", "token_type_ids")
    inputs = {**dict.fromkeys(names, jnp.int32), "mask": jnp.bool_}
    losses = ("masked_lm_loss", "next_sentence_loss")
    return make_task(BertForPretraining(config), inputs, counts, sums, losses)


@cache_by_arguments
def packed_task(config: BertConfig) -> Task:
    """Return the masked-LM loss and accuracy on rows of documents, attention within each."""
    names = ("tokens", "masked_positions", "document_ids", "positions")
    inputs = dict.fromkeys(names, jnp.int32)
    losses = ("masked_lm_loss",)
    model = BertForMaskedLM(config)
    return make_task(model, inputs, _masked_lm_counts, _masked_lm_sums, losses)


def _masked_lm_counts(batch: Batch) -> Sums:
    count = batch["masked_weights"].sum()
    return {"masked_lm_loss": count, "masked_lm_accuracy": count}


def _masked_lm_sums(logits: jax.Array, batch: Batch) -> Sums:
    loss, right = cross_entropy(logits, batch["masked_tokens"])
    weights = batch["masked_weights"]
    return {
        "masked_lm_loss": (weights * loss).sum(),
        "masked_lm_accuracy": (weights * right).sum(),
    }


def make_program(
    config: PretrainingConfig, mesh: jax.sharding.Mesh, model: BertConfig, steps: int
) -> Program:
    """Return what `config` runs on the devices of `mesh` in `steps` steps, without data."""
    schedule, optimizer = make_optimizer(config.optimizer, steps, model)
    task = packed_task(model) if config.data.packed else pretraining_task(model)
    task = task._replace(sums=sharding.gather(task.sums, mesh, config.parallel))
    return Program(
        model=model,
        task=task,
        optimizer=optimizer,
        schedule=schedule,
        mesh=mesh,
        seeds=(config.seed,),
        parallel=config.parallel,
    )


def make_examples(
    config: PretrainingDataConfig,
    vocabulary: data.Vocabulary,
    stage: StageConfig,
    corpus: data.TokenizedCorpus,
    documents: np.ndarray,
) -> data.Examples:
    """Return the examples of a stage: packed documents, or sentence pairs."""
    assert isinstance(stage, PretrainingStageConfig)
    options: dict[str, Any] = {
        "length": stage.length,
        "max_predictions": stage.max_predictions,
        "mask_rate": config.mask_rate,
    }
    if config.packed:
        return data.PackedExamples(corpus, documents, vocabulary, **options)
    options["short_probability"] = config.short_probability
    return data.PretrainingExamples(corpus, documents, vocabulary, **options)


def build(
    resolved: ResolvedConfig[PretrainingConfig], tokenizer: Path | None = None
) -> Run:
    """Build everything that a config stands for; reads the data, and trains nothing.

    Args:
      tokenizer: see `text_training.read_data`.
    """
    config = resolved.config
    mesh, packed = sharding.data_mesh(), config.data.packed
    examples = functools.partial(make_examples, config.data)
    text_data = text_training.read_data(
        config, tokenizer, mesh, examples, pairs=not packed
    )
    vocab_size = text_data.text.vocabulary.size
    model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
    program = make_program(config, mesh, model, sum(text_data.steps))
    eval_step = program.eval_step()

    def make_stage(number: int, stage: PretrainingStageConfig) -> Stage:
        def scores(step: int, params: Params) -> Scalars:
            return evaluate(eval_step, params, text_data.held_out[number])

        return Stage(
            name=f"length {stage.length}",
            steps=text_data.steps[number],
            batches=text_data.batches[number],
            train_step=program.train_step(stage.accumulation),
            evaluate=scores,
            flops=functools.partial(
                train_flops, model, predictions=stage.max_predictions
            ),
        )

    def start(fresh: Params) -> Params:
        from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
        from pe_jax.trainer.training.transplant import transplant

        old = PretrainedSource(config.init).params(
            program.shardings_of, model.max_length
        )
        params, changes = transplant(fresh, old, position=config.keep_position)
        log(f"Parameters from {config.init}:\n{changes}")
        return params

    stages = [
        make_stage(number, stage) for number, stage in enumerate(config.stages.values())
    ]
    return text_training.make_run(
        resolved, program, text_data, stages, {}, start if config.init else None
    )
