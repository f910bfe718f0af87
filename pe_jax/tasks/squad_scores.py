"""Exact match and F1 of answers, as the official SQuAD evaluation defines them; all in points."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pe_jax.data.questions import Question

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(answer: str) -> str:
    """Lower case, then no ASCII punctuation, then no articles, then single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> int:
    """1 if both are equal after normalisation, else 0."""
    return int(normalise(prediction) == normalise(gold))


def f1(prediction: str, gold: str, *, empty: int = 1) -> float:
    """The harmonic mean of precision and recall of the prediction's words, repetitions counted.

    Args:
      empty: the value if neither has a word: 1 in v2.0, 0 in v1.1.
    """
    predicted, wanted = normalise(prediction).split(), normalise(gold).split()
    if not predicted and not wanted:
        return empty
    same = (Counter(predicted) & Counter(wanted)).total()
    if not same:
        return 0
    precision, recall = same / len(predicted), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    version: str,
    null_scores: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The scores of a set of predictions; among several gold answers the best match counts.

    Args:
      questions: with their gold answers.
      predictions: the answer to each question's id, "" for unanswerable.
      version: v1.1, where a question without a prediction scores 0; or v2.0, where it is excluded
        from all averages.
      null_scores: for v2.0, how likely a question has no answer, by id, on any scale. They are
        searched for the best threshold, above which the answer would be "". `predictions` should
        then be the best spans, before any threshold.

    Returns:
      exact, f1, total (questions averaged over) and missing (questions without a prediction); in
      v2.0 exact, f1 and total also with the prefixes HasAns_ and NoAns_, if there are any, and with
      null scores best_exact, best_exact_thresh, best_f1 and best_f1_thresh.

    Raises:
      ValueError: for an unanswerable question in v1.1, no prediction in v2.0, or a prediction
        without a null score.
    """
    missing = sum(q.id not in predictions for q in questions)
    if version == "v1.1":
        return {**_score_v1(questions, predictions), "missing": missing}
    return {**_score_v2(questions, predictions, null_scores), "missing": missing}


def _score_v1(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    for q in questions:
        if not q.answers:
            raise ValueError(
                f"The question {q.id!r} has no answer, which v1.1 does not allow: score it as "
                "'v2.0'."
            )
    exact: list[float] = [0] * len(questions)
    overlap: list[float] = [0] * len(questions)
    for n, q in enumerate(questions):
        if q.id in predictions:
            exact[n] = max(exact_match(predictions[q.id], gold) for gold, _ in q.answers)
            overlap[n] = max(f1(predictions[q.id], gold, empty=0) for gold, _ in q.answers)
    return _averages("", exact, overlap)


def _score_v2(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float] | None,
) -> dict[str, float]:
    exact, overlap = {}, {}
    for q in questions:
        if q.id in predictions:
            golds = [gold for gold, _ in q.answers if normalise(gold)] or [""]
            exact[q.id] = max(exact_match(predictions[q.id], gold) for gold in golds)
            overlap[q.id] = max(f1(predictions[q.id], gold) for gold in golds)
    if not exact:
        raise ValueError(
            f"None of the {len(questions)} questions has a prediction. Do the ids belong to "
            "another file?"
        )
    scores = _averages("", exact.values(), overlap.values())
    answerable = {q.id: bool(q.answers) for q in questions}
    for prefix, kind in (("HasAns_", True), ("NoAns_", False)):
        ids = [id for id, has in answerable.items() if has == kind and id in exact]
        if ids:
            scores |= _averages(prefix, [exact[id] for id in ids], [overlap[id] for id in ids])
    if null_scores is not None:
        for name, values in (("exact", exact), ("f1", overlap)):
            best, threshold = _best_threshold(predictions, values, null_scores, answerable)
            scores |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return scores


def _averages(
    prefix: str, exact: Collection[float], overlap: Collection[float]
) -> dict[str, float]:
    total = len(exact)
    return {
        f"{prefix}exact": 100 * sum(exact) / total,
        f"{prefix}f1": 100 * sum(overlap) / total,
        f"{prefix}total": total,
    }


def _best_threshold(
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    null_scores: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score over all thresholds, and the null score up to which a question is answered."""
    # If nothing is answered, all unanswerable questions are right (missing ones too, as in the
    # official search); the threshold is then 0. Raising it answers one question after another.
    without = [id for id in scores if id not in null_scores]
    if without:
        raise ValueError(
            f"{len(without)} predictions, such as {without[0]!r}, have no null score. Give one for "
            "each, or none at all."
        )
    current: float = sum(not has for has in answerable.values())
    best, threshold = current, 0.0
    for id in sorted(null_scores, key=null_scores.__getitem__):
        if id not in scores:
            continue
        if answerable[id]:
            current += scores[id]
        elif predictions[id]:
            current -= 1
        if current > best:
            best, threshold = current, null_scores[id]
    return 100 * best / len(scores), threshold
