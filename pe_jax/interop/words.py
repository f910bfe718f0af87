"""Words and white space of a tokenized text: the starts of words, and offsets without spaces."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

_SPACES = [number for number in range(0x3001) if chr(number).isspace()]
# Tokens of a run without spaces that is one word; each token of a longer one is a word. Tokenizers
# that split at spaces alone leave whole sentences of Chinese, Japanese or Thai in one run.
_LONGEST_RUN = 16
# Texts per call: the tokenizer's offsets take far more memory than arrays.
_BATCH = 2_000


class TextTokens(NamedTuple):
    """A tokenized text.

    Attributes:
      ids: int32 [n].
      offsets: int32 [n, 2], the first and one past the last character of each token, without white
        space at either end.
    """

    ids: np.ndarray
    offsets: np.ndarray


def tokenize_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[TextTokens]:
    """Return the tokens of each text, for a tokenizer of `text_tokenizer`.

    White space is trimmed by the text. RobBERT's pre-tokenizers put a space before each word, and
    its post-processor would trim it from offsets that do not include it: every word would lose its
    first letter.
    """
    tokens = []
    for first in range(0, len(texts), _BATCH):
        part = texts[first : first + _BATCH]
        encodings = tokenizer.encode_batch(part, add_special_tokens=False)
        for text, encoding in zip(part, encodings, strict=True):
            ids = np.array(encoding.ids, np.int32)
            offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            tokens.append(TextTokens(ids, trim_offsets(offsets, text)))
    return tokens


def word_rule(tokenizer: Tokenizer) -> Callable[[Encoding, str], np.ndarray]:
    """Return `begins(encoding, text)`: `[n]` bool, True at each token that begins a word.

    Words are those of the pre-tokenizer. If it leaves a text whole, as Gemma's does, they begin at
    spaces.
    """
    splits_spaces = _splits(tokenizer, "a a")
    splits_punctuation = _splits(tokenizer, "a,b")

    def begins(encoding: Encoding, text: str) -> np.ndarray:
        words = np.array(encoding.word_ids, float)
        starts = np.diff(words, prepend=-1) != 0
        if not splits_spaces and len(starts):
            starts |= _at_spaces(np.array(encoding.offsets), text)
        if not splits_punctuation:
            bounds = np.append(np.flatnonzero(starts), len(starts))
            sizes = np.diff(bounds)
            starts |= np.repeat(sizes > _LONGEST_RUN, sizes)
        return starts

    return begins


def _splits(tokenizer: Tokenizer, text: str) -> bool:
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    splitter = tokenizer.pre_tokenizer
    return splitter is not None and len(splitter.pre_tokenize_str(text)) > 1


def trim_offsets(offsets: np.ndarray, text: str) -> np.ndarray:
    """Return offsets `[n, 2]` without white space at either end; a token of white space alone is
    empty, at its end."""
    _, is_space = _spaces(text)
    place = np.arange(len(text) + 1)
    # By place: the next character from there on, and the end of the last one before, without space.
    next_begin = np.append(np.where(is_space, len(text), place[:-1]), len(text))
    next_begin = np.minimum.accumulate(next_begin[::-1])[::-1]
    last_end = np.maximum.accumulate(np.append(0, np.where(is_space, 0, place[1:])))
    end = offsets[:, 1]
    begin = np.minimum(next_begin[offsets[:, 0]], end)
    trimmed = np.stack([begin, np.maximum(last_end[end], begin)], axis=1)
    return trimmed.astype(offsets.dtype)


def with_accents(text: str, end: int) -> int:
    """Return the end of a token with the combining accents that follow it, which tokenizers strip
    from its last letter."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def _spaces(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the code points of a text, and which are white space."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return codes, np.isin(codes, _SPACES)


def _at_spaces(offsets: np.ndarray, text: str) -> np.ndarray:
    """Return True at tokens that begin with white space, of several at the first, or that follow a
    line break or tab."""
    codes, is_space = _spaces(f"{text} ")
    first = offsets[:, 0]
    last = np.maximum(offsets[:, 1] - 1, first)
    before = np.roll(last, 1)
    after_break = is_space[before] & (codes[before] != ord(" "))
    begins = np.where(is_space[first], ~is_space[before], after_break)
    begins[0] = True
    return begins
