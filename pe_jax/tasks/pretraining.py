"""Pretraining: masked language model and next sentence, from a config to a trained run."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

from pe_jax import data
from pe_jax.configs.pretraining import PretrainingConfig, PretrainingStageConfig
from pe_jax.models import BertConfig, BertForPretraining, train_flops
from pe_jax.models.config import from_config
from pe_jax.models.heads import PretrainingLogits
from pe_jax.tasks import on_text
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.on_text import Experiment
from pe_jax.tasks.text_split import TextSplit
from pe_jax.tasks.train import Program
from pe_jax.training import sharding
from pe_jax.training.loop import Stage, evaluate
from pe_jax.training.optimizer import make_optimizer
from pe_jax.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.training.step import Task, make_task, reused


def run(
    config: PretrainingConfig, folder: Path, profile: range = range(0)
) -> Experiment[PretrainingConfig]:
    """Train what `config` describes, or resume the run in `folder`; return the experiment.

    Args:
      profile: steps to trace, see `Profiler`.
    """
    config = resolve(config, folder)
    return on_text.run(config, folder, build, profile, keep_position=config.keep_position)


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
    """Return `on_text.resolve(config, folder)`, once masks are known to fit; raises as it does."""
    for name, stage in config.stages.items():
        # The largest number that is masked; see `PretrainingExamples`.
        masked = round(config.data.mask_rate * (stage.length - 3))
        if masked > stage.max_predictions:
            raise ValueError(
                f"config.{name}.max_predictions={stage.max_predictions} is too low: "
                f"config.data.mask_rate={config.data.mask_rate} masks {masked} of the "
                f"{stage.length - 3} tokens of an input. Raise it to {masked}, or lower the rate."
            )
    return on_text.resolve(config, folder)


def make_program(
    config: PretrainingConfig, mesh: jax.sharding.Mesh, model: BertConfig, steps: int
) -> Program:
    """Return what `config` runs on the devices of `mesh` in `steps` steps, without data."""
    schedule, optimizer = make_optimizer(config.optimizer, steps, model)
    task = pretraining_task(model)
    task = task._replace(sums=sharding.gather(task.sums, mesh, config.parallel))
    return Program(config, model, task, optimizer, schedule, mesh, (config.seed,), config.parallel)


# --- data -----------------------------------------------------------------------------------------


def build(
    config: PretrainingConfig, tokenizer: Path | None = None
) -> Experiment[PretrainingConfig]:
    """Build everything that a resolved `config` stands for; reads the data, trains nothing.

    Args:
      tokenizer: see `on_text.load`.

    Raises:
      ValueError: for a config that cannot run; the message names the key and the way out.
    """
    text, stages = on_text.load(config, tokenizer, pairs=True), [*config.stages.values()]
    examples = [_examples(config, stage, text) for stage in stages]
    steps = [on_text.stage_steps(*pair) for pair in zip(stages, examples, strict=True)]
    model = from_config(config.model, vocab_size=text.vocabulary.size)
    program = make_program(config, sharding.data_mesh(), model, sum(steps))
    eval_step = program.eval_step()

    def make_stage(number: int, held_out: list[Batch]) -> Stage:
        stage = stages[number]

        def evaluate_stage(step: int, params: Params) -> Scalars:
            del step
            return evaluate(eval_step, params, held_out)

        return Stage(
            name=f"length {stage.length}",
            steps=steps[number],
            batches=on_text.stage_batches(config, number, examples[number]),
            train_step=program.train_step(stage.accumulation),
            evaluate=evaluate_stage,
            flops=functools.partial(train_flops, model, predictions=stage.max_predictions),
        )

    held_out = []
    for stage in stages:
        held_out_examples = _examples(config, stage, text, held_out=True)
        held_out.append(on_text.held_out_batches(config, stage, held_out_examples, program))
    return Experiment(
        config,
        program,
        text,
        stages=[make_stage(number, batches) for number, batches in enumerate(held_out)],
        held_out=held_out,
        epochs=on_text.stage_epochs(config, steps, examples),
        digests=text.digests(),
    )


def _examples(
    config: PretrainingConfig,
    stage: PretrainingStageConfig,
    text: TextSplit,
    *,
    held_out: bool = False,
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
