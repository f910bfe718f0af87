"""Batches for pretraining: sentence pairs with masked words, as a grain pipeline.

A chunk is a sequence of consecutive sentences of one document, long enough to fill an example. Each
time a chunk is drawn it is split in two at a random sentence, half of the time its second part is
replaced by text from a random other document, and words are masked (Devlin et al. 2018, section 3.1
and A.2).

Example n of the stream is a pure function of (seed, n): the pair, its random second part and its
masks are redrawn each epoch, and a run that resumes at step n gets the batches of an uninterrupted
one. The iterator's state is one integer, saved with the checkpoint. Each global batch is split into
equal blocks of rows, one per host, so it is the same for any number of hosts.

Shapes: B batch rows of this host, L length, P max_predictions.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import multiprocessing.connection
import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

import grain
import numpy as np

from pe_jax import cpu
from pe_jax.console.terminal import say
from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.data.tokenizer import Vocabulary

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
    chunks: np.ndarray = dataclasses.field(init=False, repr=False)  # See `chunks`.

    def __post_init__(self):
        if self.length < 8:
            raise ValueError(
                "length must be at least 8 tokens, enough for the two parts of a pair, got "
                f"{self.length}."
            )
        rows = chunks(self.corpus, self.documents, self.length - 3)
        if not len(rows):
            raise ValueError(
                "No document of this corpus has two sentences, so no sentence pair can be made. "
                "In text files, a blank line separates documents."
            )
        object.__setattr__(self, "chunks", rows)

    def __len__(self) -> int:
        return len(self.chunks)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return one example: tokens `[CLS] first [SEP] second [SEP]`, masked, and its targets."""
        v, length = self.vocabulary, self.length
        first, second, label = make_pair(
            self.corpus,
            self.documents,
            self.chunks[number],
            length - 3,
            rng,
            self.short_probability,
        )
        separators = np.array([1 + len(first), 2 + len(first) + len(second)])
        tokens = np.full(length, v.pad, np.int32)
        tokens[0] = v.cls
        tokens[1 : separators[0]] = first
        tokens[separators[0] + 1 : separators[1]] = second
        tokens[separators] = v.sep
        position = np.arange(length)
        valid = position <= separators[1]
        maskable = valid & ~np.isin(position, [0, *separators])
        tokens, masked_positions, masked_tokens = mask_words(
            tokens, maskable, v, rng, rate=self.mask_rate, max_predictions=self.max_predictions
        )
        return {
            "tokens": tokens,
            "segments": ((position > separators[0]) & valid).astype(np.int32),
            "valid": valid,
            **padded_predictions(masked_positions, masked_tokens, self.max_predictions),
            "next_sentence": np.int32(label),
        }


class Examples(Protocol):
    """A random map for grain: from the number of an example, and a generator, to its arrays."""

    def __len__(self) -> int: ...

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]: ...


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
    """Return an endless stream of batches, reshuffled each epoch.

    Args:
      begin: number of the first batch.
      batch_size: rows of the global batch, over all hosts.
      host, hosts: index of this host and number of hosts; this host makes its rows only.
      workers: see `in_workers`.

    Returns:
      Dicts of the examples' arrays. Of `PretrainingExamples`: tokens, segments `[B, L]` int32,
      valid `[B, L]` bool, masked_positions, masked_tokens `[B, P]` int32, masked_weights `[B, P]`
      float32 (0 where padded), next_sentence `[B]` int32 (0 is next, 1 is random). Of
      `PackedExamples` with masks: tokens, positions, documents `[B, L]` int32, and the same three
      `[B, P]`.

    Raises:
      ValueError: if the batch is not divisible by the number of hosts.
    """
    if batch_size % hosts:
        raise ValueError(f"batch_size must be a multiple of the {hosts} hosts, got {batch_size}.")
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


# --- sentence pairs -------------------------------------------------------------------------------


def chunks(corpus: TokenizedCorpus, documents: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return `[N, 3]` int64: document, first sentence, and one past the last of each chunk.

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
    table = np.concatenate(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    table[:, 0] = documents[table[:, 0]]
    return table


def make_pair(
    corpus: TokenizedCorpus,
    documents: np.ndarray,
    chunk: np.ndarray,
    max_tokens: int,
    rng: np.random.Generator,
    short_probability: float = 0.1,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw a pair of at least one token each and at most `max_tokens` together.

    Args:
      documents: the documents that a random second part may come from.
      chunk: a row of `chunks`.
      short_probability: how often the pair is truncated to a random shorter length, so that the
        model is also trained on short inputs.

    Returns:
      The token ids of both parts, and IS_NEXT or IS_RANDOM.
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
        size = max(1, min(whole, max_tokens) - len(first))
        second = _random_text(corpus, documents, document, (begin, stop), size, rng)
    # Truncates the longer part first, then both equally, each at random ends.
    excess = len(first) + len(second) - max_tokens
    if excess > 0:
        longer = min(excess, abs(len(first) - len(second)))
        drops = [(excess - longer) // 2, (excess - longer + 1) // 2]
        drops[0 if len(first) > len(second) else 1] += longer
        first, second = _drop(first, drops[0], rng), _drop(second, drops[1], rng)
    return first, second, label


def _text(corpus: TokenizedCorpus, begin: int, stop: int) -> np.ndarray:
    return corpus.tokens[corpus.sentences[begin] : corpus.sentences[stop]]


def _random_text(
    corpus: TokenizedCorpus,
    documents: np.ndarray,
    document: int,
    chunk: tuple[int, int],
    size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw sentences of at least `size` tokens from a random position of another document.

    If there is no other, from outside the `chunk` of sentences; fewer tokens where the document
    ends.
    """
    starts = corpus.sentences
    if len(documents) > 1:
        other = int(documents[rng.integers(len(documents) - 1)])
        if other == document:
            other = int(documents[-1])
        low, high = (int(n) for n in corpus.documents[other : other + 2])
        # If the document is long enough, at least `size` tokens before its end.
        last = int(np.searchsorted(starts, starts[high] - size, side="right")) - 1
        begin = int(rng.integers(low, max(low, min(last, high - 1)) + 1))
    else:
        low, high = (int(n) for n in corpus.documents[document : document + 2])
        outside = high - low - (chunk[1] - chunk[0])
        if outside < 1:
            raise ValueError(
                "Next-sentence pairs need a second document, or one longer than an example. This "
                "corpus has a single short document."
            )
        begin = low + int(rng.integers(outside))
        begin += (chunk[1] - chunk[0]) if begin >= chunk[0] else 0
    end = int(np.searchsorted(starts, starts[begin] + size))
    return _text(corpus, begin, min(max(end, begin + 1), high))


def _drop(part: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Drop `count` tokens, each from the front or the back at random."""
    front = int(rng.binomial(count, 0.5))
    return part[front : len(part) - (count - front)]


# --- masked words ---------------------------------------------------------------------------------


def mask_words(
    tokens: np.ndarray,
    maskable: np.ndarray,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    rate: float = 0.15,
    max_predictions: int = 20,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mask whole words: a fraction `rate` of the maskable tokens, at most `max_predictions`.

    Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay unchanged. A word that
    would exceed the limit is skipped for a shorter one; at least one token is chosen if any word
    fits.

    Args:
      tokens: `[L]` ids.
      maskable: `[L]` bool, False at special tokens and padding.

    Returns:
      Tokens `[L]`, some replaced; the positions of the chosen ones `[n]`, ascending; their true
      ids `[n]`.
    """
    candidates = np.flatnonzero(maskable)
    room = min(max_predictions, max(1, round(rate * len(candidates))))
    # A word begins at a token that does not continue one, or after a gap (a special token).
    begins = ~vocabulary.continues[tokens[candidates]] | (np.diff(candidates, prepend=-2) > 1)
    bounds = np.append(np.flatnonzero(begins), len(candidates))
    chosen: list[np.ndarray] = []
    for word in rng.permutation(len(bounds) - 1):
        size = bounds[word + 1] - bounds[word]
        if size <= room:
            chosen.append(candidates[bounds[word] : bounds[word + 1]])
            room -= size
            if not room:
                break
    positions = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    labels = tokens[positions]
    draw = rng.random(len(positions))
    replaced = np.where(draw < 0.8, vocabulary.mask, labels)
    random = rng.choice(vocabulary.ordinary, len(positions))
    masked = tokens.copy()
    masked[positions] = np.where(draw >= 0.9, random, replaced)
    return masked, positions, labels


def padded_predictions(
    positions: np.ndarray, tokens: np.ndarray, max_predictions: int
) -> dict[str, np.ndarray]:
    """Return masked_positions, masked_tokens `[P]` int32 and masked_weights `[P]` float32, which
    are 0 past the `[n]` that are given."""
    pad = (0, max_predictions - len(positions))
    return {
        "masked_positions": np.pad(positions, pad).astype(np.int32),
        "masked_tokens": np.pad(tokens, pad).astype(np.int32),
        "masked_weights": (np.arange(max_predictions) < len(positions)).astype(np.float32),
    }


# --- worker processes -----------------------------------------------------------------------------


def in_workers(dataset: grain.IterDataset, workers: int) -> Iterable[dict[str, np.ndarray]]:
    """Make the same batches in the same order in worker processes; in threads if `workers` is 0.

    More workers than this machine has cores make nothing faster: a message says how many there are.
    """
    if not workers:
        return dataset
    options = grain.MultiprocessingOptions(num_workers=_limit_to_cores(workers))
    return _FromWorkers(dataset.mp_prefetch(options, worker_init_fn=_end_with_parent))


class _FromWorkers:
    """The batches of worker processes.

    Raises:
      ChildProcessError: while iterating, if one of them is killed.
    """

    def __init__(self, dataset: grain.IterDataset):
        self._dataset = dataset

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        try:
            yield from self._dataset
        except RuntimeError as error:
            if "terminated unexpectedly" not in str(error):  # An error within a worker.
                raise
            code = re.search(r"exit code (-?\d+)", str(error))
            raise ChildProcessError(
                "A process that makes batches was killed (exit code "
                f"{code[1] if code else 'unknown'}), often because memory ran out. Lower "
                "config.data.workers. The same command resumes."
            ) from error


@functools.cache  # One message a process.
def _limit_to_cores(workers: int) -> int:
    cores = cpu.cores()
    if workers > cores:
        say(
            f"config.data.workers={workers} is more than the {cores} core(s) of this process: "
            f"{cores} worker(s) make batches."
        )
    return min(workers, cores)


def _end_with_parent(index: int, count: int) -> None:
    """End this worker once the process that started it has ended, however that ended: killed, it
    cannot tell its workers."""
    del index, count
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
