"""Batches for pretraining, as a grain pipeline.

Example n of the stream is a pure function of (seed, n): the pair, its random second part and its
masks are redrawn each epoch, and a run that resumes at step n gets the batches of an uninterrupted
one. The iterator's state is one integer, saved with the checkpoint. Each global batch is split into
equal blocks of rows, one per host, so it is the same for any number of hosts.

Shapes: B batch rows of this host, L length, P max_predictions.
"""

from __future__ import annotations

import dataclasses

import grain
import numpy as np

from pe_jax.data.masking import mask_words
from pe_jax.data.pairs import chunks, make_pair
from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.data.tokenizer import Vocabulary
from pe_jax.data.workers import in_workers


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
    chunks: np.ndarray = dataclasses.field(init=False, repr=False)  # See `pairs.chunks`.

    def __post_init__(self):
        if self.length < 8:
            raise ValueError(
                f"Sequences need room for two parts: at least 8 tokens, got length {self.length}."
            )
        rows = chunks(self.corpus, self.documents, self.length - 3)
        if not len(rows):
            raise ValueError(
                "No document of this corpus has two sentences, so no sentence pair can be made; "
                "text files separate documents by blank lines."
            )
        object.__setattr__(self, "chunks", rows)

    def __len__(self) -> int:
        return len(self.chunks)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """One example: tokens `[CLS] first [SEP] second [SEP]`, masked, and its targets."""
        v, length = self.vocabulary, self.length
        first, second, label = make_pair(
            self.corpus,
            self.documents,
            self.chunks[number],
            length - 3,
            rng,
            self.short_probability,
        )
        ends = np.array(
            [1 + len(first), 2 + len(first) + len(second)]
        )  # The positions of the two [SEP].
        tokens = np.full(length, v.pad, np.int32)
        tokens[0] = v.cls
        tokens[1 : ends[0]] = first
        tokens[ends[0] + 1 : ends[1]] = second
        tokens[ends] = v.sep
        position = np.arange(length)
        valid = position <= ends[1]
        special = np.isin(position, [0, *ends])
        masked = mask_words(
            tokens,
            valid & ~special,
            v,
            rng,
            rate=self.mask_rate,
            max_predictions=self.max_predictions,
        )
        used = len(masked.positions)
        pad = (0, self.max_predictions - used)
        return {
            "tokens": masked.tokens,
            "segments": ((position > ends[0]) & valid).astype(np.int32),
            "valid": valid,
            "masked_positions": np.pad(masked.positions, pad).astype(np.int32),
            "masked_tokens": np.pad(masked.labels, pad).astype(np.int32),
            "masked_weights": (np.arange(self.max_predictions) < used).astype(np.float32),
            "next_sentence": np.int32(label),
        }


def batches(
    examples: PretrainingExamples,
    *,
    batch_size: int,
    seed: int,
    host: int = 0,
    hosts: int = 1,
    workers: int = 0,
) -> grain.IterDataset:
    """An endless stream of batches, reshuffled each epoch.

    Args:
      batch_size: rows of the global batch, over all hosts.
      host, hosts: index of this host and number of hosts; this host makes its rows only.
      workers: see `in_workers`.

    Returns:
      A grain dataset of dicts: tokens, segments `[B, L]` int32, valid `[B, L]` bool,
      masked_positions, masked_tokens `[B, P]` int32, masked_weights `[B, P]` float32 (0 where
      padded), next_sentence `[B]` int32 (0 is next, 1 is random).

    Raises:
      ValueError: if the batch is not divisible by the number of hosts.
    """
    if batch_size % hosts:
        raise ValueError(f"A batch of {batch_size} rows does not divide among {hosts} hosts.")
    dataset = (
        grain.MapDataset.range(len(examples))
        .seed(seed)
        .shuffle()
        .repeat()
        .random_map(examples)
        .batch(batch_size // hosts, drop_remainder=True)[host::hosts]
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
    )
    return in_workers(dataset, workers)
