"""SQuAD: the span of a context that answers a question."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.configs.finetuning import SquadConfig
from pe_jax.data.squad import (
    Question,
    Windows,
    evaluation_windows,
    load_questions,
    read_official,
    training_windows,
)
from pe_jax.models import BertConfig, BertForSpans, SpanLogits
from pe_jax.tasks.finetuning import squad_scores
from pe_jax.tasks.finetuning.answers import best_answers
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
_LARGEST = float(np.finfo(np.float64).max)


@reused
def span_task(model: BertConfig) -> Task:
    """The mean of the cross-entropies of an answer's first and last token, over all positions.

    Batches: tokens, segments `[B, L]` int32, valid `[B, L]` bool, start, end `[B]` int32.
    """
    bert = BertForSpans(model)

    def counts(batch: Batch) -> Sums:
        rows = jnp.float32(len(batch["start"]))
        return {"loss": rows, "accuracy": rows}

    def sums(params: Params, batch: Batch, key: jax.Array | None) -> Sums:
        logits = apply(bert, params, batch, key)
        start_loss, start_right = cross_entropy(logits.start, batch["start"])
        end_loss, end_right = cross_entropy(logits.end, batch["end"])
        return {
            "loss": (start_loss + end_loss).sum() / 2,
            "accuracy": 100 * (start_right * end_right).sum(),
        }

    return Task(functools.partial(draw, bert), counts, sums, losses=("loss",))


def squad_problem(config: SquadConfig, model: BertConfig, tokenizer: Tokenizer) -> Problem:
    """The questions of `config.data.train` and `config.data.validation`.

    Raises:
      ValueError: if they do not exist, or none of them can be trained on.
    """
    data = config.data
    sizes = {"max_query": data.max_query, "stride": data.stride}
    train, kept = _split(read_questions(data.train, data.data_dir), data.held_out)
    rows, starts, ends, skipped = training_windows(train, tokenizer, data.length, **sizes)
    questions = read_questions(data.validation, data.data_dir)
    asked = {_VALIDATION: questions, **({HELD_OUT: kept} if kept else {})}
    windows = {
        name: evaluation_windows(some, tokenizer, data.length, **sizes)
        for name, some in asked.items()
    }
    bert = BertForSpans(model)
    notes = [f"{len(rows.questions):,} training questions in {len(starts):,} windows"]
    if skipped:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.items())
        notes[0] += f"; left out: {reasons}"
    for name, some in asked.items():
        why = " to select by" if name == HELD_OUT else " to answer"
        notes.append(f"{len(some):,} questions in {len(windows[name].question):,} windows{why}")
    return Problem(
        dataset=_own_name(data.validation, "validation"),
        trained_on=_own_name(data.train, "train"),
        task=span_task(model),
        outputs=make_outputs(bert),
        per_token=True,
        train=rows.rows(start=starts, end=ends),
        held_out={name: some.rows() for name, some in windows.items()},
        score=lambda outputs: _scores(config, windows, outputs),
        baseline=_baseline(questions, config.version),
        metric="f1",
        held_out_metric=on_held_out("f1") if kept else "",
        notes=notes,
    )


def _split(questions: list[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    """Return questions to train on, and questions to select by; no context is in both."""
    if not fraction:
        return questions, []
    contexts = list(dict.fromkeys(one.context for one in questions))
    apart = dict(zip(contexts, split_off(len(contexts), fraction), strict=True))
    return (
        [one for one in questions if not apart[one.context]],
        [one for one in questions if apart[one.context]],
    )


def _scores(
    config: SquadConfig, windows: dict[str, Windows], outputs: dict[str, SpanLogits]
) -> Scored:
    """The scores of each set by one seed's logits; those of the training data are named so."""
    scored = _score(config, windows[_VALIDATION], outputs[_VALIDATION])
    if HELD_OUT not in windows:
        return scored
    kept = _score(config, windows[HELD_OUT], outputs[HELD_OUT])
    return scored._replace(
        scores=scored.scores | {on_held_out(name): x for name, x in kept.scores.items()}
    )


def _score(config: SquadConfig, windows: Windows, logits: SpanLogits) -> Scored:
    """Answers from the logits `[W, L]` of one seed, and their scores."""
    null_threshold = config.null_threshold if config.version == "v2.0" else None
    predictions = best_answers(
        windows,
        logits.start,
        logits.end,
        n_best=config.n_best,
        max_answer_tokens=config.max_answer_tokens,
        null_threshold=null_threshold,
    )
    texts = {one.id: one.text for one in predictions}
    scores = squad_scores.score(windows.questions, texts, config.version)
    kept: dict[str, Any] = {"answers": texts}
    if null_threshold is not None:
        # JSON has no infinity.
        nulls = {one.id: min(one.null_difference, _LARGEST) for one in predictions}
        kept["null_differences"] = nulls
        # The best threshold is searched among answers before any threshold.
        spans = {one.id: one.candidates[0].text if one.candidates else "" for one in predictions}
        best = squad_scores.score(windows.questions, spans, config.version, nulls)
        scores |= {name: value for name, value in best.items() if name.startswith("best_")}
    return Scored({k: v for k, v in scores.items() if k not in ("total", "missing")}, kept)


def read_questions(source: str, data_dir: str) -> list[Question]:
    """Questions of a source: `NAME:SPLIT` or `NAME:SPLIT+SPLIT` of tfds, or an official JSON file.

    Raises:
      ValueError: for a source that does not exist.
    """
    if source.endswith(".json"):
        return read_official(source)
    name, _, splits = source.partition(":")
    if not name or not splits:
        raise ValueError(
            "Questions come from NAME:SPLIT (tfds), such as squad/v1.1:train, or from a .json "
            f"file in SQuAD's format; got {source!r}."
        )
    return [q for split in splits.split("+") for q in load_questions(name, split, data_dir)]


def _own_name(source: str, split: str) -> str:
    """The dataset alone if the source is this split of SQuAD, as in tables; else the source."""
    name, _, found = source.partition(":")
    return name if found == split and name.startswith("squad/") else source


def _baseline(questions: list[Question], version: str) -> Scalars:
    """Scores of answering with the first sentence of the context, or in v2.0 with no answer."""
    answer = (lambda q: "") if version == "v2.0" else (lambda q: q.context.partition(". ")[0])
    scores = squad_scores.score(questions, {q.id: answer(q) for q in questions}, version)
    return {name: scores[name] for name in ("f1", "exact")}
