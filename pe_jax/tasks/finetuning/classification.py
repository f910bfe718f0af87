"""GLUE: a class, or a value, for one or two texts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.configs.finetuning import FinetuningConfig
from pe_jax.data.glue import (
    GLUE,
    Examples,
    GlueTask,
    encode_examples,
    load_glue,
)
from pe_jax.models import BertConfig, BertForClassification
from pe_jax.tasks.finetuning.glue_scores import glue_score
from pe_jax.tasks.finetuning.problem import (
    HELD_OUT,
    Problem,
    Scored,
    apply,
    draw,
    make_outputs,
    on_held_out,
    split_off,
)
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.train import reused
from pe_jax.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.training.step import Task

_VALIDATION = "validation"
_CALLED = {HELD_OUT: "training data kept to select by"}


@reused
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


def glue_problem(config: FinetuningConfig, model: BertConfig, tokenizer: Tokenizer) -> Problem:
    """The GLUE task that `config.task` names.

    Raises:
      ValueError: if its data is missing, or has unknown labels.
    """
    glue, name = GLUE[config.task], f"glue/{config.task}"
    read = lambda split: load_glue(config.task, split, config.data.data_dir)
    whole = read("train")
    train = whole.select(~whole.empty())
    held_out = {_name(suffix): read(split) for suffix, split in glue.validation}
    if config.data.held_out:
        kept = split_off(len(train.labels), config.data.held_out)
        train, held_out[HELD_OUT] = train.select(~kept), train.select(kept)
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
        outputs=make_outputs(bert),
        per_token=False,
        train=encode(train),
        held_out={name: encode(examples) for name, examples in held_out.items()},
        score=score,
        baseline=_scores(glue, held_out, always),
        metric=_metric(glue.metrics[0], _name(glue.validation[0][0])),
        held_out_metric=on_held_out(glue.metrics[0]) if config.data.held_out else "",
        notes=_notes(whole, train, held_out),
    )


def _name(suffix: str) -> str:
    return suffix or _VALIDATION


def _metric(metric: str, name: str) -> str:
    return metric if name == _VALIDATION else f"{metric}_{name}"


def _scores(
    glue: GlueTask, held_out: dict[str, Examples], answers: dict[str, np.ndarray]
) -> Scalars:
    return {
        _metric(metric, name): glue_score(metric, examples.labels, answers[name])
        for name, examples in held_out.items()
        for metric in glue.metrics
    }


def _notes(whole: Examples, train: Examples, held_out: dict[str, Examples]) -> list[str]:
    notes = [f"{len(train.labels):,} training examples"]
    if count := whole.empty().sum():
        notes[0] += f"; {count:,} with an empty text were left out"
    for name, examples in held_out.items():
        notes.append(f"{len(examples.labels):,} examples in {_CALLED.get(name, name)}")
        if count := examples.empty().sum():
            notes[-1] += f", {count:,} of them with an empty text"
    return notes
