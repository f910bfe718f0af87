"""Batches for pretraining: sentence pairs with masked words, as a grain pipeline.

A chunk is a sequence of consecutive sentences of one document, long enough to fill an example. Each
time a chunk is drawn it is split in two at a random sentence, half of the time its second part is
replaced by text from a random other document, and words are masked (Devlin et al. 2018, section 3.1
and A.2).

Example n of the stream is a pure function of (seed, n): a run that resumes at step n gets the
batches of an uninterrupted one. Each global batch is split into equal blocks of rows, one per host,
so it is the same for any number of hosts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Protocol

import grain
import numpy as np

from pe_jax.interop.special_tokens import Vocabulary, require_cls
from pe_jax.trainer.data.masking import ElementSpec, mask_words, masked_spec
from pe_jax.trainer.data.tokenized import TokenizedCorpus
from pe_jax.trainer.data.workers import in_workers

IS_NEXT, IS_RANDOM = 0, 1  # Labels, as in the original BERT.


@dataclasses.dataclass(frozen=True)
class PretrainingExamples:
    """Examples of one length: a random map for grain, from a chunk's index and a generator."""

    corpus: TokenizedCorpus
    documents: np.ndarray
    vocabulary: Vocabulary
    length: int
    max_predictions: int
    mask_rate: float = 0.15
    short_probability: float = 0.1

    def __post_init__(self):
        require_cls(self.vocabulary.pair)
        if not len(self.chunks):
            raise ValueError(
                "No document of this corpus has two sentences, so no sentence pair can be made. "
                "In text files, a blank line separates documents."
            )

    @functools.cached_property
    def chunks(self) -> np.ndarray:
        return chunks(self.corpus, self.documents, self._room)

    @staticmethod
    def element_spec(length: int, max_predictions: int) -> ElementSpec:
        """Return shape and dtype of each array of an example: `next_sentence` is IS_NEXT or
        IS_RANDOM, for the others see `mask_words`."""
        return {
            **masked_spec(length, max_predictions),
            "token_type_ids": ((length,), np.int32),
            "mask": ((length,), np.bool_),
            "next_sentence": ((), np.int32),
        }

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def _room(self) -> int:
        """The most tokens of both parts: 3 fewer than the length for BERT's [CLS] and [SEP]."""
        return self.length - self.vocabulary.pair.size

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return an example: tokens such as `[CLS] first [SEP] second [SEP]`, masked; targets."""
        v, template = self.vocabulary, self.vocabulary.pair
        first, second, label = self.pair(number, rng)
        texts = [self.corpus.tokens[part.start : part.stop] for part in (first, second)]
        row = template.join(*(text["id"] for text in texts))
        tokens = np.full(self.length, v.pad, np.int32)
        tokens[: len(row)] = row
        maskable, begins = np.zeros((2, self.length), bool)
        for start, text in zip(
            (len(template.before), template.second_start(len(first))),
            texts,
            strict=True,
        ):
            maskable[start : start + len(text)] = True
            begins[start : start + len(text)] = text["begins"]
            begins[start] = True
        position = np.arange(self.length)
        valid = position < len(row)
        token_type_ids = (position >= template.type_start(len(first), len(row))) & valid
        return {
            **mask_words(
                tokens, begins, maskable, v, rng, self.max_predictions, self.mask_rate
            ),
            "token_type_ids": token_type_ids.astype(np.int32),
            "mask": valid,
            "next_sentence": np.array(label, np.int32),
        }

    def pair(self, number: int, rng: np.random.Generator) -> tuple[range, range, int]:
        """Draw the two parts of a chunk, at least one token each, together as many as fit: where
        they are in the tokens of the corpus, and IS_NEXT or IS_RANDOM."""
        document, begin, stop = self.chunks[number].tolist()
        max_tokens = self._room
        if rng.random() < self.short_probability:
            max_tokens = int(rng.integers(2, max_tokens + 1))
        middle = int(rng.integers(begin + 1, stop))
        first = self._text(begin, middle)
        label = int(rng.integers(2))
        if label == IS_NEXT:
            second = self._text(middle, stop)
        else:
            # As long as the part that it replaces, so that the lengths do not tell the label.
            whole = int(self.corpus.sentences[stop] - self.corpus.sentences[begin])
            size = max(1, min(whole, max_tokens) - len(first))
            second = self._random_text(document, begin, stop, size, rng)
        # Truncates the longer part first, then both equally, each at random ends.
        excess = len(first) + len(second) - max_tokens
        if excess > 0:
            longer = min(excess, abs(len(first) - len(second)))
            drops = [(excess - longer) // 2, (excess - longer + 1) // 2]
            drops[0 if len(first) > len(second) else 1] += longer
            first, second = _drop(first, drops[0], rng), _drop(second, drops[1], rng)
        return first, second, label

    def _text(self, begin: int, stop: int) -> range:
        """Return where the tokens of sentences `begin` to `stop` are."""
        return range(*self.corpus.sentences[[begin, stop]].tolist())

    def _random_text(
        self, document: int, begin: int, stop: int, size: int, rng: np.random.Generator
    ) -> range:
        """Draw sentences of at least `size` tokens, fewer where a document ends, at random from
        another document, or where there is none from outside the chunk."""
        starts, others = self.corpus.sentences, self.documents
        if len(others) > 1:
            other = int(others[rng.integers(len(others) - 1)])
            if other == document:
                other = int(others[-1])
            low, high = self.corpus.documents[other : other + 2].tolist()
            # If the document is long enough, at least `size` tokens before its end.
            last = int(np.searchsorted(starts, starts[high] - size, side="right")) - 1
            first = int(rng.integers(low, max(low, min(last, high - 1)) + 1))
        else:
            low, high = self.corpus.documents[document : document + 2].tolist()
            outside = high - low - (stop - begin)
            if outside < 1:
                raise ValueError(
                    "Next-sentence pairs need a second document, or one longer than an example. "
                    "This corpus has a single short document."
                )
            first = low + int(rng.integers(outside))
            first += (stop - begin) if first >= begin else 0
        end = int(np.searchsorted(starts, starts[first] + size))
        return self._text(first, min(max(end, first + 1), high))


class Examples(Protocol):
    """A random map for grain: from the number of an example, and a generator, to its arrays."""

    def __len__(self) -> int: ...

    def __call__(
        self, number: int, rng: np.random.Generator
    ) -> dict[str, np.ndarray]: ...


def batches(
    examples: Examples,
    begin: int = 0,
    *,
    batch_size: int,
    seed: int,
    host: int = 0,
    hosts: int = 1,
    workers: int = 0,
) -> Iterable[dict[str, np.ndarray]]:
    """Return an endless stream of batches, dicts of arrays `[B, ...]`, reshuffled each epoch.

    Args:
      begin: number of the first batch.
      batch_size: rows of the global batch, over all hosts; a multiple of their number.
      host, hosts: this one, which makes its rows only, and how many there are.
      workers: processes, see `in_workers`.
    """
    dataset = (
        grain.MapDataset.range(len(examples))
        .seed(seed)
        .shuffle()
        .repeat()
        .random_map(examples)
        .batch(batch_size // hosts, drop_remainder=True)[host::hosts][begin:]
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
    )
    return in_workers(dataset, workers)


def chunks(
    corpus: TokenizedCorpus, documents: np.ndarray, max_tokens: int
) -> np.ndarray:
    """Return `[N, 3]` int64: document, first sentence, and one past the last of each chunk.

    A chunk has at least `max_tokens` tokens if its document has them, and at least two sentences,
    so that every chunk can be split and the labels stay balanced.
    """
    starts, numbers = corpus.sentences, np.arange(len(documents))
    begin, stop = corpus.documents[documents], corpus.documents[documents + 1]
    rows = [np.zeros((0, 3), np.int64)]
    # One chunk of each document per iteration: there are millions of documents, few are long.
    while len(unfinished := np.flatnonzero(stop - begin >= 2)):
        numbers, begin, stop = numbers[unfinished], begin[unfinished], stop[unfinished]
        end = np.searchsorted(starts, starts[begin] + max_tokens)
        end = np.minimum(np.maximum(end, begin + 2), stop)
        end = np.where(
            stop - end < 2, stop, end
        )  # A single sentence cannot be split: it joins.
        rows.append(np.stack([numbers, begin, end], axis=-1))
        begin = end
    table = np.concatenate(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    table[:, 0] = documents[table[:, 0]]
    return table


def _drop(part: range, count: int, rng: np.random.Generator) -> range:
    """Drop `count` tokens, each from the front or the back at random."""
    front = int(rng.binomial(count, 0.5))
    return part[front : len(part) - (count - front)]
