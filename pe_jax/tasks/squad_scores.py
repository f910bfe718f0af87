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
    questions: Sequence[Question], predictions: Mapping[str, str], version: str
) -> dict[str, float]:
    """The scores of a set of predictions; among several gold answers the best match counts.

    Args:
      questions: with their gold answers.
      predictions: the answer to each question's id, "" for unanswerable.
      version: v1.1, where a question without a prediction scores 0; or v2.0, where it is excluded
        from all averages.

    Returns:
      exact, f1, total (questions averaged over) and missing (questions without a prediction); in
      v2.0 exact, f1 and total also with the prefixes HasAns_ and NoAns_, if there are any.

    Raises:
      ValueError: for an unanswerable question in v1.1, or no prediction in v2.0.
    """
    is_v2, exact, overlap = version == "v2.0", dict[str | int, float](), dict[str | int, float]()
    for number, q in enumerate(questions):
        if not q.answers and not is_v2:
            raise ValueError(
                f"The question {q.id!r} has no answer, which v1.1 does not allow: score it as "
                "'v2.0'."
            )
        key: str | int = q.id if is_v2 else number
        if (answer := predictions.get(q.id)) is not None:
            golds = [gold for gold, _ in q.answers if not is_v2 or normalise(gold)] or [""]
            exact[key] = max(exact_match(answer, gold) for gold in golds)
            overlap[key] = max(f1(answer, gold, empty=int(is_v2)) for gold in golds)
        elif not is_v2:
            exact[key] = overlap[key] = 0
    if not exact:
        raise ValueError(
            f"None of the {len(questions)} questions has a prediction. Do the ids belong to "
            "another file?"
        )
    scores = _averages("", exact.values(), overlap.values())
    answerable = {q.id: bool(q.answers) for q in questions}
    for prefix, kind in (("HasAns_", True), ("NoAns_", False)) if is_v2 else ():
        ids = [id for id in answerable if answerable[id] == kind and id in exact]
        if ids:
            scores |= _averages(prefix, [exact[id] for id in ids], [overlap[id] for id in ids])
    return scores | {"missing": sum(q.id not in predictions for q in questions)}


def _averages(
    prefix: str, exact: Collection[float], overlap: Collection[float]
) -> dict[str, float]:
    total = len(exact)
    return {
        f"{prefix}exact": 100 * sum(exact) / total,
        f"{prefix}f1": 100 * sum(overlap) / total,
        f"{prefix}total": total,
    }
