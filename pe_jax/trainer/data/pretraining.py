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
    """Examples of one length: a random map for grain, from a chunk's index and a generator.

    Attributes:
      documents: the documents of `corpus` to take chunks from.
      length: L, tokens of an example.
      max_predictions: P, the most tokens of an example to predict.
      mask_rate: the fraction of tokens to predict.
      short_probability: the fraction of examples that are cut to a random size.

    Raises:
      ValueError: if no document has two sentences, or the tokenizer has no [CLS].
    """

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
        template = self.vocabulary.pair
        first_place, second_place, label = self.pair(number, rng)
        first = self.corpus.tokens[first_place.start : first_place.stop]
        second = self.corpus.tokens[second_place.start : second_place.stop]
        row = template.join(first["id"], second["id"])
        tokens = np.full(self.length, self.vocabulary.pad, np.int32)
        tokens[: len(row)] = row
        maskable = np.zeros(self.length, bool)
        begins = np.zeros(self.length, bool)
        starts = (len(template.before), template.second_start(len(first)))
        for start, text in zip(starts, (first, second), strict=True):
            stop = start + len(text)
            maskable[start:stop] = True
            begins[start:stop] = text["begins"]
            begins[start] = True
        position = np.arange(self.length)
        is_token = position < len(row)
        is_second = position >= template.type_start(len(first), len(row))
        masked = mask_words(
            tokens,
            begins,
            maskable,
            vocabulary=self.vocabulary,
            rng=rng,
            max_predictions=self.max_predictions,
            rate=self.mask_rate,
        )
        return {
            **masked,
            "token_type_ids": (is_second & is_token).astype(np.int32),
            "mask": is_token,
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
            # As long as the part that it replaces: neither the lengths nor the place of [SEP] may
            # tell the label.
            whole = int(self.corpus.sentences[stop] - self.corpus.sentences[begin])
            size = max(1, min(whole, max_tokens) - len(first))
            second = self._random_text(document, begin, stop, size, rng)
        # Truncates the longer part first, then both equally, each at random ends.
        excess = len(first) + len(second) - max_tokens
        if excess > 0:
            longer = min(excess, abs(len(first) - len(second)))
            drop_first = (excess - longer) // 2
            drop_second = excess - longer - drop_first
            if len(first) > len(second):
                drop_first += longer
            else:
                drop_second += longer
            first = _drop(first, drop_first, rng)
            second = _drop(second, drop_second, rng)
        return first, second, label

    def _text(self, begin: int, stop: int) -> range:
        """Return where the tokens of sentences `begin` to `stop` are."""
        return range(*self.corpus.sentences[[begin, stop]].tolist())

    def _random_text(
        self, document: int, begin: int, stop: int, size: int, rng: np.random.Generator
    ) -> range:
        """Draw sentences of at least `size` tokens, fewer where a document ends, at random from
        another document, or where there is none from outside the chunk."""
        starts = self.corpus.sentences
        if len(self.documents) > 1:
            other = int(self.documents[rng.integers(len(self.documents) - 1)])
            if other == document:
                other = int(self.documents[-1])
            low, high = self.corpus.documents[other : other + 2].tolist()
            # If the document is long enough, at least `size` tokens before its end.
            last = int(np.searchsorted(starts, starts[high] - size, side="right")) - 1
            first = int(rng.integers(low, max(low, min(last, high - 1)) + 1))
        else:
            low, high = self.corpus.documents[document : document + 2].tolist()
            inside = stop - begin
            outside = high - low - inside
            if outside < 1:
                raise ValueError(
                    "Next-sentence pairs need a second document, or one longer than an example. "
                    "This corpus has a single short document."
                )
            first = low + int(rng.integers(outside))
            if first >= begin:
                first += inside
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

    Raises:
      ChildProcessError: while it is read, if a worker process is killed.
    """
    dataset = grain.MapDataset.range(len(examples)).seed(seed)
    dataset = dataset.shuffle().repeat().random_map(examples)
    blocks = dataset.batch(batch_size // hosts, drop_remainder=True)
    host_batches = blocks[host::hosts][begin:]
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    return in_workers(host_batches.to_iter_dataset(options), workers)


def chunks(
    corpus: TokenizedCorpus, documents: np.ndarray, max_tokens: int
) -> np.ndarray:
    """Return `[N, 3]` int64: document, first sentence, and one past the last of each chunk.

    A chunk has at least `max_tokens` tokens if its document has them, and at least two sentences,
    so that every chunk can be split and the labels stay balanced.
    """
    starts = corpus.sentences
    numbers = np.arange(len(documents))
    begin = corpus.documents[documents]
    stop = corpus.documents[documents + 1]
    rows = [np.zeros((0, 3), np.int64)]
    # One chunk of each document per iteration: there are millions of documents, few are long.
    unfinished = stop - begin >= 2
    while unfinished.any():
        numbers = numbers[unfinished]
        begin = begin[unfinished]
        stop = stop[unfinished]
        end = np.searchsorted(starts, starts[begin] + max_tokens)
        end = np.clip(end, begin + 2, stop)
        # A single sentence cannot be split: it joins.
        end = np.where(stop - end < 2, stop, end)
        rows.append(np.stack([numbers, begin, end], axis=-1))
        begin = end
        unfinished = stop - begin >= 2
    table = np.concatenate(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    table[:, 0] = documents[table[:, 0]]
    return table


def _drop(part: range, count: int, rng: np.random.Generator) -> range:
    """Drop `count` tokens, each from the front or the back at random."""
    front = int(rng.binomial(count, 0.5))
    return part[front : len(part) - (count - front)]
