"""Questions as token ids: `[CLS] question [SEP] window of context [SEP]` (Devlin et al., 4.2).

A context that is too long for one input is split into overlapping windows. Each token has the
offsets of its characters, so that a span of tokens is a span of the original text, whatever the
tokenizer lower-cased, stripped or split.

Shapes: W windows, Q questions, T tokens of all windows, C tokens of all contexts, L length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.data.rows import Rows
from pe_jax.data.squad_questions import Question
from pe_jax.data.tokenizer import vocabulary

_BATCH = 2_000  # Texts per call: the tokenizer's offsets take far more memory than arrays.


class Windows(NamedTuple):
    """All windows of some questions, grouped by question, in order.

    Attributes:
      questions: the Q questions.
      length: L, of a padded input.
      pad: id of the padding token.
      tokens: `[T]` int32, the concatenated inputs, without padding.
      bounds: `[W + 1]` int64, index in `tokens` of each input's first token, then T.
      question: `[W]` int32, index of the window's question.
      context_at: `[W]` int32, position in the input of its first context token.
      first: `[W]` int32, index of that token in the question's context.
      contexts: `[Q, 2]` int64, begin and end in `offsets` of the question's context.
      offsets: `[C, 2]` int32, first and one past the last character of each context token.
    """

    questions: Sequence[Question]
    length: int
    pad: int
    tokens: np.ndarray
    bounds: np.ndarray
    question: np.ndarray
    context_at: np.ndarray
    first: np.ndarray
    contexts: np.ndarray
    offsets: np.ndarray

    def context_sizes(self) -> np.ndarray:
        """`[W]` int64: number of context tokens of each window."""
        return np.diff(self.bounds) - self.context_at - 1


class TrainingWindows(NamedTuple):
    """Windows with their labels.

    Attributes:
      windows: those of all questions that can be trained on.
      starts, ends: `[W]` int32, positions in the input of the answer's first and last token; 0,
        that of [CLS], if there is no answer or it is not entirely inside the window.
      skipped: number of skipped questions, by reason.
    """

    windows: Windows
    starts: np.ndarray
    ends: np.ndarray
    skipped: dict[str, int]


def evaluation_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    length: int,
    *,
    max_query: int = 64,
    stride: int = 128,
) -> Windows:
    """The windows of every question, also of one with an empty context.

    Args:
      length: of an input, special tokens included.
      max_query: questions are truncated to this many tokens.
      stride: tokens from the start of a window to the start of the next (BERT's `doc_stride`);
        if a window has room for fewer, the next one follows without a gap.

    Raises:
      ValueError: if there is no question, no room for a context, or a stride below 1.
    """
    _check(length, max_query, stride)
    if not questions:
        raise ValueError("There are no questions to make windows of: check the split.")
    return _windows(questions, _encode(questions, tokenizer), tokenizer, length, max_query, stride)


def training_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    length: int,
    *,
    max_query: int = 64,
    stride: int = 128,
) -> TrainingWindows:
    """The windows of the questions that can be trained on, with labels from the first answer.

    The answer's tokens are those that share a character with it. Questions with an `empty
    question`, `empty context` or `empty answer` (all: without a token), or a `misplaced answer`
    (the context has another text where the answer should begin) are skipped and counted.

    Args:
      length, max_query, stride: as for `evaluation_windows`.

    Raises:
      ValueError: as there, or if every question is skipped.
    """
    _check(length, max_query, stride)
    encoded = _encode(questions, tokenizer)
    spans, faults = [], []
    for question, ids, context in zip(questions, encoded.questions, encoded.context_of):
        span = _answer_span(question, encoded.contexts[context].offsets)
        spans.append(span)
        faults.append(_fault(question, ids, encoded.contexts[context].ids, span))
    kept = [n for n, fault in enumerate(faults) if not fault]
    skipped = dict(Counter(fault for fault in faults if fault))
    if not kept:
        raise ValueError(
            f"None of {len(questions)} questions can be trained on; skipped: {skipped}."
        )
    windows = _windows(
        [questions[n] for n in kept],
        encoded._replace(
            questions=[encoded.questions[n] for n in kept],
            context_of=[encoded.context_of[n] for n in kept],
        ),
        tokenizer,
        length,
        max_query,
        stride,
    )
    starts, ends = _labels(windows, np.array([spans[n] for n in kept], np.int32))
    return TrainingWindows(windows, starts, ends, skipped)


def as_rows(windows: Windows, **targets: np.ndarray) -> Rows:
    """The inputs of the windows as rows, the context as second segment.

    Args:
      targets: `[W]` labels, by name.
    """
    return Rows(windows.tokens, windows.bounds, windows.context_at, windows.pad, targets)


def max_context(windows: Windows) -> np.ndarray:
    """`[W, L]` bool: context tokens that have more context in this window than in any other.

    BERT's rule: the smaller of the numbers of tokens to the left and right within the window, plus
    a hundredth of the window's size; ties go to the first window. So every context token of every
    question is marked in exactly one window.
    """
    sizes, count = windows.context_sizes(), len(windows.question)
    row = np.repeat(np.arange(count), sizes)
    within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Index over the context tokens of all questions; not into `offsets`, which questions may share.
    lengths = np.diff(windows.contexts)[:, 0]
    token = (np.cumsum(lengths) - lengths)[windows.question[row]] + windows.first[row] + within
    # In hundredths, to compare integers; the row as the lowest digits breaks ties.
    value = 100 * np.minimum(within, sizes[row] - 1 - within) + sizes[row]
    value = value * count + (count - 1 - row)
    best = np.full(lengths.sum(), -1)
    np.maximum.at(best, token, value)
    marked = np.zeros((count, windows.length), bool)
    marked[row, windows.context_at[row] + within] = value == best[token]
    return marked


# --- tokens ---------------------------------------------------------------------------------------


class _Context(NamedTuple):
    ids: np.ndarray  # [n] int32
    offsets: np.ndarray  # [n, 2] int32


class _Encoded(NamedTuple):
    questions: list[np.ndarray]  # Token ids of each question.
    contexts: list[_Context]  # Without duplicates.
    context_of: list[int]  # Index in `contexts` for each question.


def _encode(questions: Sequence[Question], tokenizer: Tokenizer) -> _Encoded:
    numbers: dict[str, int] = {}
    context_of = [numbers.setdefault(q.context, len(numbers)) for q in questions]
    return _Encoded(
        [context.ids for context in _tokens([q.question for q in questions], tokenizer)],
        _tokens(list(numbers), tokenizer),
        context_of,
    )


def _tokens(texts: list[str], tokenizer: Tokenizer) -> list[_Context]:
    return [
        _Context(np.array(e.ids, np.int32), np.array(e.offsets, np.int32).reshape(-1, 2))
        for begin in range(0, len(texts), _BATCH)
        for e in tokenizer.encode_batch(texts[begin : begin + _BATCH], add_special_tokens=False)
    ]


# --- answers --------------------------------------------------------------------------------------

_NO_SPAN = (-1, -1)


def _answer_span(question: Question, offsets: np.ndarray) -> tuple[int, int]:
    """First and last token of the first answer; _NO_SPAN if there is none."""
    if not question.answers:
        return _NO_SPAN
    begin = question.answers[0].start
    end = begin + len(question.answers[0].text)
    touched = np.flatnonzero((offsets[:, 1] > begin) & (offsets[:, 0] < end))
    return (int(touched[0]), int(touched[-1])) if len(touched) else _NO_SPAN


def _fault(
    question: Question, ids: np.ndarray, context_ids: np.ndarray, span: tuple[int, int]
) -> str:
    """Why the question cannot be trained on; empty if it can."""
    if not len(ids):
        return "empty question"
    if not len(context_ids):
        return "empty context"
    if not question.answers:
        return ""
    text, start = question.answers[0]
    if not text:
        return "empty answer"
    if start < 0 or question.context[start : start + len(text)] != text:
        return "misplaced answer"
    return "empty answer" if span == _NO_SPAN else ""


def _labels(windows: Windows, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, last = spans[windows.question].T - windows.first
    inside = (first >= 0) & (last < windows.context_sizes())
    starts, ends = (np.where(inside, n + windows.context_at, 0) for n in (first, last))
    return starts.astype(np.int32), ends.astype(np.int32)


# --- windows --------------------------------------------------------------------------------------


def _check(length: int, max_query: int, stride: int) -> None:
    if max_query < 1 or stride < 1:
        raise ValueError(f"max_query and stride count tokens, got {max_query} and {stride}.")
    if length - max_query - 3 < 1:
        raise ValueError(
            f"Inputs of {length} tokens have no room for a context next to questions of up to "
            f"{max_query} and three special tokens: raise the length or lower max_query."
        )


def _windows(
    questions: Sequence[Question],
    encoded: _Encoded,
    tokenizer: Tokenizer,
    length: int,
    max_query: int,
    stride: int,
) -> Windows:
    special = vocabulary(tokenizer)
    sep = np.array([special.sep], np.int32)
    tokens, rows = [], []
    for number, context in enumerate(encoded.context_of):
        asked, ids = encoded.questions[number][:max_query], encoded.contexts[context].ids
        before = np.concatenate([[special.cls], asked, sep]).astype(np.int32)
        room = length - len(before) - 1
        for first in range(0, max(1, len(ids) - room + min(stride, room)), min(stride, room)):
            tokens += [before, ids[first : first + room], sep]
            size = len(before) + min(room, len(ids) - first) + 1
            rows.append((number, len(before), first, size))
    question, context_at, first, sizes = np.array(rows).T
    ends = np.cumsum([len(context.ids) for context in encoded.contexts])
    contexts = np.stack([np.append(0, ends[:-1]), ends], axis=-1)
    return Windows(
        questions=questions,
        length=length,
        pad=special.pad,
        tokens=np.concatenate(tokens),
        bounds=np.append(0, np.cumsum(sizes)),
        question=question.astype(np.int32),
        context_at=context_at.astype(np.int32),
        first=first.astype(np.int32),
        contexts=contexts[encoded.context_of],
        offsets=np.concatenate([context.offsets for context in encoded.contexts]),
    )
