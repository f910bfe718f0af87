"""Text packed into full rows, for training that masks nothing.

The tokens of the documents follow one another, and are cut into rows `[CLS] text [SEP]` of one
length: a row may end one document and begin the next. Only the last row of a corpus is padded.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.data.tokenizer import Vocabulary


@dataclasses.dataclass(frozen=True)
class PackedExamples:
    """Rows of one length: a map for grain, from a row's number; see `data.batches`.

    Attributes:
      documents: the documents of `corpus` to pack, in this order.
      length: L, tokens of a row.
      begins: `[N]` index of each document's first token in the corpus.
      ends: `[N]` number of tokens up to each document's end, over the documents.
    """

    corpus: TokenizedCorpus
    documents: np.ndarray
    vocabulary: Vocabulary
    length: int
    begins: np.ndarray = dataclasses.field(init=False, repr=False)
    ends: np.ndarray = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        if self.length < 3:
            raise ValueError(
                f"length must be at least 3 (a token between [CLS] and [SEP]), got {self.length}."
            )
        starts = self.corpus.sentences[self.corpus.documents]
        sizes = starts[self.documents + 1] - starts[self.documents]
        if not sizes.sum():
            raise ValueError("The documents have no token. Give other text.")
        object.__setattr__(self, "begins", starts[self.documents])
        object.__setattr__(self, "ends", np.cumsum(sizes))

    def __len__(self) -> int:
        return -(-int(self.ends[-1]) // (self.length - 2))

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row: tokens `[L]` int32, and valid `[L]` bool, False at padding.

        Args:
          rng: not used; a row is the same in every epoch.
        """
        del rng
        text = self._text(number * (self.length - 2), self.length - 2)
        tokens = np.full(self.length, self.vocabulary.pad, np.int32)
        tokens[0] = self.vocabulary.cls
        tokens[1 : len(text) + 1] = text
        tokens[len(text) + 1] = self.vocabulary.sep
        return {"tokens": tokens, "valid": np.arange(self.length) < len(text) + 2}

    def _text(self, begin: int, size: int) -> np.ndarray:
        """Return tokens `begin` to `begin + size` over the documents, fewer at their end."""
        end = min(begin + size, int(self.ends[-1]))
        first, last = np.searchsorted(self.ends, [begin, end - 1], side="right")
        parts = []
        for document in range(first, last + 1):
            before = int(self.ends[document - 1]) if document else 0
            shift = int(self.begins[document]) - before
            stop = min(end, int(self.ends[document]))
            parts.append(self.corpus.tokens[max(begin, before) + shift : stop + shift])
        return np.concatenate(parts)
