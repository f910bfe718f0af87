"""SQuAD: inputs of questions whose answers are spans of a context.

An input is `[CLS] question [SEP] window of context [SEP]` (Devlin et al., 4.2), or what the
tokenizer puts around two texts. A long context is split into overlapping windows. Each token has
the offsets of its characters, so that a span of tokens is one of the original text.

Shapes: W windows, Q questions, C tokens of a context, L length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.interop.special_tokens import require_cls, text_tokenizer, vocabulary
from pe_jax.trainer.data.questions import Question
from pe_jax.trainer.data.rows import Rows, concatenate
from pe_jax.trainer.data.words import trim_offsets

_BATCH = (
    2_000  # Texts per call: the tokenizer's offsets take far more memory than arrays.
)


class Windows(NamedTuple):
    """All windows of some questions, grouped by question, in order."""

    questions: Sequence[Question]
    length: int  # L, of a padded input.
    rows: Rows  # The W inputs, without targets.
    # `[W]` int32 each: index of the window's question,
    question: np.ndarray
    context_start: np.ndarray  # position in the input of its first context token,
    context_sizes: np.ndarray  # the number of its context tokens,
    first: np.ndarray  # and the index of the first one in the question's context.
    # `[C, 2]` int32 of each question: first and one past the last character of context tokens,
    # without white space around them.
    offsets: Sequence[np.ndarray]


def evaluation_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    length: int,
    *,
    max_query: int = 64,
    stride: int = 128,
) -> Windows:
    """Return the windows of every question, also of one with an empty context.

    Args:
      length: of an input; at least one token longer than special tokens and `max_query` together.
      max_query: questions are truncated to this many tokens.
      stride: tokens from the start of a window to the start of the next (BERT's `doc_stride`), if
        it has room for so many.
    """
    if not questions:
        raise ValueError("There are no questions. Check the split.")
    return _windows(_encode(questions, tokenizer), tokenizer, length, max_query, stride)


def training_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    length: int,
    *,
    max_query: int = 64,
    stride: int = 128,
) -> tuple[Windows, dict[str, int]]:
    """Return the windows of the questions that can be trained on, labelled by the first answer.

    The answer's tokens are those that share a character with it. Questions with an `empty
    question`, `empty context` or `empty answer` (all: without a token), or a `misplaced answer`
    (the context has another text there) are skipped.

    Returns:
      The windows, see `evaluation_windows`, whose rows have the targets `start` and `end`:
      positions of the answer's first and last token, or 0, that of [CLS], if it is not entirely
      inside the window; and the number of skipped questions, by reason. All is a ValueError.
    """
    encoded = _encode(questions, tokenizer)
    spans = [
        _answer_span(question, ids, offsets) for question, ids, _, offsets in encoded
    ]
    skipped = dict(Counter(span for span in spans if isinstance(span, str)))
    used = [number for number, span in enumerate(spans) if not isinstance(span, str)]
    if not used:
        raise ValueError(
            f"None of the {len(questions)} questions can be used for training; skipped: {skipped}."
        )
    windows = _windows([encoded[n] for n in used], tokenizer, length, max_query, stride)
    used_spans = np.array([spans[number] for number in used], np.int32)
    first, last = used_spans[windows.question].T - windows.first
    is_inside = (first >= 0) & (last < windows.context_sizes)
    targets = {
        "start": np.where(is_inside, first + windows.context_start, 0),
        "end": np.where(is_inside, last + windows.context_start, 0),
    }
    return windows._replace(rows=windows.rows._replace(targets=targets)), skipped


def max_context(windows: Windows) -> np.ndarray:
    """Return `[W, L]` bool: context tokens with more context in this window than in any other.

    BERT's rule: the smaller of the numbers of tokens to the left and right within the window, plus
    a hundredth of the window's size; ties go to the first window.
    """
    sizes, count = windows.context_sizes, len(windows.question)
    row = np.repeat(np.arange(count), sizes)
    within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Index over the context tokens of all questions.
    lengths = np.array([len(offsets) for offsets in windows.offsets])
    token = (
        (np.cumsum(lengths) - lengths)[windows.question[row]]
        + windows.first[row]
        + within
    )
    # In hundredths, to compare integers; the row as the lowest digits breaks ties.
    value = 100 * np.minimum(within, sizes[row] - 1 - within) + sizes[row]
    value = value * count + (count - 1 - row)
    best = np.full(lengths.sum(), -1)
    np.maximum.at(best, token, value)
    marked = np.zeros((count, windows.length), bool)
    marked[row, windows.context_start[row] + within] = value == best[token]
    return marked


# A question, its token ids, and ids `[n]` and offsets `[n, 2]` of its context.
_Encoded = tuple[Question, np.ndarray, np.ndarray, np.ndarray]


def _encode(questions: Sequence[Question], tokenizer: Tokenizer) -> list[_Encoded]:
    """Return the questions with their tokens; each distinct context is tokenized once."""
    encoder = text_tokenizer(tokenizer)
    texts = list(dict.fromkeys(question.context for question in questions))
    contexts = dict(zip(texts, _tokens(texts, encoder)))
    queries = _tokens([question.question for question in questions], encoder)
    return [(q, ids, *contexts[q.context]) for q, (ids, _) in zip(questions, queries)]


def _tokens(
    texts: list[str], tokenizer: Tokenizer
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the ids `[n]` and offsets `[n, 2]` of each text, for a tokenizer of `text_tokenizer`.

    White space is trimmed by the text. RobBERT's pre-tokenizers put a space before each word, and
    its post-processor would trim it from offsets that do not include it: every word would lose its
    first letter.
    """
    tokens = []
    for first in range(0, len(texts), _BATCH):
        part = texts[first : first + _BATCH]
        encodings = tokenizer.encode_batch(part, add_special_tokens=False)
        for text, encoding in zip(part, encodings, strict=True):
            offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            tokens.append(
                (np.array(encoding.ids, np.int32), trim_offsets(offsets, text))
            )
    return tokens


def _answer_span(
    question: Question, ids: np.ndarray, offsets: np.ndarray
) -> tuple[int, int] | str:
    """Return the first and last token of the first answer, -1 without one; or why there is none."""
    if not len(ids):
        return "empty question"
    if not len(offsets):
        return "empty context"
    if not question.answers:
        return -1, -1
    text, begin = question.answers[0]
    if text and (begin < 0 or question.context[begin : begin + len(text)] != text):
        return "misplaced answer"
    shared = np.flatnonzero(
        (offsets[:, 1] > begin) & (offsets[:, 0] < begin + len(text))
    )
    return (int(shared[0]), int(shared[-1])) if text and len(shared) else "empty answer"


def _windows(
    encoded: Sequence[_Encoded],
    tokenizer: Tokenizer,
    length: int,
    max_query: int,
    stride: int,
) -> Windows:
    special = vocabulary(tokenizer)
    template = require_cls(special.pair)
    if length - template.size <= max_query:
        raise ValueError(
            f"config.data.length={length} leaves no room for a context beside a question of "
            f"{max_query} tokens and {template.size} special ones: raise it, or lower "
            "config.data.max_query."
        )
    inputs, seconds, facts = [], [], []
    for number, (_, ids, text, _) in enumerate(encoded):
        query = ids[:max_query]
        room = length - template.size - len(query)
        start = template.second_start(len(query))
        step = min(stride, room)
        for begin in range(0, max(1, len(text) - room + step), step):
            part = text[begin : begin + room]
            inputs.append(template.join(query, part))
            seconds.append(template.type_start(len(query), len(inputs[-1])))
            facts.append((number, start, len(part), begin))
    questions, *_, offsets = map(list, zip(*encoded))
    rows = concatenate(inputs, seconds, special.pad, {})
    question, context_start, sizes, first = np.array(facts, np.int32).T
    return Windows(
        questions, length, rows, question, context_start, sizes, first, offsets
    )
