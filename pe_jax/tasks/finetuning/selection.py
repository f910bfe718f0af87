"""Which of the evaluations of a run counts: `config.select`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Line = dict[str, Any]  # Of `metrics.jsonl`.


def _last(lines: Sequence[Line], score: Callable[[Line], float]) -> Line:
    del score
    return lines[-1]


def _best(lines: Sequence[Line], score: Callable[[Line], float]) -> Line:
    """The first of equally good ones."""
    return max(lines, key=score)


SELECT: dict[str, Callable[[Sequence[Line], Callable[[Line], float]], Line]] = {
    "last": _last,
    "best": _best,
}


def check_select(select: str) -> None:
    """Raises ValueError for a `config.select` that is not known."""
    if select not in SELECT:
        raise ValueError(f"config.select is one of {', '.join(SELECT)}, got {select!r}.")
