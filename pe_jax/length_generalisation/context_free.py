"""Tasks that an automaton with a stack solves."""

from __future__ import annotations

import numpy as np

from pe_jax.length_generalisation.regular import MODULUS
from pe_jax.length_generalisation.task import RUOSS, AlgorithmicTask, Strings, one, same

_CHARACTERS = {c: i for i, c in enumerate("01234+-*()x=")}
_BRACKETS = 3  # The symbols around two operands: "(", the operator, ")".
_POP, _PUSH, _END = 2, 3, 2


def _stack_manipulation(rng: np.random.Generator, count: int, length: int) -> Strings:
    """A stack, bottom first, then actions; the answer is the stack that is left, top first."""
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
    answers = np.where(below >= 0, np.take_along_axis(stack, np.maximum(below, 0), 1), 0)
    answers[row, top] = _END
    return Strings(symbols, answers, place <= top[:, None])


def _reverse_string(rng: np.random.Generator, count: int, length: int) -> Strings:
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, bits[:, ::-1])


def _expression(rng: np.random.Generator, length: int, operators: str) -> tuple[str, int]:
    """An expression of so many characters, its operands in brackets, and its value modulo 5."""
    if length <= _BRACKETS + 1:
        digit = int(rng.integers(MODULUS))
        sign = "" if length % 2 else "-"
        inside = f"{sign}{digit}"
        return (f"({inside})" if length > 2 else inside), (-digit if sign else digit) % MODULUS
    first = int(rng.integers(1, length - _BRACKETS))
    left, a = _expression(rng, first, operators)
    right, b = _expression(rng, length - _BRACKETS - first, operators)
    operator = operators[rng.integers(len(operators))]
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return f"({left}{operator}{right})", value % MODULUS


def _numbered(texts: list[str]) -> np.ndarray:
    return np.array([[_CHARACTERS[c] for c in text] for text in texts])


def _brackets(rng: np.random.Generator, count: int, length: int) -> Strings:
    texts, values = zip(*(_expression(rng, length, "+-*") for _ in range(count)), strict=True)
    return Strings(_numbered(list(texts)), np.array(values)[:, None])


def _solve_equation(rng: np.random.Generator, count: int, length: int) -> Strings:
    """One digit of an expression is unknown; without products there is one solution. Too short for
    an equation: zeros, to be answered by 0."""
    if length < _BRACKETS:
        return Strings(np.zeros((count, length), int), np.zeros((count, 1), int))
    texts, answers = [], []
    for _ in range(count):
        text, value = _expression(rng, length - 2, "+-")
        at = int(rng.choice([i for i, c in enumerate(text) if c.isdigit()]))
        texts.append(f"{text[:at]}x{text[at + 1 :]}={value}")
        answers.append([int(text[at])])
    return Strings(_numbered(texts), np.array(answers))


CONTEXT_FREE = {
    "stack_manipulation": AlgorithmicTask(
        "context-free", _stack_manipulation, lambda n: n + 1, _PUSH + 2, 3,
        "0110 push 1, pop, pop → 110 end", RUOSS,
    ),
    "reverse_string": AlgorithmicTask(
        "context-free", _reverse_string, same, 2, 2, "01101 → 10110", RUOSS
    ),
    "modular_arithmetic_brackets": AlgorithmicTask(
        "context-free", _brackets, one, _CHARACTERS["x"], MODULUS, "((-3)+(1*4)) → 1 (mod 5)", RUOSS
    ),
    "solve_equation": AlgorithmicTask(
        "context-free", _solve_equation, one, len(_CHARACTERS), MODULUS, "(x+(3))=1 → 3 (mod 5)",
        RUOSS,
    ),
}  # fmt: skip
