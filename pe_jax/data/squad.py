"""SQuAD: inputs of questions whose answers are spans of a context.

An input is `[CLS] question [SEP] window of context [SEP]` (Devlin et al., 4.2), or what the
tokenizer puts around two texts. A context that is too long for one input is split into overlapping
windows. Each token has the offsets of its characters, so that a span of tokens is a span of the
original text, whatever the tokenizer lower-cased, stripped or split.

Shapes: W windows, Q questions, T tokens of all windows, C tokens of all contexts, L length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.data.questions import Question
from pe_jax.data.rows import Rows
from pe_jax.data.special_tokens import text_tokenizer, vocabulary
from pe_jax.data.templates import require_cls

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
      context_start: `[W]` int32, position in the input of its first context token.
      second: `[W]` int32, position in the input where its second text begins.
      after: the number of special tokens after the context.
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
    context_start: np.ndarray
    second: np.ndarray
    after: int
    first: np.ndarray
    contexts: np.ndarray
    offsets: np.ndarray

    def context_sizes(self) -> np.ndarray:
        """Return `[W]` int64: the number of context tokens of each window."""
        return np.diff(self.bounds) - self.context_start - self.after

    def rows(self, **targets: np.ndarray) -> Rows:
        """Return the inputs as rows with `[W]` targets by name."""
        return Rows(self.tokens, self.bounds, self.second, self.pad, targets)


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
      length: of an input, special tokens included; at least one token longer than these and
        `max_query` together.
      max_query: questions are truncated to this many tokens.
      stride: tokens from the start of a window to the start of the next (BERT's `doc_stride`);
        if a window has room for fewer, the next one follows without a gap.

    Raises:
      ValueError: if there is no question.
    """
    if not questions:
        raise ValueError("There are no questions. Check the split.")
    encoded = _encode(questions, tokenizer)
    return _windows(questions, *encoded, tokenizer, length, max_query, stride)


def training_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    length: int,
    *,
    max_query: int = 64,
    stride: int = 128,
) -> tuple[Windows, np.ndarray, np.ndarray, dict[str, int]]:
    """Return the windows of the questions that can be trained on, labelled by the first answer.

    The answer's tokens are those that share a character with it. Questions with an `empty
    question`, `empty context` or `empty answer` (all: without a token), or a `misplaced answer`
    (the context has another text where the answer should begin) are skipped.

    Args:
      length, max_query, stride: as for `evaluation_windows`.

    Returns:
      The windows; `[W]` int32 twice, positions in the input of the answer's first and last token,
      or 0, that of [CLS], if there is no answer or it is not entirely inside the window; the number
      of skipped questions, by reason.

    Raises:
      ValueError: if every question is skipped.
    """
    queries, contexts, context_of = _encode(questions, tokenizer)
    used, spans, skipped = [], [], Counter[str]()
    for number, question in enumerate(questions):
        span = _answer_span(question, queries[number], contexts[context_of[number]][1])
        if isinstance(span, str):
            skipped[span] += 1
        else:
            used.append(number)
            spans.append(span)
    if not used:
        raise ValueError(
            f"None of the {len(questions)} questions can be used for training; skipped: "
            f"{dict(skipped)}."
        )
    windows = _windows(
        [questions[number] for number in used],
        [queries[number] for number in used],
        contexts,
        [context_of[number] for number in used],
        tokenizer,
        length,
        max_query,
        stride,
    )
    first, last = np.array(spans, np.int32)[windows.question].T - windows.first
    inside = (first >= 0) & (last < windows.context_sizes())
    starts, ends = (np.where(inside, n + windows.context_start, 0) for n in (first, last))
    return windows, starts.astype(np.int32), ends.astype(np.int32), dict(skipped)


def max_context(windows: Windows) -> np.ndarray:
    """Return `[W, L]` bool: context tokens with more context in this window than in any other.

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
    marked[row, windows.context_start[row] + within] = value == best[token]
    return marked


_Tokens = tuple[np.ndarray, np.ndarray]  # Token ids `[n]` and offsets `[n, 2]` of a text.


def _encode(
    questions: Sequence[Question], tokenizer: Tokenizer
) -> tuple[list[np.ndarray], list[_Tokens], list[int]]:
    """Return the token ids of each question, the tokens of each distinct context, and the index of
    each question's context."""
    numbers: dict[str, int] = {}
    context_of = [numbers.setdefault(q.context, len(numbers)) for q in questions]
    encoder = text_tokenizer(tokenizer)
    queries = [ids for ids, _ in _tokens([q.question for q in questions], encoder)]
    return queries, _tokens(list(numbers), encoder), context_of


def _tokens(texts: list[str], tokenizer: Tokenizer) -> list[_Tokens]:
    return [
        (np.array(e.ids, np.int32), np.array(e.offsets, np.int32).reshape(-1, 2))
        for begin in range(0, len(texts), _BATCH)
        for e in tokenizer.encode_batch(texts[begin : begin + _BATCH], add_special_tokens=False)
    ]


def _answer_span(question: Question, ids: np.ndarray, offsets: np.ndarray) -> tuple[int, int] | str:
    """Return the first and last token of the first answer, -1 if there is none; or why the question
    cannot be trained on."""
    if not len(ids):
        return "empty question"
    if not len(offsets):
        return "empty context"
    if not question.answers:
        return -1, -1
    text, begin = question.answers[0]
    if text and (begin < 0 or question.context[begin : begin + len(text)] != text):
        return "misplaced answer"
    shared = np.flatnonzero((offsets[:, 1] > begin) & (offsets[:, 0] < begin + len(text)))
    return (int(shared[0]), int(shared[-1])) if text and len(shared) else "empty answer"


def _windows(
    questions: Sequence[Question],
    queries: Sequence[np.ndarray],
    contexts: Sequence[_Tokens],
    context_of: Sequence[int],
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
    tokens, rows = [], []
    for number, context in enumerate(context_of):
        ids, query = contexts[context][0], queries[number][:max_query]
        room = length - template.size - len(query)
        for first in range(0, max(1, len(ids) - room + min(stride, room)), min(stride, room)):
            tokens.append(template.join(query, ids[first : first + room]))
            size = len(tokens[-1])
            starts = template.second_start(len(query)), template.type_start(len(query), size)
            rows.append((number, *starts, first, size))
    question, context_start, second, first, sizes = np.array(rows).T
    ends = np.cumsum([len(ids) for ids, _ in contexts])
    return Windows(
        questions=questions,
        length=length,
        pad=special.pad,
        tokens=np.concatenate(tokens),
        bounds=np.append(0, np.cumsum(sizes)),
        question=question.astype(np.int32),
        context_start=context_start.astype(np.int32),
        second=second.astype(np.int32),
        after=len(template.after),
        first=first.astype(np.int32),
        contexts=np.stack([np.append(0, ends[:-1]), ends], axis=-1)[list(context_of)],
        offsets=np.concatenate([offsets for _, offsets in contexts]),
    )
