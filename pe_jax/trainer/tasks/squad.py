"""SQuAD: the span of a context that answers a question."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.shapes import Array
from pe_jax.models import BertConfig, BertForSpans
from pe_jax.trainer.configs.finetuning import SquadConfig
from pe_jax.trainer.data.questions import Question, read_questions
from pe_jax.trainer.data.squad import Windows, evaluation_windows, training_windows
from pe_jax.trainer.tasks import squad_scores
from pe_jax.trainer.tasks.finetuning_task import (
    HELD_OUT,
    INPUTS,
    VALIDATION,
    FinetuningTask,
    score_name,
    split_off,
)
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.squad_answers import best_answers
from pe_jax.trainer.training.pytrees import Batch, Scalars, Sums
from pe_jax.trainer.training.step import Task, cache_by_arguments, make_task

SpanLogits = tuple[Array, Array]  # Of the first and of the last token, `[B, L]` each.


@cache_by_arguments
def span_task(model: BertConfig) -> Task:
    """The mean of the cross-entropies of an answer's first and last token, over all positions.

    Batches: tokens, token_type_ids `[B, L]` int32, mask `[B, L]` bool, start, end `[B]` int32.
    """

    def counts(batch: Batch) -> Sums:
        rows = jnp.float32(len(batch["start"]))
        return {"loss": rows, "accuracy": rows}

    def sums(logits: SpanLogits, batch: Batch) -> Sums:
        start, end = logits
        start_loss, start_right = cross_entropy(start, batch["start"])
        end_loss, end_right = cross_entropy(end, batch["end"])
        return {
            "loss": (start_loss + end_loss).sum() / 2,
            "accuracy": 100 * (start_right * end_right).sum(),
        }

    return make_task(BertForSpans(model), INPUTS, counts, sums)


def load_squad_task(
    config: SquadConfig, model: BertConfig, tokenizer: Tokenizer
) -> FinetuningTask:
    """Return the questions of `config.data.train` and `config.data.validation`, a head, and scores.

    Raises:
      ValueError: if the questions do not exist, or none of them can be trained on.
    """
    data = config.data
    sizes = {"max_query": data.max_query, "stride": data.stride}
    train, held_out = _split(read_questions(data.train, data.data_dir), data.held_out)
    train_windows, skipped = training_windows(train, tokenizer, data.length, **sizes)
    validation = read_questions(data.validation, data.data_dir)
    question_sets = {VALIDATION: validation}
    if held_out:
        question_sets[HELD_OUT] = held_out
    windows = {
        name: evaluation_windows(questions, tokenizer, data.length, **sizes)
        for name, questions in question_sets.items()
    }

    def score(name: str, logits: SpanLogits) -> tuple[Scalars, dict[str, str]]:
        scores, predictions = _score(config, windows[name], logits)
        return scores, predictions if name == VALIDATION else {}

    return FinetuningTask(
        dataset=_short_name(data.validation, "validation"),
        trained_on=_short_name(data.train, "train"),
        objective=span_task(model),
        per_token=True,
        train=train_windows.rows,
        held_out={name: each.rows for name, each in windows.items()},
        score=score,
        baseline=_baseline(validation, config.version),
        metric="f1",
        held_out_metric=score_name("f1", HELD_OUT) if held_out else "",
        notes=_notes(train_windows, skipped, windows),
    )


def _notes(
    train: Windows, skipped: dict[str, int], held_out: dict[str, Windows]
) -> list[str]:
    questions = f"{len(train.questions):,} training questions"
    note = f"{questions} in {len(train.question):,} windows"
    if skipped:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.items())
        note += f"; left out: {reasons}"
    notes = [note]
    for name, windows in held_out.items():
        questions = f"{len(windows.questions):,} questions"
        purpose = "to select by" if name == HELD_OUT else "to answer"
        notes.append(f"{questions} in {len(windows.question):,} windows {purpose}")
    return notes


def _split(
    questions: list[Question], fraction: float
) -> tuple[list[Question], list[Question]]:
    """Return questions to train on, and questions to select by; no context is in both."""
    contexts = list(dict.fromkeys(question.context for question in questions))
    is_kept = dict(zip(contexts, split_off(len(contexts), fraction), strict=True))
    train: list[Question] = []
    kept: list[Question] = []
    for question in questions:
        (kept if is_kept[question.context] else train).append(question)
    return train, kept


def _score(
    config: SquadConfig, windows: Windows, logits: SpanLogits
) -> tuple[Scalars, dict[str, str]]:
    """Return the scores of the answers from the logits `[W, L]` of one seed, and the answers."""
    null_threshold = config.null_threshold if config.version == "v2.0" else None
    start_logits, end_logits = logits
    predictions = best_answers(
        windows,
        start_logits,
        end_logits,
        n_best=config.n_best,
        max_answer_tokens=config.max_answer_tokens,
        null_threshold=null_threshold,
    )
    texts = {prediction.id: prediction.text for prediction in predictions}
    files = {"answers.json": json.dumps(texts)}
    if null_threshold is not None:
        largest = float(np.finfo(np.float64).max)  # JSON has no infinity.
        differences = {p.id: min(p.null_difference, largest) for p in predictions}
        files["null_differences.json"] = json.dumps(differences)
    scores = squad_scores.score(windows.questions, texts, config.version)
    del scores["total"]
    return scores, files


def _short_name(source: str, split: str) -> str:
    """The dataset alone if the source is this split of SQuAD, as in tables; else the source."""
    name, _, source_split = source.partition(":")
    return name if source_split == split and name.startswith("squad/") else source


def _baseline(questions: list[Question], version: str) -> Scalars:
    """Scores of answering with the first sentence of the context, or in v2.0 with no answer."""
    answers = {}
    for question in questions:
        sentence, _, _ = question.context.partition(". ")
        answers[question.id] = "" if version == "v2.0" else sentence
    scores = squad_scores.score(questions, answers, version)
    return {"f1": scores["f1"], "exact": scores["exact"]}
