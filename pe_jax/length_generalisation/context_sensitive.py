"""Tasks that need more than a stack: copies, permutations, arithmetic of binary numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial

import numpy as np

from pe_jax.length_generalisation.task import RUOSS, AlgorithmicTask, Strings, ended, one, same

_MISSING, _FILLER = 2, 3  # Of missing_duplicate.
_OPERATOR, _END = 2, 2  # Between two numbers; behind their sum or product.
_BUCKETS = 5


def _duplicate_string(rng: np.random.Generator, count: int, length: int) -> Strings:
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, np.concatenate([bits, bits], axis=1))


def _missing_duplicate(rng: np.random.Generator, count: int, length: int) -> Strings:
    """A string twice, one symbol missing, and a filler if the length is odd. A single symbol is 1,
    to be answered by 1."""
    if length == 1:
        return Strings(np.ones((count, 1), int), np.ones((count, 1), int))
    bits = rng.integers(0, 2, (count, length // 2))
    symbols = np.concatenate([bits, bits, np.full((count, length % 2), _FILLER)], axis=1)
    at = rng.integers(0, 2 * (length // 2), (count, 1))
    answers = np.take_along_axis(symbols, at, 1)
    np.put_along_axis(symbols, at, _MISSING, 1)
    return Strings(symbols, answers)


def _odds_first(rng: np.random.Generator, count: int, length: int) -> Strings:
    """Every second symbol, from the second on, then the others."""
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, np.concatenate([bits[:, 1::2], bits[:, ::2]], axis=1))


def _bucket_sort(rng: np.random.Generator, count: int, length: int) -> Strings:
    symbols = rng.integers(0, _BUCKETS, (count, length))
    return Strings(symbols, np.sort(symbols, axis=1))


def _number(bits: np.ndarray) -> int:
    """Return the number of these binary digits, the least significant first."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _digits(number: int) -> list[int]:
    """The least significant first, without zeros at the end."""
    return [int(c) for c in reversed(f"{number:b}")]


def _binary(
    compute: Callable[[int, int], int], rng: np.random.Generator, count: int, length: int
) -> Strings:
    """Two binary numbers, an operator between them. Inputs too short for that are one number, to
    be answered by itself."""
    symbols = rng.integers(0, 2, (count, length))
    at = rng.integers(1, length - 1, count) if length > 2 else np.full(count, length)
    symbols[np.arange(count)[at < length], at[at < length]] = _OPERATOR
    results = [
        compute(_number(row[:i]), _number(row[i + 1 :])) if i < length else _number(row)
        for row, i in zip(symbols, at, strict=True)
    ]
    return Strings(symbols, *ended([_digits(n) for n in results], _with_end(length), _END))


def _with_end(length: int) -> int:
    return length + 1


def _compute_sqrt(rng: np.random.Generator, count: int, length: int) -> Strings:
    """The integer part of the square root, both with the most significant digit first."""
    symbols = rng.integers(0, 2, (count, length))
    width = _half(length)
    roots = [math.isqrt(_number(row[::-1])) for row in symbols]
    return Strings(symbols, np.array([[int(c) for c in f"{root:0{width}b}"] for root in roots]))


def _half(length: int) -> int:
    return -(-length // 2)


CONTEXT_SENSITIVE = {
    "duplicate_string": AlgorithmicTask(
        "context-sensitive", _duplicate_string, lambda n: 2 * n, 2, 2, "101 → 101101", RUOSS
    ),
    "missing_duplicate": AlgorithmicTask(
        "context-sensitive", _missing_duplicate, one, 4, 2, "0110 0_10 → 1", RUOSS
    ),
    "odds_first": AlgorithmicTask(
        "context-sensitive", _odds_first, same, 2, 2, "00110101 → 0111 0100", RUOSS
    ),
    "binary_addition": AlgorithmicTask(
        "context-sensitive", partial(_binary, operator.add), _with_end, 3, 3,
        "1001+01 → 1101 end (9 + 2 = 11, least digit first)", RUOSS,
    ),
    "binary_multiplication": AlgorithmicTask(
        "context-sensitive", partial(_binary, operator.mul), _with_end, 3, 3,
        "1001·01 → 01001 end (9 · 2 = 18, least digit first)", RUOSS,
    ),
    "compute_sqrt": AlgorithmicTask(
        "context-sensitive", _compute_sqrt, _half, 2, 2, "100101 → 110 (√37 = 6.08…)", RUOSS
    ),
    "bucket_sort": AlgorithmicTask(
        "context-sensitive", _bucket_sort, same, _BUCKETS, _BUCKETS, "42100 → 00124", RUOSS
    ),
}  # fmt: skip
