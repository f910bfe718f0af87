"""Definition of a task of the suite: generated strings, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from pe_jax.shapes import Bool, Int

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
      answer_length: of an input of some length, symbols behind the end included.
      symbols: how many there are in inputs and answers.
      answers: between how many symbols an answer chooses at each place: guessing is 1 / answers.
      example: an input and its answer, as a reader writes them.
      source: the paper.
    """

    level: Level
    sample: Callable[[np.random.Generator, int, int], Strings]
    answer_length: Callable[[int], int]
    symbols: int
    answers: int
    example: str
    source: str

    @property
    def causal(self) -> bool:
        """True if a decoder writes the answer token by token; else an encoder answers at once."""
        return self.level == "generation"


RUOSS = "Ruoss et al. 2023 (arXiv 2305.16843), appendix A"
KAZEMNEJAD = "Kazemnejad et al. 2023 (arXiv 2305.19466), table 1"


def one(length: int) -> int:
    """The length of an answer of one symbol."""
    del length
    return 1


def same(length: int) -> int:
    """The length of an answer as long as its input."""
    return length


def ended(answers: list[list[int]], width: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Answers of different lengths, each with `end` behind it: `[N, width]`, and which symbols are
    asked for."""
    padded = np.zeros((len(answers), width), np.int32)
    asked = np.zeros(padded.shape, bool)
    for row, answer in enumerate(answers):
        padded[row, : len(answer) + 1] = [*answer, end]
        asked[row, : len(answer) + 1] = True
    return padded, asked
