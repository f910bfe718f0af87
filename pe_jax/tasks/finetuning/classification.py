"""GLUE: a class, or a value, for one or two texts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.configs.finetuning import FinetuningConfig
from pe_jax.data.glue import GLUE, Examples, encode_examples, load_glue
from pe_jax.data.rows import Rows
from pe_jax.models import BertConfig, BertForClassification
from pe_jax.tasks.finetuning.glue_scores import glue_score
from pe_jax.tasks.finetuning.problem import (
    HELD_OUT,
    INPUTS,
    VALIDATION,
    Problem,
    score_name,
    split_off,
)
from pe_jax.tasks.losses import cross_entropy
from pe_jax.training.pytrees import Batch, Scalars, Sums
from pe_jax.training.step import Task, make_task, reused


@reused
def classification_task(model: BertConfig, outputs: int) -> Task:
    """Cross-entropy over classes and accuracy in points, or with one output the squared error.

    Batches: tokens, segments `[B, L]` int32, valid `[B, L]` bool, label `[B]`.
    """

    def counts(batch: Batch) -> Sums:
        rows = jnp.float32(len(batch["label"]))
        return {"loss": rows} if outputs == 1 else {"loss": rows, "accuracy": rows}

    def sums(logits: jax.Array, batch: Batch) -> Sums:
        if outputs == 1:
            return {"loss": ((logits[:, 0] - batch["label"]) ** 2).sum()}
        loss, right = cross_entropy(logits, batch["label"])
        return {"loss": loss.sum(), "accuracy": 100 * right.sum()}

    return make_task(BertForClassification(model, outputs), INPUTS, counts, sums)


def glue_problem(config: FinetuningConfig, model: BertConfig, tokenizer: Tokenizer) -> Problem:
    """The GLUE task that `config.task` names.

    Raises:
      ValueError: if its data is missing, or has unknown labels.
    """
    glue, dataset = GLUE[config.task], f"glue/{config.task}"

    def read(split: str) -> Examples:
        return load_glue(config.task, split, config.data.data_dir)

    def encode(examples: Examples) -> Rows:
        return encode_examples(examples, tokenizer, config.data.length)

    whole = read("train")
    train = whole.select(~whole.empty())
    held_out = {suffix or VALIDATION: read(split) for suffix, split in glue.validation}
    if config.data.held_out:
        held_out_rows = split_off(len(train.labels), config.data.held_out)
        train, held_out[HELD_OUT] = train.select(~held_out_rows), train.select(held_out_rows)

    def scores(name: str, answers: np.ndarray) -> Scalars:
        labels = held_out[name].labels
        return {metric: glue_score(metric, labels, answers) for metric in glue.metrics}

    def score(name: str, logits: np.ndarray) -> tuple[Scalars, dict[str, list]]:
        answers = logits.argmax(-1) if glue.labels else logits[:, 0]
        return scores(name, answers), {name: answers.tolist()}

    trivial = np.bincount(train.labels).argmax() if glue.labels else train.labels.mean()
    return Problem(
        dataset=dataset,
        trained_on=dataset,
        task=classification_task(model, max(1, len(glue.labels))),
        per_token=False,
        train=encode(train),
        held_out={name: encode(examples) for name, examples in held_out.items()},
        score=score,
        baseline={
            score_name(metric, name): value
            for name, examples in held_out.items()
            for metric, value in scores(name, np.full_like(examples.labels, trivial)).items()
        },
        metric=score_name(glue.metrics[0], glue.validation[0][0] or VALIDATION),
        held_out_metric=score_name(glue.metrics[0], HELD_OUT) if config.data.held_out else "",
        notes=_notes(whole, train, held_out),
    )


def _notes(whole: Examples, train: Examples, held_out: dict[str, Examples]) -> list[str]:
    notes = [f"{len(train.labels):,} training examples"]
    if count := whole.empty().sum():
        notes[0] += f"; {count:,} with an empty text were left out"
    for name, examples in held_out.items():
        source = "training data kept to select by" if name == HELD_OUT else name
        notes.append(f"{len(examples.labels):,} examples in {source}")
        if count := examples.empty().sum():
            notes[-1] += f", {count:,} of them with an empty text"
    return notes
