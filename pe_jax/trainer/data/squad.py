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

from pe_jax.interop.special_tokens import (
    Vocabulary,
    require_cls,
    text_tokenizer,
    vocabulary,
)
from pe_jax.interop.words import TextTokens, tokenize_texts
from pe_jax.trainer.data.questions import Question
from pe_jax.trainer.data.rows import Rows, concatenate


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
        it has room for so many; otherwise the next one follows without a gap.

    Raises:
      ValueError: if there is no question, `length` is too short, or the tokenizer has no [CLS].
    """
    if not questions:
        raise ValueError("There are no questions. Check the split.")
    return _windows(
        _encode(questions, tokenizer),
        vocabulary(tokenizer),
        length=length,
        max_query=max_query,
        stride=stride,
    )


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

    Args:
      length, max_query, stride: as for `evaluation_windows`.

    Returns:
      The windows, see `evaluation_windows`, whose rows have the targets `start` and `end`:
      positions of the answer's first and last token, or 0, that of [CLS], if it is not entirely
      inside the window; and the number of skipped questions, by reason.

    Raises:
      ValueError: if every question is skipped, or as `evaluation_windows`.
    """
    used = []
    spans = []
    skipped = Counter[str]()
    for question in _encode(questions, tokenizer):
        span = _answer_span(question)
        if isinstance(span, str):
            skipped[span] += 1
        else:
            used.append(question)
            spans.append(span)
    if not used:
        raise ValueError(
            f"None of the {len(questions)} questions can be used for training; skipped: "
            f"{dict(skipped)}."
        )
    windows = _windows(
        used,
        vocabulary(tokenizer),
        length=length,
        max_query=max_query,
        stride=stride,
    )
    of_window = np.array(spans, np.int32)[windows.question]
    first = of_window[:, 0] - windows.first
    last = of_window[:, 1] - windows.first
    is_inside = (first >= 0) & (last < windows.context_sizes)
    targets = {
        "start": np.where(is_inside, first + windows.context_start, 0),
        "end": np.where(is_inside, last + windows.context_start, 0),
    }
    rows = windows.rows._replace(targets=targets)
    return windows._replace(rows=rows), dict(skipped)


def max_context(windows: Windows) -> np.ndarray:
    """Return `[W, L]` bool: context tokens with more context in this window than in any other.

    BERT's rule: the smaller of the numbers of tokens to the left and right within the window, plus
    a hundredth of the window's size; ties go to the first window.
    """
    count = len(windows.question)
    sizes = windows.context_sizes
    # Of each context token in a window: the window, its place there, and its index over the context
    # tokens of all questions.
    row = np.repeat(np.arange(count), sizes)
    starts = np.cumsum(sizes) - sizes
    within = np.arange(len(row)) - starts[row]
    lengths = np.array([len(offsets) for offsets in windows.offsets])
    question_starts = np.cumsum(lengths) - lengths
    token = question_starts[windows.question[row]] + windows.first[row] + within
    # In hundredths, to compare integers; the row as the lowest digits breaks ties.
    value = 100 * np.minimum(within, sizes[row] - 1 - within) + sizes[row]
    value = value * count + (count - 1 - row)
    best = np.full(lengths.sum(), -1)
    np.maximum.at(best, token, value)
    marked = np.zeros((count, windows.length), bool)
    marked[row, windows.context_start[row] + within] = value == best[token]
    return marked


class _Encoded(NamedTuple):
    """A question and its tokens."""

    question: Question
    query: np.ndarray  # Ids of the question's tokens, `[n]` int32.
    context: TextTokens


def _encode(questions: Sequence[Question], tokenizer: Tokenizer) -> list[_Encoded]:
    """Return the questions with their tokens; each distinct context is tokenized once."""
    encoder = text_tokenizer(tokenizer)
    texts = list(dict.fromkeys(question.context for question in questions))
    contexts = dict(zip(texts, tokenize_texts(texts, encoder), strict=True))
    queries = tokenize_texts([question.question for question in questions], encoder)
    return [
        _Encoded(question, query.ids, contexts[question.context])
        for question, query in zip(questions, queries, strict=True)
    ]


def _answer_span(encoded: _Encoded) -> tuple[int, int] | str:
    """Return the first and last token of the first answer, -1 without one; or why there is none."""
    question = encoded.question
    offsets = encoded.context.offsets
    if not len(encoded.query):
        return "empty question"
    if not len(offsets):
        return "empty context"
    if not question.answers:
        return -1, -1
    text, begin = question.answers[0]
    if not text:
        return "empty answer"
    end = begin + len(text)
    if begin < 0 or question.context[begin:end] != text:
        return "misplaced answer"
    shared = np.flatnonzero((offsets[:, 1] > begin) & (offsets[:, 0] < end))
    if not len(shared):
        return "empty answer"
    return int(shared[0]), int(shared[-1])


def _windows(
    encoded: Sequence[_Encoded],
    special: Vocabulary,
    *,
    length: int,
    max_query: int,
    stride: int,
) -> Windows:
    template = require_cls(special.pair)
    if length - template.size <= max_query:
        raise ValueError(
            f"config.data.length={length} leaves no room for a context beside a question of "
            f"{max_query} tokens and {template.size} special ones: raise it, or lower "
            "config.data.max_query."
        )
    inputs = []
    second = []
    columns = []
    for number, (_, ids, context) in enumerate(encoded):
        query = ids[:max_query]
        room = length - template.size - len(query)
        start = template.second_start(len(query))
        step = min(stride, room)
        for first in range(0, max(1, len(context.ids) - room + step), step):
            part = context.ids[first : first + room]
            row = template.join(query, part)
            inputs.append(row)
            second.append(template.type_start(len(query), len(row)))
            columns.append((number, start, len(part), first))
    question, context_start, context_sizes, first_token = np.array(columns, np.int32).T
    return Windows(
        questions=[question.question for question in encoded],
        length=length,
        rows=concatenate(inputs, second, special.pad, targets={}),
        question=question,
        context_start=context_start,
        context_sizes=context_sizes,
        first=first_token,
        offsets=[question.context.offsets for question in encoded],
    )
