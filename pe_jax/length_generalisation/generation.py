"""Tasks whose answer a decoder writes token by token, until it writes the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pe_jax.length_generalisation.task import KAZEMNEJAD, AlgorithmicTask, Strings, ended

_WORDS = 32  # The symbols of copy, reverse and sort.
_DIGITS, _PLUS = 10, 10


def _rearranged(
    arrange: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator, count: int, length: int
) -> Strings:
    words = rng.integers(0, _WORDS, (count, length))
    end = np.full((count, 1), _WORDS)
    return Strings(words, np.concatenate([arrange(words), end], axis=1))


def _addition(rng: np.random.Generator, count: int, length: int) -> Strings:
    """Two decimal numbers and their sum, the most significant digit first, as they are written.
    Inputs too short for two are one number, to be answered by itself."""
    symbols = rng.integers(0, _DIGITS, (count, length))
    if length >= 3:
        symbols[np.arange(count), rng.integers(1, length - 1, count)] = _PLUS
    texts = ["".join("0123456789+"[s] for s in row) for row in symbols]
    sums = [sum(int(number) for number in text.split("+")) for text in texts]
    answers = [[int(c) for c in str(total)] for total in sums]
    return Strings(symbols, *ended(answers, length + 1, _DIGITS + 1))


def _after(length: int) -> int:
    """The length of an answer as long as its input, with an end."""
    return length + 1


GENERATION = {
    name: AlgorithmicTask(
        "generation", partial(_rearranged, arrange), _after, _WORDS + 1, _WORDS + 1, example,
        KAZEMNEJAD,
    )
    for name, arrange, example in (
        ("copy", lambda words: words, "c a b → c a b end"),
        ("reverse", lambda words: words[:, ::-1], "c a b → b a c end"),
        ("sort", lambda words: np.sort(words, axis=1), "c a b → a b c end"),
    )
} | {
    "addition": AlgorithmicTask(
        "generation", _addition, _after, _DIGITS + 2, _DIGITS + 2, "53+726 → 779 end", KAZEMNEJAD
    )
}  # fmt: skip
