"""Spans of texts by a head that labels tokens: words, windows of long texts, and aggregation.

The words of a text are those of its tokenizer, and the first token of a word decides, as in
training.

Shapes: B batch, L length, C classes, N words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.records import Record
from pe_jax.common.shapes import Float
from pe_jax.encodings import Params
from pe_jax.interop import sentence_vectors
from pe_jax.interop.label_schemes import (
    OUTSIDE,
    LabelSpan,
    has_prefix,
    lenient_spans,
)
from pe_jax.interop.sentence_vectors import Inputs, TokenizedTexts
from pe_jax.interop.special_tokens import row_template, special_tokens, text_tokenizer
from pe_jax.interop.token_windows import token_windows
from pe_jax.interop.words import trim_offsets, with_accents, word_rule
from pe_jax.models import BertConfig, BertForTokens


class TextSpan(Record):
    """A span of a text, and its label.

    Attributes:
      label: the type of an entity, or a plain tag.
      start, end: of its characters (code points), so that `text` is `whole[start:end]`.
      score: the mean over its words of the probability of the label.
    """

    label: str
    start: int
    end: int
    text: str
    score: float


class _Words(NamedTuple):
    """A tokenized text.

    Attributes:
      ids: int32 [n], of all tokens.
      pieces: int [N], the index of the first token of each word.
      bounds: int [N, 2], the first and one past the last character of each word.
    """

    ids: np.ndarray
    pieces: np.ndarray
    bounds: np.ndarray


@functools.partial(jax.jit, static_argnames="config")
def label_probabilities(
    params: Params, inputs: Inputs, *, config: BertConfig
) -> Float[jax.Array, "B L C"]:
    """Return the probabilities of the labels of each token, float32.

    Args:
      params: of `BertForTokens`.
    """
    model = BertForTokens(config, len(params["tokens"]["bias"]))
    logits: Any = model.apply(
        {"params": params}, inputs.tokens, inputs.token_types, inputs.mask
    )
    return jax.nn.softmax(logits)


def tag_texts(
    probabilities: Callable[[Inputs], jax.Array],
    tokenizer: Tokenizer,
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    longest: int | None,
    batch_size: int,
) -> list[list[TextSpan]]:
    """Return the spans of each text, in order.

    Args:
      probabilities: of a batch to `[B, L, C]`, see `label_probabilities`.
      tokenizer: of the model, which cuts no text.
      labels: the C labels.
      longest: the longest input in tokens; None if nothing limits it.
      batch_size: rows of a batch.

    Raises:
      ValueError: if `longest` leaves no room for a token.
    """
    template = row_template(tokenizer, pair=False)
    if longest is not None and longest <= template.size:
        raise ValueError(
            f"max_length must be more than {template.size} special tokens, got {longest}."
        )
    words = _words_of(texts, text_tokenizer(tokenizer))
    rows = TokenizedTexts([], [])
    windows = []  # Of each row: the number of its text, and the window.
    for number, of_text in enumerate(words):
        count = len(of_text.ids)
        room = max(count, 1) if longest is None else longest - template.size
        for window in token_windows(count, room):
            row = template.join(of_text.ids[window.start : window.stop])
            rows.ids.append(row)
            rows.types.append(np.zeros_like(row))
            windows.append((number, window))
    pad = tokenizer.token_to_id(special_tokens(tokenizer)["pad"]) or 0
    best = [np.zeros(len(of_text.pieces), int) for of_text in words]
    scores = [np.zeros(len(of_text.pieces)) for of_text in words]
    for batch in sentence_vectors.batches(rows, batch_size, pad=pad, longest=longest):
        of_batch = np.asarray(probabilities(batch.inputs))
        for of_row, row_number in zip(of_batch, batch.order):
            number, window = windows[row_number]
            pieces = words[number].pieces
            here = (pieces >= window.begin) & (pieces < window.end)
            columns = pieces[here] - window.start + len(template.before)
            best[number][here] = of_row[columns].argmax(-1)
            scores[number][here] = of_row[columns].max(-1)
    is_plain = not any(map(has_prefix, labels))
    tagged = []
    for text, of_text, indices, of_words in zip(texts, words, best, scores):
        names = [labels[index] for index in indices]
        spans = _word_spans(names) if is_plain else lenient_spans(names)
        tagged.append([_text_span(span, text, of_text, of_words) for span in spans])
    return tagged


def _words_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[_Words]:
    """Return the words of each text, for a tokenizer of `text_tokenizer`."""
    begins_word = word_rule(tokenizer)
    words = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        offsets = np.array(encoding.offsets, int).reshape(-1, 2)
        offsets = trim_offsets(offsets, text)
        # A token of white space alone is no piece of a word.
        tokens = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
        word_of_token = np.cumsum(begins_word(encoding, text))[tokens]
        is_first = np.diff(word_of_token, prepend=-1) != 0
        is_last = np.diff(word_of_token, append=-1) != 0
        pieces = tokens[is_first]
        ends = [with_accents(text, end) for end in offsets[tokens[is_last], 1]]
        bounds = np.stack([offsets[pieces, 0], np.array(ends, int)], axis=1)
        words.append(_Words(ids, pieces, bounds))
    return words


def _word_spans(names: Sequence[str]) -> list[LabelSpan]:
    """Return a span for each word of plain tags."""
    return [
        LabelSpan(index, index + 1, name)
        for index, name in enumerate(names)
        if name != OUTSIDE
    ]


def _text_span(
    span: LabelSpan, text: str, words: _Words, scores: np.ndarray
) -> TextSpan:
    start = int(words.bounds[span.start, 0])
    end = int(words.bounds[span.stop - 1, 1])
    score = float(scores[span.start : span.stop].mean())
    return TextSpan(
        label=span.type, start=start, end=end, text=text[start:end], score=score
    )
