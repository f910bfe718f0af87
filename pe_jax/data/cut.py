"""Rows of text that are cut into inputs of many lengths.

In a model that has only seen full rows, a token near a row's end can tell its position from it. An
input of another length, such as a question with its paragraph, is then read wrongly.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from pe_jax.data.packed import PackedExamples

_SHORTEST = 8  # Tokens of an input, [CLS] and [SEP] included.


@dataclasses.dataclass(frozen=True)
class CutExamples:
    """Rows of one length: a random map for grain, from a row's number and a generator.

    Half of the rows are one input. The others are cut into inputs of random lengths, from 8 tokens
    on. Half of the inputs are a pair, `[CLS] first [SEP] second [SEP]`, split at a random place.
    The special tokens replace those of the text.

    Attributes:
      rows: without masks.
    """

    rows: PackedExamples

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row: tokens; segments, 1 in the second part of a pair; documents, which are 1
        in the first input of the row and 0 at padding; each `[L]` int32."""
        row = self.rows(number, rng)
        tokens, size = row["tokens"].copy(), int(row["valid"].sum())
        words = self.rows.vocabulary
        segments, documents = np.zeros_like(tokens), np.zeros_like(tokens)
        bounds = _bounds(size, self.rows.length, rng)
        for document, (begin, end) in enumerate(itertools.pairwise(bounds), 1):
            tokens[begin], tokens[end - 1] = words.cls, words.sep
            documents[begin:end] = document
            if end - begin >= _SHORTEST and rng.random() < 0.5:
                split = rng.integers(begin + 2, end - 2)
                tokens[split] = words.sep
                segments[split + 1 : end] = 1
        return {"tokens": tokens, "segments": segments, "documents": documents}


def _bounds(size: int, length: int, rng: np.random.Generator) -> list[int]:
    """Return where each input of a row of `size` tokens begins, and `size`."""
    bounds = [0]
    if rng.random() < 0.5:
        while (place := bounds[-1] + int(rng.integers(_SHORTEST, length + 1))) <= size - _SHORTEST:
            bounds.append(place)
    return [*bounds, size]
