"""Sentence pairs for next-sentence prediction (Devlin et al. 2018, section 3.1 and A.2).

A chunk is a sequence of consecutive sentences of one document, long enough to fill an example. Each
time a chunk is drawn it is split in two at a random sentence; half of the time its second part is
replaced by text from a random other document.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pe_jax.data.tokenized import TokenizedCorpus

IS_NEXT, IS_RANDOM = 0, 1  # Labels, as in the original BERT.


class SentencePair(NamedTuple):
    """Token ids of both parts, and IS_NEXT or IS_RANDOM."""

    first: np.ndarray
    second: np.ndarray
    label: int


def chunks(corpus: TokenizedCorpus, documents: np.ndarray, max_tokens: int) -> np.ndarray:
    """`[N, 3]` int64: document, first sentence, and one past the last sentence of each chunk.

    A chunk has at least `max_tokens` tokens if its document has them, and at least two sentences,
    so that every chunk can be split and the labels stay balanced. A document of one sentence has no
    chunk.
    """
    starts, numbers = corpus.sentences, np.arange(len(documents))
    begin, stop = corpus.documents[documents], corpus.documents[documents + 1]
    rows = [np.zeros((0, 3), np.int64)]
    # Vectorized over documents, one chunk of each per iteration: a corpus has millions of
    # documents, few of them long.
    while len(unfinished := np.flatnonzero(stop - begin >= 2)):
        numbers, begin, stop = numbers[unfinished], begin[unfinished], stop[unfinished]
        end = np.searchsorted(starts, starts[begin] + max_tokens)
        end = np.minimum(np.maximum(end, begin + 2), stop)
        end = np.where(stop - end < 2, stop, end)  # A single sentence cannot be split: it joins.
        rows.append(np.stack([numbers, begin, end], axis=-1))
        begin = end
    found = np.concatenate(rows)
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    found[:, 0] = documents[found[:, 0]]
    return found


def make_pair(
    corpus: TokenizedCorpus,
    documents: np.ndarray,
    chunk: np.ndarray,
    max_tokens: int,
    rng: np.random.Generator,
    short_probability: float = 0.1,
) -> SentencePair:
    """A pair of at least one token each and at most `max_tokens` together.

    Args:
      documents: the documents that a random second part may come from.
      chunk: a row of `chunks`.
      short_probability: how often the pair is truncated to a random shorter length, so that the
        model is also trained on short inputs.
    """
    document, begin, stop = (int(n) for n in chunk)
    if rng.random() < short_probability:
        max_tokens = int(rng.integers(2, max_tokens + 1))
    middle = int(rng.integers(begin + 1, stop))
    first = _text(corpus, begin, middle)
    label = int(rng.integers(2))
    if label == IS_NEXT:
        second = _text(corpus, middle, stop)
    else:
        # As long as the part that it replaces: neither the lengths nor the position of [SEP] may
        # give the label away.
        whole = int(corpus.sentences[stop] - corpus.sentences[begin])
        wanted = max(1, min(whole, max_tokens) - len(first))
        second = _random_text(corpus, documents, document, (begin, stop), wanted, rng)
    first, second = _truncate(first, second, max_tokens, rng)
    return SentencePair(first, second, label)


def _text(corpus: TokenizedCorpus, begin: int, stop: int) -> np.ndarray:
    return corpus.tokens[corpus.sentences[begin] : corpus.sentences[stop]]


def _random_text(
    corpus: TokenizedCorpus,
    documents: np.ndarray,
    document: int,
    own: tuple[int, int],
    wanted: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Sentences of at least `wanted` tokens from a random position of another document.

    If there is no other, from outside the chunk `own`; fewer tokens where the document ends.
    """
    starts = corpus.sentences
    if len(documents) > 1:
        other = int(documents[rng.integers(len(documents) - 1)])
        if other == document:
            other = int(documents[-1])
        low, high = (int(n) for n in corpus.documents[other : other + 2])
        # If the document is long enough, at least `wanted` tokens before its end.
        last = int(np.searchsorted(starts, starts[high] - wanted, side="right")) - 1
        begin = int(rng.integers(low, max(low, min(last, high - 1)) + 1))
    else:
        low, high = (int(n) for n in corpus.documents[document : document + 2])
        outside = high - low - (own[1] - own[0])
        if outside < 1:
            raise ValueError(
                "Next-sentence pairs need a second document, or one longer than an example: this "
                "corpus has a single short one."
            )
        begin = low + int(rng.integers(outside))
        begin += (own[1] - own[0]) if begin >= own[0] else 0
    end = int(np.searchsorted(starts, starts[begin] + wanted))
    return _text(corpus, begin, min(max(end, begin + 1), high))


def _truncate(
    first: np.ndarray, second: np.ndarray, max_tokens: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Truncates the longer part first, then both equally, each at random ends."""
    excess = len(first) + len(second) - max_tokens
    if excess <= 0:
        return first, second
    longer = min(excess, abs(len(first) - len(second)))
    rest = excess - longer
    drops = [rest // 2, rest - rest // 2]
    drops[0 if len(first) > len(second) else 1] += longer
    return _drop(first, drops[0], rng), _drop(second, drops[1], rng)


def _drop(part: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Drops `count` tokens, each from the front or the back at random."""
    front = int(rng.binomial(count, 0.5))
    return part[front : len(part) - (count - front)]
