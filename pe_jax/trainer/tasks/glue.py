"""GLUE, and other tables with a class, or a value, for one or two texts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.errors import extra
from pe_jax.models import BertConfig, BertForClassification
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.data.glue import (
    GLUE,
    Examples,
    GlueTask,
    encode_examples,
    load_glue,
)
from pe_jax.trainer.data.rows import Rows
from pe_jax.trainer.tasks.finetuning_task import (
    HELD_OUT,
    INPUTS,
    FinetuningTask,
    score_name,
    split_off,
)
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.training.pytrees import Batch, Scalars, Sums
from pe_jax.trainer.training.step import Task, cache_by_arguments, make_task


@cache_by_arguments
def classification_task(model: BertConfig, outputs: int) -> Task:
    """Cross-entropy over classes and accuracy in points, or with one output the squared error.

    Batches: tokens, token_type_ids `[B, L]` int32, mask `[B, L]` bool, label `[B]`.
    """

    def counts(batch: Batch) -> Sums:
        rows = jnp.float32(len(batch["label"]))
        if outputs == 1:
            return {"loss": rows}
        return {"loss": rows, "accuracy": rows}

    def sums(logits: jax.Array, batch: Batch) -> Sums:
        if outputs == 1:
            return {"loss": ((logits[:, 0] - batch["label"]) ** 2).sum()}
        loss, right = cross_entropy(logits, batch["label"])
        return {"loss": loss.sum(), "accuracy": 100 * right.sum()}

    return make_task(BertForClassification(model, outputs), INPUTS, counts, sums)


def glue_task(config: FinetuningConfig, model: BertConfig) -> Task:
    """Return the losses of the GLUE task that `config.task` names."""
    return classification_task(model, outputs_of(GLUE[config.task]))


def outputs_of(task: GlueTask) -> int:
    """Return the number of outputs of the head: a class each, or one value of a regression."""
    return max(1, len(task.labels))


def glue_score(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """An official metric of GLUE in points: 100 times that of scikit-learn or scipy.

    Args:
      metric: accuracy, f1, f1_macro (the mean over the classes of `labels`), matthews, pearson or
        spearman.
      labels, predictions: `[N]` classes, or values of a regression.

    Raises:
      ValueError: for predictions that are not finite, or if scikit-learn is not installed.
    """
    _check_finite(predictions)
    if metric in ("pearson", "spearman"):
        # As long to import as all of JAX, and only needed here.
        from scipy import stats

        correlation = stats.pearsonr if metric == "pearson" else stats.spearmanr
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            value = float(correlation(labels, predictions).statistic)
        if np.isnan(value):  # Constant answers do not correlate.
            return 0.0
        return 100 * value
    if metric == "accuracy":
        return 100 * float(np.mean(labels == predictions))
    if metric == "f1_macro":
        return 100 * _mean_f1(labels, predictions)
    with extra("finetuning", ValueError):
        from sklearn import metrics
    if metric == "f1":
        value = metrics.f1_score(labels, predictions, zero_division=0.0)
    else:
        value = metrics.matthews_corrcoef(labels, predictions)
    return 100 * float(value)


def _mean_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean over the classes of `labels` of 2 · right / (labelled + predicted)."""
    scores = []
    for number in np.unique(labels):
        labelled = labels == number
        predicted = predictions == number
        right = (labelled & predicted).sum()
        scores.append(2 * right / (labelled.sum() + predicted.sum()))
    return float(np.mean(scores))


def _check_finite(predictions: np.ndarray) -> None:
    is_finite = np.isfinite(predictions.reshape(len(predictions), -1)).all(-1)
    broken = int((~is_finite).sum())
    if broken:
        raise ValueError(
            f"{broken} of {len(predictions)} predictions are not finite, so they cannot be scored. "
            "The model's weights are broken."
        )


def load_glue_task(
    config: FinetuningConfig, model: BertConfig, tokenizer: Tokenizer
) -> FinetuningTask:
    """Return the data, head and scores of the GLUE task that `config.task` names.

    Raises:
      ValueError: if its data is missing or has other labels, or inputs are too short for a text.
    """
    glue = GLUE[config.task]
    names = ["train", *(split for _, split in glue.validation)]
    splits = {
        split: load_glue(config.task, split, config.data.data_dir) for split in names
    }
    return task_of_splits(f"glue/{config.task}", glue, splits, config, model, tokenizer)


def task_of_splits(
    dataset: str,
    glue: GlueTask,
    splits: Mapping[str, Examples],
    config: FinetuningConfig,
    model: BertConfig,
    tokenizer: Tokenizer,
) -> FinetuningTask:
    """Return the data, head and scores of a classification or a regression.

    Args:
      dataset: what results are called.
      splits: "train" and those of `glue.validation`.

    Raises:
      ValueError: if inputs are too short for a text.
    """

    def encode(examples: Examples) -> Rows:
        return encode_examples(examples, tokenizer, config.data.length)

    whole = splits["train"]
    train = whole.select(~whole.empty())
    held_out = {name: splits[split] for name, split in glue.validation}
    first_metric = glue.metrics[0]
    first_set = glue.validation[0][0]
    held_out_metric = ""
    if config.data.held_out:
        is_kept = split_off(len(train.labels), config.data.held_out)
        held_out[HELD_OUT] = train.select(is_kept)
        train = train.select(~is_kept)
        held_out_metric = score_name(first_metric, HELD_OUT)

    def scores(name: str, answers: np.ndarray) -> Scalars:
        labels = held_out[name].labels
        return {metric: glue_score(metric, labels, answers) for metric in glue.metrics}

    def score(name: str, logits: np.ndarray) -> tuple[Scalars, dict[str, str]]:
        _check_finite(logits)
        answers = logits.argmax(-1) if glue.labels else logits[:, 0]
        return scores(name, answers), {f"{name}.json": json.dumps(answers.tolist())}

    trivial = np.bincount(train.labels).argmax() if glue.labels else train.labels.mean()
    baseline = {}
    for name, examples in held_out.items():
        answers = np.full_like(examples.labels, trivial)
        for metric, value in scores(name, answers).items():
            baseline[score_name(metric, name)] = value
    return FinetuningTask(
        dataset=dataset,
        trained_on=dataset,
        objective=classification_task(model, outputs_of(glue)),
        per_token=False,
        train=encode(train),
        held_out={name: encode(examples) for name, examples in held_out.items()},
        score=score,
        baseline=baseline,
        metric=score_name(first_metric, first_set),
        held_out_metric=held_out_metric,
        notes=_notes(whole, train, held_out),
    )


def _notes(
    whole: Examples, train: Examples, held_out: dict[str, Examples]
) -> list[str]:
    note = f"{len(train.labels):,} training examples"
    empty = whole.empty().sum()
    if empty:
        note += f"; {empty:,} with an empty text were left out"
    notes = [note]
    for name, examples in held_out.items():
        source = "training data kept to select by" if name == HELD_OUT else name
        note = f"{len(examples.labels):,} examples in {source}"
        empty = examples.empty().sum()
        if empty:
            note += f", {empty:,} of them with an empty text"
        notes.append(note)
    return notes
