"""The tasks of the suite: generated strings, and the answers to them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from pe_jax.common.shapes import Bool, Int

# By the automaton that solves the task, as Ruoss et al. order them; "generation" is token by token.
Level = Literal["regular", "context-free", "context-sensitive", "generation"]


class Strings(NamedTuple):
    """N inputs of one length, and their answers; symbols are numbered from 0.

    Attributes:
      inputs: `[N, L]`.
      answers: `[N, A]`.
      asked: False for symbols behind the end of an answer; None if all answers have A symbols.
    """

    inputs: Int[np.ndarray, "N L"]
    answers: Int[np.ndarray, "N A"]
    asked: Bool[np.ndarray, "N A"] | None = None


class AlgorithmicTask(NamedTuple):
    """A task, generated: no downloads, and never the same string by intention.

    Attributes:
      level: how hard it is, formally.
      sample: `(rng, count, length) -> Strings`, for any length from 1.
      symbols: how many there are in inputs and answers.
      answers: between how many symbols an answer chooses at each place: guessing is 1 / answers.
    """

    level: Level
    sample: Callable[[np.random.Generator, int, int], Strings]
    symbols: int
    answers: int

    @property
    def causal(self) -> bool:
        """True if a decoder writes the answer token by token; else an encoder answers at once."""
        return self.level == "generation"

    def answer_length(self, length: int) -> int:
        """Return the number of symbols that answer an input, those behind the end included."""
        return self.sample(np.random.default_rng(0), 1, length).answers.shape[1]


# Ruoss et al. 2023 (arXiv 2305.16843), appendix A; "generation": Kazemnejad et al. 2023 (arXiv
# 2305.19466), table 1.
TASKS: dict[str, AlgorithmicTask] = {}

_Sample = Callable[[np.random.Generator, int, int], Strings]


def _task(level: Level, symbols: int, answers: int) -> Callable[[_Sample], _Sample]:
    """Register the task that a function samples, under the function's name."""

    def register(sample: _Sample) -> _Sample:
        task = AlgorithmicTask(level, sample, symbols, answers)
        TASKS[getattr(sample, "__name__", "")] = task
        return sample

    return register


def _ended(
    answers: list[list[int]], width: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Answers of different lengths, each with `end` behind it: `[N, width]`, and which symbols are
    asked for."""
    padded = np.zeros((len(answers), width), np.int32)
    asked = np.zeros(padded.shape, bool)
    for row, answer in enumerate(answers):
        padded[row, : len(answer) + 1] = [*answer, end]
        asked[row, : len(answer) + 1] = True
    return padded, asked


# --- solved by a finite automaton -----------------------------------------------------------------

MODULUS = 5  # Of all arithmetic; its digits are the symbols 0 to 4.
_ADD, _SUBTRACT, _MULTIPLY = MODULUS, MODULUS + 1, MODULUS + 2


@_task("regular", 2, 2)
def even_pairs(rng: np.random.Generator, count: int, length: int) -> Strings:
    """001110 → 0: two changes, an even number."""
    bits = rng.integers(0, 2, (count, length))
    changes = (bits[:, 1:] != bits[:, :-1]).sum(1)
    return Strings(bits, changes[:, None] % 2)


@_task("regular", _MULTIPLY + 1, MODULUS)
def modular_arithmetic(rng: np.random.Generator, count: int, length: int) -> Strings:
    """1+2·3 → 2 (mod 5)."""
    size = (
        length - (length + 1) % 2
    )  # Digits and operators alternate: an odd number of symbols.
    symbols = np.empty((count, size), np.int64)
    symbols[:, ::2] = rng.integers(0, MODULUS, (count, size // 2 + 1))
    symbols[:, 1::2] = rng.integers(_ADD, _MULTIPLY + 1, (count, size // 2))
    total, product = (
        np.zeros(count, np.int64),
        symbols[:, 0],
    )  # Of finished terms; of the last one.
    for index in range(1, size, 2):
        operator, digit = symbols[:, index], symbols[:, index + 1]
        times = operator == _MULTIPLY
        total = np.where(times, total, total + product) % MODULUS
        signed = np.where(operator == _SUBTRACT, -digit, digit)
        product = np.where(times, product * digit, signed) % MODULUS
    return Strings(symbols, (total + product)[:, None] % MODULUS)


@_task("regular", 2, 2)
def parity_check(rng: np.random.Generator, count: int, length: int) -> Strings:
    """1010100 → 1: three ones, an odd number."""
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, bits.sum(1, keepdims=True) % 2)


@_task("regular", MODULUS, MODULUS)
def cycle_navigation(rng: np.random.Generator, count: int, length: int) -> Strings:
    """← · → → → → 3rd of five places."""
    moves = rng.integers(0, 3, (count, length))  # Back, stay, forward.
    return Strings(moves, (moves - 1).sum(1, keepdims=True) % MODULUS)


# --- solved with a stack --------------------------------------------------------------------------

_CHARACTERS = {c: i for i, c in enumerate("01234+-*()x=")}
_BRACKETS = 3  # The symbols around two operands: "(", the operator, ")".
_POP, _PUSH = 2, 3
_END = 2  # Behind an answer.


@_task("context-free", _PUSH + 2, 3)
def stack_manipulation(rng: np.random.Generator, count: int, length: int) -> Strings:
    """A stack, bottom first, then actions; the answer is the stack that is left, top first.

    0110 push 1, pop, pop → 110 end.
    """
    bits = rng.integers(0, 2, (count, length))
    actions = rng.integers(_POP, _PUSH + 2, (count, length))
    height = rng.integers(1, max(length, 2), (count, 1))
    symbols = np.where(np.arange(length) < height, bits, actions)
    stack, top, row = (
        np.zeros((count, length + 1), np.int64),
        np.zeros(count, int),
        np.arange(count),
    )
    for symbol in symbols.T:  # A stack that is given is pushed bit by bit.
        pushed = np.where(symbol >= _PUSH, symbol - _PUSH, symbol)
        pops = symbol == _POP
        stack[row, top] = np.where(pops, stack[row, top], pushed)
        top = np.where(pops, np.maximum(top - 1, 0), top + 1)
    place = np.arange(length + 1)
    below = top[:, None] - 1 - place
    answers = np.where(
        below >= 0, np.take_along_axis(stack, np.maximum(below, 0), 1), 0
    )
    answers[row, top] = _END
    return Strings(symbols, answers, place <= top[:, None])


@_task("context-free", 2, 2)
def reverse_string(rng: np.random.Generator, count: int, length: int) -> Strings:
    """01101 → 10110."""
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, bits[:, ::-1])


def _expression(
    rng: np.random.Generator, length: int, operators: str
) -> tuple[str, int]:
    """An expression of so many characters, its operands in brackets, and its value modulo 5."""
    if length <= _BRACKETS + 1:
        digit = int(rng.integers(MODULUS))
        sign = "" if length % 2 else "-"
        inside = f"{sign}{digit}"
        return (f"({inside})" if length > 2 else inside), (
            -digit if sign else digit
        ) % MODULUS
    first = int(rng.integers(1, length - _BRACKETS))
    left, a = _expression(rng, first, operators)
    right, b = _expression(rng, length - _BRACKETS - first, operators)
    operator = operators[rng.integers(len(operators))]
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return f"({left}{operator}{right})", value % MODULUS


def _numbered(texts: list[str]) -> np.ndarray:
    return np.array([[_CHARACTERS[c] for c in text] for text in texts])


@_task("context-free", _CHARACTERS["x"], MODULUS)
def modular_arithmetic_brackets(
    rng: np.random.Generator, count: int, length: int
) -> Strings:
    """((-3)+(1*4)) → 1 (mod 5)."""
    texts, values = zip(
        *(_expression(rng, length, "+-*") for _ in range(count)), strict=True
    )
    return Strings(_numbered(list(texts)), np.array(values)[:, None])


@_task("context-free", len(_CHARACTERS), MODULUS)
def solve_equation(rng: np.random.Generator, count: int, length: int) -> Strings:
    """One digit of an expression is unknown; without products there is one solution. Too short for
    an equation: zeros, to be answered by 0.

    (x+(3))=1 → 3 (mod 5).
    """
    if length < _BRACKETS:
        return Strings(np.zeros((count, length), int), np.zeros((count, 1), int))
    texts, answers = [], []
    for _ in range(count):
        text, value = _expression(rng, length - 2, "+-")
        index = int(rng.choice([i for i, c in enumerate(text) if c.isdigit()]))
        texts.append(f"{text[:index]}x{text[index + 1 :]}={value}")
        answers.append([int(text[index])])
    return Strings(_numbered(texts), np.array(answers))


# --- more than a stack: copies, permutations, arithmetic of binary numbers ------------------------

_MISSING, _FILLER = 2, 3  # Of missing_duplicate.
_OPERATOR = 2  # Between two numbers; behind their sum or product is _END.
_BUCKETS = 5


@_task("context-sensitive", 2, 2)
def duplicate_string(rng: np.random.Generator, count: int, length: int) -> Strings:
    """101 → 101101."""
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, np.concatenate([bits, bits], axis=1))


@_task("context-sensitive", 4, 2)
def missing_duplicate(rng: np.random.Generator, count: int, length: int) -> Strings:
    """A string twice, one symbol missing, and a filler if the length is odd. A single symbol is 1,
    to be answered by 1.

    0110 0_10 → 1.
    """
    if length == 1:
        return Strings(np.ones((count, 1), int), np.ones((count, 1), int))
    bits = rng.integers(0, 2, (count, length // 2))
    symbols = np.concatenate(
        [bits, bits, np.full((count, length % 2), _FILLER)], axis=1
    )
    index = rng.integers(0, 2 * (length // 2), (count, 1))
    answers = np.take_along_axis(symbols, index, 1)
    np.put_along_axis(symbols, index, _MISSING, 1)
    return Strings(symbols, answers)


@_task("context-sensitive", 2, 2)
def odds_first(rng: np.random.Generator, count: int, length: int) -> Strings:
    """Every second symbol, from the second on, then the others. 00110101 → 0111 0100."""
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, np.concatenate([bits[:, 1::2], bits[:, ::2]], axis=1))


def _number(bits: np.ndarray) -> int:
    """Return the number of these binary digits, the least significant first."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _digits(number: int) -> list[int]:
    """The least significant first, without zeros at the end."""
    return [int(c) for c in reversed(f"{number:b}")]


def _binary(
    compute: Callable[[int, int], int],
    rng: np.random.Generator,
    count: int,
    length: int,
) -> Strings:
    """Two binary numbers, an operator between them. Inputs too short for that are one number, to
    be answered by itself."""
    symbols = rng.integers(0, 2, (count, length))
    operator_at = (
        rng.integers(1, length - 1, count) if length > 2 else np.full(count, length)
    )
    symbols[
        np.arange(count)[operator_at < length], operator_at[operator_at < length]
    ] = _OPERATOR
    results = [
        compute(_number(row[:i]), _number(row[i + 1 :])) if i < length else _number(row)
        for row, i in zip(symbols, operator_at, strict=True)
    ]
    return Strings(symbols, *_ended([_digits(n) for n in results], length + 1, _END))


# 1001+01 → 1101 end (9 + 2 = 11) and 1001·01 → 01001 end (9 · 2 = 18), least digit first.
for _name, _compute in {
    "addition": operator.add,
    "multiplication": operator.mul,
}.items():
    TASKS[f"binary_{_name}"] = AlgorithmicTask(
        "context-sensitive", partial(_binary, _compute), 3, 3
    )


@_task("context-sensitive", 2, 2)
def compute_sqrt(rng: np.random.Generator, count: int, length: int) -> Strings:
    """The integer part of the square root, both with the most significant digit first.

    100101 → 110 (√37 = 6.08…).
    """
    symbols = rng.integers(0, 2, (count, length))
    width = -(-length // 2)
    roots = [math.isqrt(_number(row[::-1])) for row in symbols]
    return Strings(
        symbols, np.array([[int(c) for c in f"{root:0{width}b}"] for root in roots])
    )


@_task("context-sensitive", _BUCKETS, _BUCKETS)
def bucket_sort(rng: np.random.Generator, count: int, length: int) -> Strings:
    """42100 → 00124."""
    symbols = rng.integers(0, _BUCKETS, (count, length))
    return Strings(symbols, np.sort(symbols, axis=1))


# --- answers that a decoder writes token by token, until it writes the end ------------------------

_WORDS = 32  # The symbols of copy, reverse and sort.
_DIGITS, _PLUS = 10, 10


def _rearranged(
    arrange: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    count: int,
    length: int,
) -> Strings:
    words = rng.integers(0, _WORDS, (count, length))
    end = np.full((count, 1), _WORDS)
    return Strings(words, np.concatenate([arrange(words), end], axis=1))


# c a b → c a b end, b a c end, a b c end.
_ARRANGEMENTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "copy": lambda words: words,
    "reverse": lambda words: words[:, ::-1],
    "sort": partial(np.sort, axis=1),
}
for _name, _arrange in _ARRANGEMENTS.items():
    TASKS[_name] = AlgorithmicTask(
        "generation", partial(_rearranged, _arrange), _WORDS + 1, _WORDS + 1
    )


@_task("generation", _DIGITS + 2, _DIGITS + 2)
def addition(rng: np.random.Generator, count: int, length: int) -> Strings:
    """Two decimal numbers and their sum, the most significant digit first, as they are written.
    Inputs too short for two are one number, to be answered by itself.

    53+726 → 779 end.
    """
    symbols = rng.integers(0, _DIGITS, (count, length))
    if length >= 3:
        symbols[np.arange(count), rng.integers(1, length - 1, count)] = _PLUS
    texts = ["".join("0123456789+"[s] for s in row) for row in symbols]
    sums = [sum(int(number) for number in text.split("+")) for text in texts]
    answers = [[int(c) for c in str(total)] for total in sums]
    return Strings(symbols, *_ended(answers, length + 1, _DIGITS + 1))
