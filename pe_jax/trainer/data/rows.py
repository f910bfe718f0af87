"""Tokenized inputs of many lengths, and padded batches of them.

A batch takes its rows from one bucket of lengths and is padded to that bucket's length. Batch n is
a pure function of (seed, n): a run that resumes gets the batches of an uninterrupted one. The order
of the batches' lengths is the same for every seed: batches of several seeds have one shape at every
step, and each seed gets the batches that it would get alone.

Shapes: N rows, T tokens of all rows, S seeds, B rows of a batch, L its length.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import grain
import numpy as np

_ORDER_SEED = 20_210_503  # For the order of lengths, the same in every run.


class Rows(NamedTuple):
    """Inputs of one or two texts, concatenated, and their labels."""

    tokens: np.ndarray  # `[T]` int32, special tokens included, without padding.
    # `[N + 1]` int64, index in `tokens` of each input's first token, then T.
    bounds: np.ndarray
    second: np.ndarray  # `[N]` int32, position in the input where token type 1 begins.
    pad: int  # Id of the padding token.
    targets: dict[str, np.ndarray]  # `[N]` each, by their names in a batch.
    # `[T]` int32 each, of the tokens, by their names in a batch, where they are -1 at padding.
    token_targets: Mapping[str, np.ndarray] = MappingProxyType({})

    def sizes(self) -> np.ndarray:
        """`[N]` int64: number of tokens of each row."""
        return np.diff(self.bounds)

    def checksum(self) -> str:
        """The checksum of all inputs and labels."""
        targets = {**self.targets, **self.token_targets}
        content = hashlib.sha256(json.dumps([self.pad, *targets]).encode())
        for array in (self.tokens, self.bounds, self.second, *targets.values()):
            content.update(array.tobytes())
        return content.hexdigest()[:16]


def concatenate(
    inputs: Sequence[np.ndarray],
    second: Sequence[int],
    pad: int,
    targets: dict[str, np.ndarray],
) -> Rows:
    """Return `Rows` of N inputs, each `[n]` int32; `second` and the rest as there."""
    bounds = np.cumsum([0, *map(len, inputs)])
    return Rows(
        np.concatenate(inputs), bounds, np.array(second, np.int32), pad, targets
    )


def pad_rows(rows: Rows, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Return the rows `numbers` `[*B]`, none longer than `length`, as a batch: tokens and
    token_type_ids `[*B, L]` int32, mask `[*B, L]` bool (False at padding), targets `[*B]` and
    `[*B, L]`.
    """
    position = np.arange(length)
    index = rows.bounds[numbers][..., None] + position
    mask = index < rows.bounds[numbers + 1][..., None]
    index = np.minimum(index, len(rows.tokens) - 1)
    tokens = rows.tokens[index]
    is_second = position >= rows.second[numbers][..., None]
    batch = {
        "tokens": np.where(mask, tokens, rows.pad).astype(np.int32),
        "token_type_ids": (is_second & mask).astype(np.int32),
        "mask": mask,
    }
    for name, values in rows.targets.items():
        batch[name] = values[numbers]
    for name, values in rows.token_targets.items():
        batch[name] = np.where(mask, values[index], -1).astype(np.int32)
    return batch


class TrainingBatches:
    """Batches of several seeds, each with its own order: a random access data source for grain.

    An epoch has floor(N / B) batches. Rows that do not fill a batch of their bucket go to the next
    longer one; those that remain in the last are dropped, different ones in each epoch.

    Args:
      rows: the training data.
      lengths: of the buckets, ascending; no row is longer than the last.
      batch_size: B, rows of the global batch of one seed; a multiple of the number of hosts.
      seeds: each step has one batch per seed.
      steps: the number of steps.
      host, hosts: this one, which makes its rows only, and how many there are.

    Raises:
      ValueError: for fewer rows than a batch has.
    """

    def __init__(
        self,
        rows: Rows,
        lengths: Sequence[int],
        batch_size: int,
        seeds: Sequence[int],
        steps: int,
        host: int = 0,
        hosts: int = 1,
    ):
        sizes = rows.sizes()
        if len(sizes) < batch_size:
            raise ValueError(
                f"{len(sizes)} examples are too few for a batch of {batch_size}. Lower "
                "config.data.batch_size."
            )
        self._rows = rows
        self._lengths = lengths
        self._size = batch_size
        self._seeds = seeds
        self._steps = steps
        self._part = slice(host * batch_size // hosts, (host + 1) * batch_size // hosts)
        self._bucket_of = np.searchsorted(lengths, sizes)
        self.steps_per_epoch = len(sizes) // batch_size
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """Return this host's rows of each seed `[S, B, ...]`, as `pad_rows`."""
        epoch, number = divmod(step, self.steps_per_epoch)
        length, numbers = self._epoch(epoch)[number]
        return pad_rows(self._rows, numbers[:, self._part], length)

    def _make_epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Return length and row indices `[S, B]` of each batch."""
        numbers = np.stack([self._make_batches(epoch, seed) for seed in self._seeds], 1)
        # Ascending, the same for every seed.
        filled = np.cumsum(np.bincount(self._bucket_of, minlength=len(self._lengths)))
        batches_of_bucket = np.diff(filled // self._size, prepend=0)
        lengths = np.repeat(self._lengths, batches_of_bucket).tolist()
        order = np.random.default_rng([_ORDER_SEED, epoch]).permutation(len(lengths))
        return [(lengths[n], numbers[n]) for n in order]

    def _make_batches(self, epoch: int, seed: int) -> np.ndarray:
        """Return row indices `[batches, B]` of one seed, buckets ascending."""
        rng = np.random.default_rng([seed, epoch])
        batches = []
        remainder = np.empty(0, np.int64)
        for bucket in range(len(self._lengths)):
            in_bucket = np.flatnonzero(self._bucket_of == bucket)
            pool = np.concatenate([remainder, in_bucket])
            rng.shuffle(pool)
            whole = len(pool) // self._size * self._size
            batches.append(pool[:whole].reshape(-1, self._size))
            remainder = pool[whole:]
        return np.concatenate(batches)


def training_batches(source: TrainingBatches, begin: int = 0) -> grain.IterDataset:
    """Return the batches of `source` from `begin` on, prefetched."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    return grain.MapDataset.source(source)[begin:].to_iter_dataset(options)


def evaluation_batches(
    rows: Rows, lengths: Sequence[int], batch_size: int
) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Return all rows once, ascending in size, each batch padded to the smallest length that fits:
    batches as from `pad_rows`, the last filled up by repeating its last row; and the indices of the
    rows of each, `[n]`, n <= B, without the repeated ones.
    """
    sizes = rows.sizes()
    order = np.argsort(sizes, kind="stable")
    batches = []
    for begin in range(0, len(order), batch_size):
        numbers = order[begin : begin + batch_size]
        length = lengths[int(np.searchsorted(lengths, sizes[numbers[-1]]))]
        filled = np.pad(numbers, (0, batch_size - len(numbers)), mode="edge")
        batches.append((pad_rows(rows, filled, length), numbers))
    return batches
