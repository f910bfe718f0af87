"""Text packed into full rows of one length.

The tokens of the documents follow one another and are cut into rows `[CLS] text [SEP]`, or what the
tokenizer puts around a text. Only the last row of a corpus is padded. Rows of a masked language
model keep documents apart: `[SEP] [CLS]` between two of them, positions that restart in each, and a
number for each, so that attention can stay within it.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from pe_jax.interop.special_tokens import Vocabulary
from pe_jax.trainer.data.masking import ElementSpec, mask_words, masked_spec
from pe_jax.trainer.data.tokenized import TokenizedCorpus


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
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """`[N]` end of each document in the corpus, and in the tokens of all documents and gaps."""
        starts = self.corpus.sentences[self.corpus.documents]
        stops = starts[self.documents + 1]
        return stops, np.cumsum(stops - starts[self.documents] + len(self._gap))

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
        return int(self._ends[1][-1]) - len(self._gap)

    def __len__(self) -> int:
        return -(-self._total // self._room)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row, arrays `[L]`.

        With masks: int32 positions, from 0 in each document; int32 document_ids, 1 for the first in
        this row, 0 at padding; and what `mask_words` returns. Without: int32 tokens; bool valid,
        False at padding; and bool begins, True where a word begins.
        """
        begin, template = number * self._room, self.vocabulary.single
        text, begins, owner, is_text = self._text(
            begin, min(begin + self._room, self._total)
        )
        row = template.join(text)
        tokens = np.full(self.length, self.vocabulary.pad, np.int32)
        tokens[: len(row)] = row
        valid = np.arange(self.length) < len(row)
        pad = (len(template.before), self.length - len(template.before) - len(text))
        if not self.max_predictions:
            return {"tokens": tokens, "mask": valid, "begins": np.pad(begins, pad)}
        document_ids = np.where(
            valid, np.pad(owner, pad, mode="edge") - owner[0] + 1, 0
        )
        starts = np.searchsorted(document_ids[valid], document_ids)
        words = (np.pad(begins, pad), np.pad(is_text, pad), self.vocabulary)
        return {
            **mask_words(tokens, *words, rng, self.max_predictions, self.mask_rate),
            "positions": np.where(valid, np.arange(self.length) - starts, 0).astype(
                np.int32
            ),
            "document_ids": document_ids.astype(np.int32),
        }

    def _text(
        self, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens `begin` to `end` over the documents: their ids, True where they begin a
        word, the index in `documents` of each one's document, and False between documents."""
        gap, (stops, ends) = self._gap, self._ends
        place = np.arange(begin, end)
        owner = np.searchsorted(ends, place, side="right")
        left = (
            ends[owner] - place
        )  # Tokens up to the document's end, this one included.
        is_text = left > len(gap)
        last = stops[owner] - 1
        # By slices, which is how shards are read: one of each document.
        parts = np.split(
            np.where(is_text, last + 1 + len(gap) - left, last),
            np.flatnonzero(np.diff(owner)) + 1,
        )
        tokens = np.concatenate(
            [
                self.corpus.tokens[part[0] : part[-1] + 1][part - part[0]]
                for part in parts
            ]
        )
        ids = tokens["id"].astype(np.int32)
        ids[~is_text] = gap[(len(gap) - left)[~is_text]]
        # [CLS] is of the next document.
        owner = owner + (~is_text & (left <= len(self.vocabulary.single.before)))
        return ids, tokens["begins"], owner, is_text
