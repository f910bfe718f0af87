"""Scores of labels of words: F1 of entities by their exact words and type, or accuracy."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
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
        return {"accuracy": type_counts(gold, predicted, NONE)[ALL].scores()["recall"]}
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
_Pairs = collections.Counter[tuple[str, str]]


def type_counts(
    gold: Sequence[Labels], predicted: Sequence[Labels], scheme: str
) -> dict[str, Counts]:
    """Return the counts of entities by type, or with the scheme "none" those of words by label."""
    if scheme == NONE:
        return entity_counts(gold, predicted, _words_as_spans)
    return entity_counts(gold, predicted, strict_of(scheme))


def _words_as_spans(labels: Labels) -> list[LabelSpan]:
    return [LabelSpan(index, index + 1, label) for index, label in enumerate(labels)]


def confusions(
    gold: Sequence[Labels], predicted: Sequence[Labels], scheme: str
) -> _Pairs:
    """Return how often which type was predicted for another: pairs of (gold, predicted).

    An entity whose exact words were not predicted counts as `OTHER_WORDS` or `MISSED`. A predicted
    entity counts as (`NO_ENTITY`, its type) if it shares no word with one of the data. With the
    scheme "none" they are pairs of labels of words.
    """
    pairs = _Pairs()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        if scheme == NONE:
            pairs.update(zip(gold_labels, predicted_labels, strict=True))
            continue
        gold_spans = strict_spans(gold_labels, scheme)
        predicted_spans = strict_spans(predicted_labels, scheme)
        type_of = {(span.start, span.stop): span.type for span in predicted_spans}
        for span in gold_spans:
            other = OTHER_WORDS if _overlaps(span, predicted_spans) else MISSED
            pairs[span.type, type_of.get((span.start, span.stop), other)] += 1
        for span in predicted_spans:
            if not _overlaps(span, gold_spans):
                pairs[NO_ENTITY, span.type] += 1
    return _Pairs({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})


def _overlaps(span: LabelSpan, others: Iterable[LabelSpan]) -> bool:
    return any(other.start < span.stop and span.start < other.stop for other in others)


# --- files of predictions -------------------------------------------------------------------------


def write_predictions(
    words: Sequence[Sequence[str]], gold: Sequence[Labels], predicted: Sequence[Labels]
) -> str:
    """Return lines of word, label and predicted label, with an empty line after each sentence.

    They are separated by a space, as the script conlleval reads them; by tabs if a word or a label
    has a space.
    """
    sentences = [
        list(zip(*columns, strict=True))
        for columns in zip(words, gold, predicted, strict=True)
    ]
    has_space = any(
        " " in cell for lines in sentences for line in lines for cell in line
    )
    separator = "\t" if has_space else " "
    blocks = []
    for lines in sentences:
        blocks += [f"{separator.join(line)}\n" for line in lines]
        blocks.append("\n")
    return "".join(blocks)


def read_predictions(text: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the labels and the predicted labels of what `write_predictions` has written."""
    separator = "\t" if "\t" in text else " "
    gold: list[list[str]] = []
    predicted: list[list[str]] = []
    for block in text.split("\n\n")[:-1]:
        cells = [line.split(separator) for line in block.split("\n")]
        gold.append([line[1] for line in cells])
        predicted.append([line[2] for line in cells])
    return gold, predicted
