"""The spread between repetitions, pooled over treatments."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from scipy import stats


def pooled_variance(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the variance within groups, pooled over those of several values, and its degrees of
    freedom; 0.0 and 0 if there are none."""
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return 0.0, 0
    squares = sum((len(x) - 1) * statistics.variance(x) for x in several)
    return squares / freedom, freedom


def half_width(
    sd: float, freedom: int, counts: tuple[int, int], comparisons: int
) -> float:
    """Return half the width of the interval of a difference of two means of `counts` values.
    Intervals of as many comparisons hold together with 95 % confidence (Bonferroni).

    Args:
      sd: the standard deviation of a value, with its degrees of freedom.
    """
    quantile = float(stats.t.ppf(1 - 0.025 / comparisons, freedom))
    return quantile * sd * (1 / counts[0] + 1 / counts[1]) ** 0.5
