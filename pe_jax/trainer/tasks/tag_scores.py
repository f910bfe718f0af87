"""Scores of labels of words: F1 of entities by their exact words and type, or accuracy."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pe_jax.interop.label_schemes import (
    NONE,
    LabelSpan,
    lenient_spans,
    strict_spans,
)
from pe_jax.trainer.training.pytrees import Scalars

Labels = Sequence[str]  # Of the words of a sentence.
_Spans = Callable[[Labels], Iterable[LabelSpan]]
ALL = "all"  # The name of all types together.


class Counts(NamedTuple):
    """Entities of a type that are in the data, that are predicted, and that are both."""

    gold: int
    predicted: int
    correct: int

    def scores(self) -> Scalars:
        """Return precision, recall and F1 in points; 0 where nothing is divided by."""
        return {
            "precision": 100 * self.correct / max(self.predicted, 1),
            "recall": 100 * self.correct / max(self.gold, 1),
            "f1": 100 * 2 * self.correct / max(self.gold + self.predicted, 1),
        }


def tag_scores(
    gold: Sequence[Labels], predicted: Sequence[Labels], scheme: str
) -> Scalars:
    """Return the scores of predictions, in points.

    Args:
      gold, predicted: the labels of each sentence.
      scheme: of the labels.

    Returns:
      With the scheme "none", the accuracy of words. Else micro-averaged "f1", "precision" and
      "recall" of entities, where a predicted span counts if it follows the scheme to the letter:
      those of seqeval with mode="strict". "f1_conlleval" is that of the script conlleval, of
      seqeval by default, which also counts predicted spans that the scheme does not allow.
    """
    if scheme == NONE:
        right = sum(a == b for a, b in _words(gold, predicted))
        return {"accuracy": 100 * right / sum(map(len, gold))}
    strict = entity_counts(gold, predicted, strict_of(scheme))[ALL].scores()
    lenient = entity_counts(gold, predicted, lenient_spans)[ALL].scores()
    order = ("f1", "precision", "recall")
    return {name: strict[name] for name in order} | {"f1_conlleval": lenient["f1"]}


def strict_of(scheme: str) -> _Spans:
    """Return `strict_spans` of a scheme."""
    return lambda labels: strict_spans(labels, scheme)


def entity_counts(
    gold: Sequence[Labels], predicted: Sequence[Labels], spans_of: _Spans
) -> dict[str, Counts]:
    """Return the counts of entities by type, in the order of the alphabet, and of `ALL`."""
    in_gold = collections.Counter[str]()
    in_predicted = collections.Counter[str]()
    in_both = collections.Counter[str]()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        gold_spans = set(spans_of(gold_labels))
        predicted_spans = set(spans_of(predicted_labels))
        in_gold.update(span.type for span in gold_spans)
        in_predicted.update(span.type for span in predicted_spans)
        in_both.update(span.type for span in gold_spans & predicted_spans)
    counts = {}
    for name in sorted({*in_gold, *in_predicted}):
        counts[name] = Counts(in_gold[name], in_predicted[name], in_both[name])
    total = Counts(in_gold.total(), in_predicted.total(), in_both.total())
    return {**counts, ALL: total}


# What became of an entity, besides the type that was predicted for its words.
OTHER_WORDS = "other words"  # A predicted entity shares words with it.
MISSED = "missed"
NO_ENTITY = "no entity"  # In the data, where a predicted one shares no word with any.


def entity_confusions(
    gold: Sequence[Labels], predicted: Sequence[Labels], scheme: str
) -> collections.Counter[tuple[str, str]]:
    """Return how often an entity of a type was predicted as which: pairs of (gold, predicted).

    An entity whose exact words were not predicted counts as `OTHER_WORDS` or `MISSED`. A predicted
    entity counts as (`NO_ENTITY`, its type) if it shares no word with one of the data.
    """
    confusions = collections.Counter[tuple[str, str]]()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        gold_spans = strict_spans(gold_labels, scheme)
        predicted_spans = strict_spans(predicted_labels, scheme)
        type_of = {(span.start, span.stop): span.type for span in predicted_spans}
        for span in gold_spans:
            other = OTHER_WORDS if _overlaps(span, predicted_spans) else MISSED
            confusions[span.type, type_of.get((span.start, span.stop), other)] += 1
        for span in predicted_spans:
            if not _overlaps(span, gold_spans):
                confusions[NO_ENTITY, span.type] += 1
    return confusions


def _overlaps(span: LabelSpan, others: Iterable[LabelSpan]) -> bool:
    return any(other.start < span.stop and span.start < other.stop for other in others)


def word_confusions(
    gold: Sequence[Labels], predicted: Sequence[Labels]
) -> collections.Counter[tuple[str, str]]:
    """Return how often a word of a label was predicted as which: pairs of (gold, predicted)."""
    return collections.Counter(_words(gold, predicted))


def _words(
    gold: Sequence[Labels], predicted: Sequence[Labels]
) -> Iterator[tuple[str, str]]:
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        yield from zip(gold_labels, predicted_labels, strict=True)
