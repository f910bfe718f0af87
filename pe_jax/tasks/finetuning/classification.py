"""GLUE: a class, or a value, for one or two texts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pe_jax.data.glue_tasks import (
    GLUE,
    Examples,
    GlueTask,
    encode_examples,
    load_glue,
    without_empty,
)
from pe_jax.models import BertConfig, BertForClassification
from pe_jax.tasks.finetuning.glue_scores import glue_score
from pe_jax.tasks.finetuning.problem import Problem, Scored, apply, draw
from pe_jax.tasks.losses import cross_entropy
from pe_jax.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.training.step import Task


def classification_task(model: BertConfig, outputs: int) -> Task:
    """Cross-entropy over classes and accuracy in points, or with one output the squared error.

    Batches: tokens, segments `[B, L]` int32, valid `[B, L]` bool, label `[B]`.
    """
    bert = BertForClassification(model, outputs)

    def counts(batch: Batch) -> Sums:
        rows = jnp.float32(len(batch["label"]))
        return {"loss": rows} if outputs == 1 else {"loss": rows, "accuracy": rows}

    def sums(params: Params, batch: Batch, key: jax.Array | None) -> Sums:
        logits = apply(bert, params, batch, key)
        if outputs == 1:
            return {"loss": ((logits[:, 0] - batch["label"]) ** 2).sum()}
        loss, right = cross_entropy(logits, batch["label"])
        return {"loss": loss.sum(), "accuracy": 100 * right.sum()}

    return Task(functools.partial(draw, bert), counts, sums, losses=("loss",))


def glue_problem(config: ConfigDict, model: BertConfig, tokenizer: Tokenizer) -> Problem:
    """The GLUE task that `config.task` names.

    Raises:
      ValueError: if its data is missing, or has unknown labels.
    """
    glue, name = GLUE[config.task], f"glue/{config.task}"
    read = lambda split: load_glue(config.task, split, config.data.data_dir)
    train = read("train")
    held_out = {_name(suffix): read(split) for suffix, split in glue.validation}
    classes = max(1, len(glue.labels))
    bert = BertForClassification(model, classes)

    def score(outputs: dict[str, np.ndarray]) -> Scored:
        answers = {
            name: logits.argmax(-1) if glue.labels else logits[:, 0]
            for name, logits in outputs.items()
        }
        predictions = {name: some.tolist() for name, some in answers.items()}
        return Scored(_scores(glue, held_out, answers), predictions)

    trivial = np.bincount(train.labels).argmax() if glue.labels else train.labels.mean()
    always = {name: np.full_like(some.labels, trivial) for name, some in held_out.items()}
    encode = lambda examples: encode_examples(examples, tokenizer, config.data.length)
    return Problem(
        dataset=name,
        trained_on=name,
        task=classification_task(model, classes),
        outputs=lambda params, batch: apply(bert, params, batch, None),
        per_token=False,
        train=encode(without_empty(train)),
        held_out={name: encode(examples) for name, examples in held_out.items()},
        score=score,
        baseline=_scores(glue, held_out, always),
        metric=_metric(glue.metrics[0], glue.validation[0][0]),
        notes=_notes(train, held_out),
    )


def _name(suffix: str) -> str:
    return suffix or "validation"


def _metric(metric: str, suffix: str) -> str:
    return f"{metric}_{suffix}" if suffix else metric


def _scores(
    glue: GlueTask, held_out: dict[str, Examples], answers: dict[str, np.ndarray]
) -> Scalars:
    return {
        _metric(metric, suffix): glue_score(
            metric, held_out[_name(suffix)].labels, answers[_name(suffix)]
        )
        for suffix, _ in glue.validation
        for metric in glue.metrics
    }


def _notes(train: Examples, held_out: dict[str, Examples]) -> list[str]:
    notes = [f"{len(train.labels) - train.empty.sum():,} training examples"]
    if train.empty.any():
        notes[0] += f"; {train.empty.sum():,} with an empty text were left out"
    for name, examples in held_out.items():
        notes.append(f"{len(examples.labels):,} examples in {name}")
        if examples.empty.any():
            notes[-1] += f", {examples.empty.sum():,} of them with an empty text"
    return notes
