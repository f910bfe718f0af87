"""Intervals of weighted sums of scores, over seeds and distillations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from research.reproduction.plan import REPLACED
from research.reproduction.results import Spread, Values

Weights = dict[tuple[str, str], float]  # By model and measure.


class Interval(NamedTuple):
    """Mean of an effect over seeds, its 95 % interval and two-sided p.

    Attributes:
      low, high, p: None with one seed; p is None too if nothing varies.
      alone: the interval over seeds without the spread between distillations.
      size: the mean over the standard deviation of the seeds' effects (Cohen's d of pairs).
    """

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    alone: tuple[float, float] | None = None
    size: float | None = None

    def within(self, margin: float) -> bool:
        if self.low is None or self.high is None:
            return False
        return max(abs(self.low), abs(self.high)) < margin

    def beyond(self, margin: float) -> bool:
        """Whether the whole interval is outside ± margin, on one side."""
        if self.low is None or self.high is None:
            return False
        return self.low > margin or self.high < -margin

    def opposes(self, sign: float, margin: float) -> bool:
        """Whether the interval includes 0 or the other side, and no effect of this sign that
        matters. With one seed: whether the mean has another sign."""
        if self.low is None or self.high is None:
            return sign * self.mean <= 0
        low, high = sorted((sign * self.low, sign * self.high))
        return low <= 0 and high < margin


class Parts(NamedTuple):
    """Variance of a mean and its degrees of freedom, by Satterthwaite (1946)."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, parts: Sequence[Spread]) -> Parts:
        variance = sum(part.variance for part in parts)
        squares = sum(part.variance**2 / part.freedom for part in parts)
        return cls(variance, variance**2 / squares if squares else np.inf)

    def half_width(self) -> float:
        from scipy import stats  # Long to import.

        return float(stats.t.ppf(0.975, self.freedom) * np.sqrt(self.variance))

    def p(self, mean: float) -> float | None:
        from scipy import stats

        if not self.variance:
            return None
        return float(2 * stats.t.sf(abs(mean) / np.sqrt(self.variance), self.freedom))


def interval(values: Values, arm: str, weights: Weights) -> Interval | None:
    """Return the weighted sum of scores, over the seeds that all of them have; None without any.

    The variance of the mean has a part for the seeds, s²/n, and in the arm `replaced` one for each
    score, w²σ²/k: σ² is the variance between distillations and k their number.
    """
    columns = [values.by_seed(arm, *key) for key in weights]
    seeds = sorted(set.intersection(*map(set, columns)))
    if not seeds:
        return None
    effects = np.array(
        [np.dot([*weights.values()], [c[seed] for c in columns]) for seed in seeds]
    )
    n, mean = len(effects), float(effects.mean())
    if n < 2:
        return Interval(n, mean)
    deviation = float(effects.std(ddof=1)) if np.ptp(effects) > 0 else 0.0
    over_seeds = Spread(deviation**2 / n, n - 1)
    distilled: dict[
        str, float
    ] = {}  # By measure: its σ² is one estimate, whatever it is used for.
    for (model, measure), weight in weights.items():
        if arm == REPLACED and (spread := values.spreads.get(measure)):
            share = weight**2 / values.distillations(model, measure)
            distilled[measure] = distilled.get(measure, 0.0) + share * spread.variance
    spreads = [Spread(v, values.spreads[m].freedom) for m, v in distilled.items()]
    parts, alone = Parts.of([over_seeds, *spreads]), Parts.of([over_seeds]).half_width()
    half = parts.half_width()
    size = mean / deviation if deviation else None
    return Interval(
        n,
        mean,
        mean - half,
        mean + half,
        parts.p(mean),
        (mean - alone, mean + alone),
        size,
    )
