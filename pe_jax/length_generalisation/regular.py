"""Tasks that a finite automaton solves."""

from __future__ import annotations

import numpy as np

from pe_jax.length_generalisation.task import RUOSS, AlgorithmicTask, Strings, one

MODULUS = 5  # Of all arithmetic; its digits are the symbols 0 to 4.
_PLUS, _MINUS, _TIMES = MODULUS, MODULUS + 1, MODULUS + 2


def _even_pairs(rng: np.random.Generator, count: int, length: int) -> Strings:
    bits = rng.integers(0, 2, (count, length))
    changes = (bits[:, 1:] != bits[:, :-1]).sum(1)
    return Strings(bits, changes[:, None] % 2)


def _parity_check(rng: np.random.Generator, count: int, length: int) -> Strings:
    bits = rng.integers(0, 2, (count, length))
    return Strings(bits, bits.sum(1, keepdims=True) % 2)


def _cycle_navigation(rng: np.random.Generator, count: int, length: int) -> Strings:
    moves = rng.integers(0, 3, (count, length))  # Back, stay, forward.
    return Strings(moves, (moves - 1).sum(1, keepdims=True) % MODULUS)


def _modular_arithmetic(rng: np.random.Generator, count: int, length: int) -> Strings:
    size = length - (length + 1) % 2  # Digits and operators alternate: an odd number of symbols.
    symbols = np.empty((count, size), np.int64)
    symbols[:, ::2] = rng.integers(0, MODULUS, (count, size // 2 + 1))
    symbols[:, 1::2] = rng.integers(_PLUS, _TIMES + 1, (count, size // 2))
    total, product = np.zeros(count, np.int64), symbols[:, 0]  # Of finished terms; of the last one.
    for at in range(1, size, 2):
        operator, digit = symbols[:, at], symbols[:, at + 1]
        times = operator == _TIMES
        total = np.where(times, total, total + product) % MODULUS
        signed = np.where(operator == _MINUS, -digit, digit)
        product = np.where(times, product * digit, signed) % MODULUS
    return Strings(symbols, (total + product)[:, None] % MODULUS)


REGULAR = {
    "even_pairs": AlgorithmicTask(
        "regular", _even_pairs, one, 2, 2, "001110 → 0: two changes, an even number", RUOSS
    ),
    "modular_arithmetic": AlgorithmicTask(
        "regular", _modular_arithmetic, one, _TIMES + 1, MODULUS, "1+2·3 → 2 (mod 5)", RUOSS
    ),
    "parity_check": AlgorithmicTask(
        "regular", _parity_check, one, 2, 2, "1010100 → 1: three ones, an odd number", RUOSS
    ),
    "cycle_navigation": AlgorithmicTask(
        "regular", _cycle_navigation, one, MODULUS, MODULUS, "← · → → → → 3rd of five places", RUOSS
    ),
}
