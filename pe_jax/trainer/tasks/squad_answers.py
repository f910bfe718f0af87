"""Answers in the original text, decoded from the logits of spans (Devlin et al., 4.2, 4.3).

Shapes: W windows, Q questions, L length, N n_best.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pe_jax.interop.words import with_accents
from pe_jax.trainer.data.squad import Windows, max_context


class Prediction(NamedTuple):
    """The answer to a question."""

    id: str  # Of the question.
    text: str  # Empty for "unanswerable", or if there is no span.
    # Score of "unanswerable" minus that of the best span; infinite if there is no span.
    null_difference: float


def best_answers(
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best: int = 20,
    max_answer_tokens: int = 30,
    null_threshold: float | None = None,
) -> list[Prediction]:
    """A prediction for each question, in their order.

    Spans combine the `n_best` starts and the `n_best` ends in each window's context. A start counts
    in the window where its token has the most context. Among equal scores the earlier span wins.

    Args:
      start_logits, end_logits: `[W, L]` floats.
      max_answer_tokens: the longest span.
      null_threshold: answer "" where the null difference is greater (as SQuAD v2.0 allows); the
        null score is the least sum over the question's windows of both logits at [CLS]. None:
        always answer with the best span.

    Raises:
      ValueError: for logits that are not finite.
    """
    for name, logits in (("start", start_logits), ("end", end_logits)):
        if not np.isfinite(logits).all():
            raise ValueError(
                f"{name} logits contain NaN or infinity. Has training diverged?"
            )
    start_logits = start_logits.astype(np.float64)
    end_logits = end_logits.astype(np.float64)
    null = np.full(len(windows.questions), np.inf)
    np.minimum.at(null, windows.question, start_logits[:, 0] + end_logits[:, 0])
    predictions = [
        Prediction(question.id, "", np.inf) for question in windows.questions
    ]
    spans = _best_spans(windows, start_logits, end_logits, n_best, max_answer_tokens)
    for number, score, first, last in zip(*spans, strict=True):
        question = windows.questions[number]
        offsets = windows.offsets[number]
        difference = float(null[number] - score)
        text = ""
        if null_threshold is None or difference <= null_threshold:
            text = _text(question.context, offsets[first, 0], offsets[last, 1])
        predictions[number] = Prediction(question.id, text, difference)
    return predictions


def _best_spans(
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best: int,
    max_answer_tokens: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Question, score, first and last context token of the best span of each that has one."""
    within = np.arange(windows.length) - windows.context_start[:, None]
    in_context = (within >= 0) & (within < windows.context_sizes[:, None])
    starts, start_scores = _top(start_logits, max_context(windows), n_best)  # [W, N]
    ends, end_scores = _top(end_logits, in_context, n_best)
    scores = start_scores[:, :, None] + end_scores[:, None, :]  # [W, N, N]
    tokens = ends[:, None, :] - starts[:, :, None] + 1
    scores[(tokens < 1) | (tokens > max_answer_tokens)] = -np.inf
    is_best = (scores == scores.max((1, 2), keepdims=True)) & (scores > -np.inf)
    row, start, end = np.nonzero(is_best)  # Several in a window where scores are equal.
    to_context = windows.first[row] - windows.context_start[row]
    first = starts[row, start] + to_context
    last = ends[row, end] + to_context
    question = windows.question[row]
    score = scores[row, start, end]
    order = np.lexsort((last, first, -score, question))
    _, first_of_question = np.unique(question[order], return_index=True)
    best = order[first_of_question]
    return question[best], score[best], first[best], last[best]


def _top(
    scores: np.ndarray, allowed: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and scores `[W, count]` of the largest allowed ones in each row; -inf where there are
    fewer. Among equal ones the lower index comes first."""
    scores = np.where(allowed, scores, -np.inf)
    top = np.argsort(-scores, axis=-1, kind="stable")[:, :count]
    return top, np.take_along_axis(scores, top, axis=-1)


def _text(context: str, begin: int, end: int) -> str:
    # Tokens of byte-level BPE begin with the space before them.
    return context[begin : with_accents(context, end)].strip()
