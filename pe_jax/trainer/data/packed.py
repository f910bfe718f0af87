"""Text packed into full rows of one length.

The tokens of the documents follow one another and are cut into rows `[CLS] text [SEP]`, or what the
tokenizer puts around a text. Only the last row of a corpus is padded. Rows of a masked language
model keep documents apart: `[SEP] [CLS]` between two of them, positions that restart in each, and a
number for each, so that attention can stay within it.

A row may end in the middle of a document. The next row continues it as another document, with
positions from 0, since attention cannot reach what another row holds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from pe_jax.interop.special_tokens import Vocabulary
from pe_jax.trainer.data.masking import ElementSpec, mask_words, masked_spec
from pe_jax.trainer.data.tokenized import TokenizedCorpus


class _Text(NamedTuple):
    """Consecutive tokens of the documents and of the special tokens between them, `[n]` each."""

    ids: np.ndarray  # int32.
    begins: np.ndarray  # bool, True where a word begins.
    owner: np.ndarray  # The index in `documents` of each token's document.
    is_text: np.ndarray  # bool, False between documents.


@dataclasses.dataclass(frozen=True)
class PackedExamples:
    """Rows of one length: a map for grain, from a row's number; see `data.batches`.

    Attributes:
      documents: the documents of `corpus` to pack, in this order.
      length: L, tokens of a row.
      max_predictions: P, the most tokens of a row to predict. 0 masks nothing, and lets documents
        follow one another without anything between them.
      mask_rate: the fraction of tokens to predict.
    """

    corpus: TokenizedCorpus
    documents: np.ndarray
    vocabulary: Vocabulary
    length: int
    max_predictions: int = 0
    mask_rate: float = 0.15

    @functools.cached_property
    def _stops(self) -> np.ndarray:
        """`[N]` one past each document's last token in the corpus."""
        return self.corpus.sentences[self.corpus.documents[self.documents + 1]]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """`[N]` the end of each document, and of the gap after it, in the tokens of all rows."""
        starts = self.corpus.sentences[self.corpus.documents[self.documents]]
        return np.cumsum(self._stops - starts + len(self._gap))

    @staticmethod
    def element_spec(length: int, max_predictions: int) -> ElementSpec:
        """Return shape and dtype of each array of a row with masks."""
        row = ((length,), np.int32)
        return {
            **masked_spec(length, max_predictions),
            "positions": row,
            "document_ids": row,
        }

    @property
    def _gap(self) -> np.ndarray:
        """The tokens after each document: with masks, [SEP], and [CLS] of the next one."""
        template = self.vocabulary.single
        gap = np.concatenate([template.after, template.before])
        return gap if self.max_predictions else gap[:0]

    @property
    def _room(self) -> int:
        return self.length - self.vocabulary.single.size

    @property
    def _total(self) -> int:
        return int(self._ends[-1]) - len(self._gap)

    def __len__(self) -> int:
        return -(-self._total // self._room)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row, arrays `[L]`.

        With masks: int32 positions, from 0 in each document; int32 document_ids, 1 for the first in
        this row, 0 at padding; and what `mask_words` returns. Without: int32 tokens; bool mask,
        False at padding; and bool begins, True where a word begins.
        """
        template = self.vocabulary.single
        begin = number * self._room
        text = self._text(begin, min(begin + self._room, self._total))
        row = template.join(text.ids)
        tokens = np.full(self.length, self.vocabulary.pad, np.int32)
        tokens[: len(row)] = row
        is_token = np.arange(self.length) < len(row)
        pad = (len(template.before), self.length - len(template.before) - len(text.ids))
        begins = np.pad(text.begins, pad)
        if not self.max_predictions:
            return {"tokens": tokens, "mask": is_token, "begins": begins}
        owner = np.pad(text.owner, pad, mode="edge")  # [CLS] is of the first document.
        document_ids = np.where(is_token, owner - text.owner[0] + 1, 0)
        starts = np.searchsorted(document_ids[is_token], document_ids)
        positions = np.where(is_token, np.arange(self.length) - starts, 0)
        masked = mask_words(
            tokens,
            begins,
            maskable=np.pad(text.is_text, pad),
            vocabulary=self.vocabulary,
            rng=rng,
            max_predictions=self.max_predictions,
            rate=self.mask_rate,
        )
        return {
            **masked,
            "positions": positions.astype(np.int32),
            "document_ids": document_ids.astype(np.int32),
        }

    def _text(self, begin: int, end: int) -> _Text:
        """Return the tokens `begin` to `end` of all documents and the gaps after them."""
        gap = self._gap
        place = np.arange(begin, end)
        owner = np.searchsorted(self._ends, place, side="right")
        left = self._ends[owner] - place  # Tokens to the end of the gap, with this one.
        is_text = left > len(gap)
        # In a gap, the last token of its document stands in for the special ones, set below.
        to_stop = np.where(is_text, left - len(gap), 1)
        tokens = self.corpus.tokens[self._stops[owner] - to_stop]
        ids = tokens["id"].astype(np.int32)
        ids[~is_text] = gap[len(gap) - left[~is_text]]
        # The last part of a gap is the [CLS] of the next document.
        is_next = ~is_text & (left <= len(self.vocabulary.single.before))
        return _Text(ids, tokens["begins"], owner + is_next, is_text)
