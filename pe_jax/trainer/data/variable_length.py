"""Rows of text that are cut into inputs of many lengths.

In a model that has only seen full rows, a token near a row's end can tell its position from it. An
input of another length, such as a question with its paragraph, is then read wrongly.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from pe_jax.properties.shuffling import shuffled_order
from pe_jax.trainer.data.masking import ElementSpec
from pe_jax.trainer.data.packed import PackedExamples
from pe_jax.trainer.data.teacher_windows import teacher_windows, window_spec

# Tokens of an input, special ones included; at least two of them are text.
_SHORTEST = 8


@dataclasses.dataclass(frozen=True)
class VariableLengthExamples:
    """Rows of one length, half of which are cut into inputs of random lengths, from 8 tokens on.

    Half of these are a pair, such as `[CLS] first [SEP] second [SEP]`, split at a random place. The
    special tokens replace those of the text.

    Attributes:
      rows: without masks.
      window: tokens of the windows of longer rows, see `teacher_windows`; 0 for none.
      shuffle: whether each row also has a random order of the words of its inputs.
    """

    rows: PackedExamples
    window: int = 0
    shuffle: bool = False

    @staticmethod
    def element_spec(
        length: int, window: int = 0, shuffle: bool = False
    ) -> ElementSpec:
        """Return shape and dtype of each array of a row."""
        row = ((length,), np.int32)
        arrays: ElementSpec = {
            "tokens": row,
            "token_type_ids": row,
            "document_ids": row,
            "text": ((length,), np.bool_),
        }
        if 0 < window < length:
            arrays |= window_spec(length, window)
        if shuffle:
            arrays["order"] = row
        return arrays

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a row, arrays `[L]`, int32 but for `text`:

        - tokens;
        - token_type_ids, 1 in the second part of a pair, if the tokenizer has types;
        - document_ids, 1 in the first input of the row and 0 at padding;
        - bool text, False at special tokens and padding;
        - those of `teacher_windows`, if there is a window;
        - order, if rows are shuffled: the shuffled row has at place i the row's token at
          `order[i]`. Words stay in their part of an input.
        """
        row = self.rows(number, rng)
        tokens = row["tokens"].copy()
        size = int(row["mask"].sum())
        vocabulary = self.rows.vocabulary
        # Of an input, if its row is not shorter.
        shortest = max(_SHORTEST, 2 + vocabulary.pair.size)
        token_type_ids = np.zeros_like(tokens)
        document_ids = np.zeros_like(tokens)
        is_text = np.zeros_like(row["mask"])
        bounds = _bounds(size, self.rows.length, shortest, rng)
        for document, (begin, end) in enumerate(itertools.pairwise(bounds), 1):
            document_ids[begin:end] = document
            is_pair = end - begin >= shortest and rng.random() < 0.5
            template = vocabulary.pair if is_pair else vocabulary.single
            first = begin + len(template.before)
            stop = end - len(template.after)
            tokens[begin:first] = template.before
            tokens[stop:end] = template.after
            is_text[first:stop] = True
            if is_pair:
                between = len(template.between)
                split = int(rng.integers(first + 1, stop - between))
                tokens[split : split + between] = template.between
                is_text[split : split + between] = False
                type_start = template.type_start(split - first, end - begin)
                token_type_ids[begin + type_start : end] = 1
        arrays = {
            "tokens": tokens,
            "token_type_ids": token_type_ids,
            "document_ids": document_ids,
            "text": is_text,
        }
        if 0 < self.window < len(tokens):
            arrays |= teacher_windows(document_ids, self.window)
        if self.shuffle:
            arrays["order"] = _order(row["begins"], document_ids, is_text, rng)
        return arrays


def _order(
    begins: np.ndarray,
    document_ids: np.ndarray,
    is_text: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return an order of a row's tokens that shuffles the words of each part of an input."""
    order = np.arange(len(begins), dtype=np.int32)
    bounds = np.flatnonzero((np.diff(document_ids) != 0) | (np.diff(is_text) != 0)) + 1
    for part in np.split(order, bounds):  # Views.
        if is_text[part[0]]:
            part[:] = part[shuffled_order(begins[part], rng)]
    return order


def _bounds(
    size: int, length: int, shortest: int, rng: np.random.Generator
) -> list[int]:
    """Return where each input of a row of `size` tokens begins, and `size`."""
    bounds = [0]
    if rng.random() < 0.5:
        begin = int(rng.integers(shortest, length + 1))
        while begin <= size - shortest:
            bounds.append(begin)
            begin += int(rng.integers(shortest, length + 1))
    return [*bounds, size]
