"""Special tokens around one text or two, as the post-processor of a tokenizer puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer


class Template(NamedTuple):
    """The special tokens, int32, of a row: `before`, text, `after`; or `before`, first, `between`,
    second, `after`.

    `second` is where token type 1 begins in a pair, relative to its second text: at most 0. None:
    every token is of type 0, as in RoBERTa.
    """

    before: np.ndarray
    between: np.ndarray
    after: np.ndarray
    second: int | None

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Return a row of one text, `[n]` ids, or two: int32."""
        texts = (first,) if second is None else (first, self.between, second)
        return np.concatenate([self.before, *texts, self.after], dtype=np.int32)

    def second_start(self, first: int) -> int:
        """Return where the second text begins if the first has `first` tokens."""
        return len(self.before) + first + len(self.between)

    def type_start(self, first: int, size: int) -> int:
        """Return where token type 1 begins in a row of `size` tokens; `size` if nowhere."""
        return size if self.second is None else self.second_start(first) + self.second


def require_cls(template: Template) -> Template:
    """Return the template; ValueError if it begins with the text, not with a token as [CLS]."""
    if not len(template.before):
        raise ValueError(
            "tokenizer: its post-processor puts no special token before a text, but next-sentence "
            "prediction, classification and answers need one, such as [CLS]. Give a tokenizer.json "
            "whose post-processor adds it."
        )
    return template


def bert_template(cls: Sequence[int], sep: Sequence[int], *, pair: bool) -> Template:
    """Return `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]` of two types."""
    before, after = np.array(cls, np.int32), np.array(sep, np.int32)
    return Template(before, after if pair else after[:0], after, 0 if pair else None)


def post_processor_template(tokenizer: Tokenizer, *, pair: bool) -> Template:
    """Return what the post-processor does to a text, or to two.

    Raises:
      ValueError: if the second text comes first, or types do not go from 0 to 1.
    """
    probe = _probe(tokenizer)
    encoding = tokenizer.encode(probe, probe) if pair else tokenizer.encode(probe)
    owner = np.array([-1 if n is None else n for n in encoding.sequence_ids])
    ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids)
    if ids.max() >= tokenizer.get_vocab_size():
        raise ValueError(
            f"tokenizer: its post-processor adds the id {ids.max()}, which is no token."
        )
    texts = [np.flatnonzero(owner == n) for n in range(1 + pair)]
    begin, end = texts[0][0], texts[-1][-1] + 1
    between = slice(texts[0][-1] + 1, texts[-1][0]) if pair else slice(end, end)
    second = int(np.argmax(types)) - int(texts[-1][0]) if pair and types.any() else None
    is_ordered = (np.diff(owner[owner >= 0]) >= 0).all() and (np.diff(types) >= 0).all()
    is_near = second is None or -len(ids[between]) <= second <= 0
    if not (is_ordered and is_near) or types.max() > 1:
        raise ValueError(
            f"tokenizer: its post-processor gives a text and a second one the order "
            f"{owner.tolist()} and the types {types.tolist()} (-1 is a special token). Accepted "
            "are the first text, then the second, with types 0, then 1 from the second text on."
        )
    return Template(ids[:begin], ids[between], ids[end:], second)


def _probe(tokenizer: Tokenizer) -> str:
    """Return a text that has a token."""
    for text in ("a", *tokenizer.get_vocab(with_added_tokens=False)):
        if tokenizer.encode(text, add_special_tokens=False).ids:
            return text
    raise ValueError("tokenizer: no text has a token. Give another tokenizer.json.")
