"""Exact match and F1 of answers, as the official SQuAD evaluation defines them; all in points."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    predicted = normalise(prediction).split()
    wanted = normalise(gold).split()
    if not predicted and not wanted:
        return empty
    same = (Counter(predicted) & Counter(wanted)).total()
    if not same:
        return 0
    precision = same / len(predicted)
    recall = same / len(wanted)
    return 2 * precision * recall / (precision + recall)


class _ScoredAnswer(NamedTuple):
    exact: float
    f1: float
    has_gold: bool  # False for an unanswerable question.


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
    answers: dict[str | int, _ScoredAnswer] = {}
    for number, q in enumerate(questions):
        if not q.answers and not is_v2:
            raise ValueError(
                f"The question {q.id!r} has no answer, which v1.1 does not allow: score it as "
                "'v2.0'."
            )
        key = q.id if is_v2 else number
        answer = predictions[q.id]
        golds = [gold for gold, _ in q.answers if not is_v2 or normalise(gold)] or [""]
        answers[key] = _ScoredAnswer(
            exact=max(normalise(answer) == normalise(gold) for gold in golds),
            f1=max(f1(answer, gold, empty=int(is_v2)) for gold in golds),
            has_gold=bool(q.answers),
        )
    everything = list(answers.values())
    groups = {"": everything}
    if is_v2:
        groups["HasAns_"] = [answer for answer in everything if answer.has_gold]
        groups["NoAns_"] = [answer for answer in everything if not answer.has_gold]
    scores = {}
    for prefix, group in groups.items():
        if group:
            total = len(group)
            scores[f"{prefix}exact"] = 100 * sum(each.exact for each in group) / total
            scores[f"{prefix}f1"] = 100 * sum(each.f1 for each in group) / total
            scores[f"{prefix}total"] = total
    return scores
