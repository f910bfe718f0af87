"""The spread between repetitions, pooled over treatments."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def pooled_variance(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the variance within groups, pooled over those of several values, and its degrees of
    freedom; 0.0 and 0 if there are none."""
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return 0.0, 0
    squares = sum((len(x) - 1) * statistics.variance(x) for x in several)
    return squares / freedom, freedom
