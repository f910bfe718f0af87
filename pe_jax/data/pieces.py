"""Pieces of a corpus that are as long as an input."""

from __future__ import annotations

import numpy as np

from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.shapes import Bool, Int


def pieces(
    corpus: TokenizedCorpus, documents: np.ndarray, count: int, size: int
) -> tuple[Int[np.ndarray, "N S"], Bool[np.ndarray, "2 N S"]]:
    """Return evenly spread pieces of `size` tokens, each within a document: all that there are, or
    `count` of them.

    Returns:
      Their ids, without special tokens, and where words and where sentences begin.
    """
    starts = corpus.sentences[corpus.documents]
    first, last = starts[documents], starts[documents + 1]
    whole = (last - first) // size
    number = np.concatenate([np.arange(n) for n in whole])
    begin = np.repeat(first, whole) + size * number
    chosen = begin[np.linspace(0, len(begin) - 1, min(count, len(begin))).round().astype(int)]
    places = chosen[:, None] + np.arange(size)
    tokens, begins_sentence = corpus.tokens[places], np.isin(places, corpus.sentences)
    return tokens["id"], np.stack([tokens["begins"], begins_sentence])
