"""Exact match and F1 of answers, as the official SQuAD evaluation defines them; all in points."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from pe_jax.trainer.data.questions import Question

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(answer: str) -> str:
    """Lower case, then no ASCII punctuation, then no articles, then single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


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
    questions: Sequence[Question], predictions: Mapping[str, str], version: str
) -> dict[str, float]:
    """The scores of a set of predictions; among several gold answers the best match counts.

    Args:
      questions: with their gold answers.
      predictions: the answer to each question's id, "" for unanswerable.
      version: v1.1 or v2.0, where questions of one id count once.

    Returns:
      exact, f1 and total (questions averaged over); in v2.0 also with the prefixes HasAns_ and
      NoAns_, if there are any.

    Raises:
      ValueError: for an unanswerable question in v1.1.
    """
    is_v2 = version == "v2.0"
    exact, overlap = dict[str | int, float](), dict[str | int, float]()
    answerable: dict[str | int, bool] = {}
    for number, q in enumerate(questions):
        if not q.answers and not is_v2:
            raise ValueError(
                f"The question {q.id!r} has no answer, which v1.1 does not allow: score it as "
                "'v2.0'."
            )
        key, answer = q.id if is_v2 else number, predictions[q.id]
        golds = [gold for gold, _ in q.answers if not is_v2 or normalise(gold)] or [""]
        exact[key] = max(normalise(answer) == normalise(gold) for gold in golds)
        overlap[key] = max(f1(answer, gold, empty=int(is_v2)) for gold in golds)
        answerable[key] = bool(q.answers)
    groups: dict[str, list[str | int]] = {"": [*exact]}
    if is_v2:
        groups["HasAns_"] = [key for key, value in answerable.items() if value]
        groups["NoAns_"] = [key for key, value in answerable.items() if not value]
    scores = {}
    for prefix, keys in groups.items():
        if keys:
            scores[f"{prefix}exact"] = 100 * sum(exact[key] for key in keys) / len(keys)
            scores[f"{prefix}f1"] = 100 * sum(overlap[key] for key in keys) / len(keys)
            scores[f"{prefix}total"] = len(keys)
    return scores
