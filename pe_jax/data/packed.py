"""Text packed into full rows of one length.

The tokens of the documents follow one another and are cut into rows `[CLS] text [SEP]`: a row may
end one document and begin the next. Only the last row of a corpus is padded.

Rows of a masked language model keep documents apart: `[SEP] [CLS]` between two of them, positions
that restart in each, and a number for each, so that attention can stay within it. A document that
a row cuts goes on in the next row as another one.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pe_jax.data.pretraining import mask_words
from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.data.tokenizer import Vocabulary


@dataclasses.dataclass(frozen=True)
class PackedExamples:
    """Rows of one length: a map for grain, from a row's number; see `data.batches`.

    Attributes:
      documents: the documents of `corpus` to pack, in this order.
      length: L, tokens of a row.
      max_predictions: P, the most tokens of a row to predict. 0 masks nothing, and lets documents
        follow one another without anything between them.
      mask_rate: the fraction of tokens to predict.
      stops: `[N]` index of one past each document's last token in the corpus.
      ends: `[N]` number of tokens up to each document's end, over the documents and what is between
        them.
    """

    corpus: TokenizedCorpus
    documents: np.ndarray
    vocabulary: Vocabulary
    length: int
    max_predictions: int = 0
    mask_rate: float = 0.15
    stops: np.ndarray = dataclasses.field(init=False, repr=False)
    ends: np.ndarray = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        starts = self.corpus.sentences[self.corpus.documents]
        sizes = starts[self.documents + 1] - starts[self.documents]
        object.__setattr__(self, "stops", starts[self.documents + 1])
        object.__setattr__(self, "ends", np.cumsum(sizes + self._gap))

    @property
    def _gap(self) -> int:
        """The number of tokens after each document: [SEP], and [CLS] of the next one."""
        return 2 if self.max_predictions else 0

    @property
    def _total(self) -> int:
        return int(self.ends[-1]) - self._gap

    def __len__(self) -> int:
        return -(-self._total // (self.length - 2))

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row.

        Without masks it is the same in every epoch: tokens `[L]` int32, and valid `[L]` bool, False
        at padding.

        With masks it is tokens, some masked; positions `[L]` int32, from 0 in each document;
        documents `[L]` int32, 1 for the first in this row, and 0 at padding; and the targets, see
        `data.batches`.
        """
        begin = number * (self.length - 2)
        text, owner, is_text = self._text(begin, min(begin + self.length - 2, self._total))
        pad = (1, self.length - 1 - len(text))
        tokens = np.pad(text, pad, constant_values=self.vocabulary.pad).astype(np.int32)
        tokens[0], tokens[len(text) + 1] = self.vocabulary.cls, self.vocabulary.sep
        valid = np.arange(self.length) < len(text) + 2
        if not self.max_predictions:
            return {"tokens": tokens, "valid": valid}
        documents = np.where(valid, np.pad(owner, pad, mode="edge") - owner[0] + 1, 0)
        starts = np.searchsorted(documents[valid], documents)
        maskable, most = np.pad(is_text, pad), self.max_predictions
        return {
            **mask_words(tokens, maskable, self.vocabulary, rng, most, self.mask_rate),
            "positions": np.where(valid, np.arange(self.length) - starts, 0).astype(np.int32),
            "documents": documents.astype(np.int32),
        }

    def _text(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens `begin` to `end` over the documents, the index in `documents` of each
        token's document, and False at those between documents."""
        place = np.arange(begin, end)
        owner = np.searchsorted(self.ends, place, side="right")
        left = self.ends[owner] - place  # Tokens up to the document's end, this one included.
        is_text = left > self._gap
        last = self.stops[owner] - 1
        # By slices, which is how shards are read: one of each document.
        parts = np.split(
            np.where(is_text, last + 1 + self._gap - left, last), np.flatnonzero(np.diff(owner)) + 1
        )
        tokens = np.concatenate(
            [self.corpus.tokens[part[0] : part[-1] + 1][part - part[0]] for part in parts]
        )
        between = np.where(left == 2, self.vocabulary.sep, self.vocabulary.cls)
        owner = owner + (~is_text & (left == 1))  # [CLS] is of the next document.
        return np.where(is_text, tokens, between), owner, is_text
