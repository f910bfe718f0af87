"""Answers in the original text, decoded from the logits of spans (Devlin et al., 4.2, 4.3).

Shapes: W windows, Q questions, L length, N n_best.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np

from pe_jax.data.squad import Windows, max_context


class Prediction(NamedTuple):
    """The answer to a question.

    Attributes:
      id: of the question.
      text: the answer; empty for "unanswerable", or if there is no candidate.
      candidates: text, and start logit + end logit, of the best spans, best first.
      null_difference: the score of "unanswerable" minus that of the best span; infinite if there is
        no span.
    """

    id: str
    text: str
    candidates: list[tuple[str, float]]
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

    Candidates combine the `n_best` starts and the `n_best` ends in each window's context. A start
    counts in the window where its token has the most context. Among equal scores the earlier span
    comes first.

    Args:
      start_logits, end_logits: `[W, L]` floats.
      n_best: also how many candidates a question keeps.
      max_answer_tokens: the longest span.
      null_threshold: answer "" where the null difference is greater (as SQuAD v2.0 allows); the
        null score is the least sum over the question's windows of both logits at [CLS]. None:
        always answer with the best span.

    Raises:
      ValueError: for logits that are not finite.
    """
    for name, logits in (("start", start_logits), ("end", end_logits)):
        if not np.isfinite(logits).all():
            raise ValueError(f"{name} logits contain NaN or infinity. Has training diverged?")
    start_logits, end_logits = start_logits.astype(np.float64), end_logits.astype(np.float64)
    question, score, first, last = _spans(
        windows, start_logits, end_logits, n_best, max_answer_tokens
    )
    null = np.full(len(windows.questions), np.inf)
    np.minimum.at(null, windows.question, start_logits[:, 0] + end_logits[:, 0])

    bounds = np.searchsorted(question, np.arange(len(windows.questions) + 1))
    predictions = []
    for number, asked in enumerate(windows.questions):
        best = slice(bounds[number], min(bounds[number] + n_best, bounds[number + 1]))
        offsets = windows.offsets[number]
        begins, ends = offsets[first[best], 0].tolist(), offsets[last[best], 1].tolist()
        texts = [_text(asked.context, begin, end) for begin, end in zip(begins, ends)]
        scores = score[best].tolist()
        difference = float(null[number]) - scores[0] if scores else np.inf
        is_null = null_threshold is not None and difference > null_threshold
        text = texts[0] if texts and not is_null else ""
        predictions.append(Prediction(asked.id, text, [*zip(texts, scores)], difference))
    return predictions


def _spans(
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best: int,
    max_answer_tokens: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Question, score, first and last context token of candidates: by question, best first.

    At most N of each window.
    """
    position = np.arange(windows.length)
    begin = windows.context_start[:, None]
    in_context = (position >= begin) & (position < begin + windows.context_sizes[:, None])
    starts, start_scores = _top(start_logits, max_context(windows), n_best)  # [W, N]
    ends, end_scores = _top(end_logits, in_context, n_best)
    scores = start_scores[:, :, None] + end_scores[:, None, :]  # [W, N, N]
    tokens = ends[:, None, :] - starts[:, :, None] + 1
    scores[(tokens < 1) | (tokens > max_answer_tokens)] = -np.inf
    scores = scores.reshape(len(scores), -1)

    pairs, scores = _top(scores, scores > -np.inf, n_best)
    row, rank = np.nonzero(scores > -np.inf)
    start, end = np.divmod(pairs[row, rank], ends.shape[1])
    to_context = windows.first[row] - windows.context_start[row]
    first, last = starts[row, start] + to_context, ends[row, end] + to_context
    question, scores = windows.question[row], scores[row, rank]
    order = np.lexsort((last, first, -scores, question))
    return question[order], scores[order], first[order], last[order]


def _top(scores: np.ndarray, allowed: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and scores `[W, count]` of the largest allowed ones in each row; -inf where there are
    fewer. Among equal ones the lower index comes first."""
    scores = np.where(allowed, scores, -np.inf)
    top = np.argsort(-scores, axis=-1, kind="stable")[:, :count]
    return top, np.take_along_axis(scores, top, axis=-1)


def _text(context: str, begin: int, end: int) -> str:
    # A token ends before the combining accents that were stripped from its last letter.
    while end < len(context) and unicodedata.category(context[end]) == "Mn":
        end += 1
    return context[begin:end].strip()  # Tokens of byte-level BPE begin with the space before them.
