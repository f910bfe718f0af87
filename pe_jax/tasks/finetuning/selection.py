"""Which evaluation of a run counts, a line of its `metrics.jsonl`: `config.select`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pe_jax.files import Json

HELD_OUT = "held_out"  # The name of the training data that is kept to select by.

Score = Callable[[Json], float]


class Selection(NamedTuple):
    """A way to select.

    Attributes:
      choose: `choose(lines, score)`.
      on: the set whose score that is, "" for what is reported.
    """

    choose: Callable[[Sequence[Json], Score], Json]
    on: str = ""


def _last(lines: Sequence[Json], score: Score) -> Json:
    del score
    return lines[-1]


def _best(lines: Sequence[Json], score: Score) -> Json:
    """The first of equally good evaluations."""
    return max(lines, key=score)


SELECT: dict[str, Selection] = {
    "last": Selection(_last),
    "best": Selection(_best),
    "held_out": Selection(_best, HELD_OUT),
}


def on_held_out(metric: str) -> str:
    """The name of a metric of the training data that is kept to select by."""
    return f"{metric}_{HELD_OUT}"
