"""Whether encoders with other positions tag worse: differences, with intervals, from results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from research.spread import half_width, pooled_variance
from research.tagging.plan import TASKS

REFERENCE = "rope"

# The score of each pretrained or distilled model, mean over the seeds of fine-tuning.
Scores = Mapping[str, list[float]]


class Difference(NamedTuple):
    """How an encoding's scores differ from those of `REFERENCE`, in points.

    Attributes:
      value: of means over models.
      width: half of the interval's; None if no encoding has a second model.
    """

    value: float
    width: float | None

    @property
    def verdict(self) -> str:
        if self.width is None:
            return "one model each"
        if abs(self.value) <= self.width:
            return "not decided"
        return "better" if self.value > 0 else "worse"


def scores_of(
    lines: Iterable[Mapping[str, Any]], origin: str, task: str
) -> dict[str, list[float]]:
    """Return the scores of the models of an origin on a task, by encoding."""
    by_position: dict[str, list[float]] = {}
    for line in lines:
        if line["origin"] == origin and line["task"] == task:
            score = statistics.fmean(line["scores"][TASKS[task].metric])
            by_position.setdefault(line["position"], []).append(score)
    return by_position


def deviation(scores: Scores) -> tuple[float, int]:
    """Return the standard deviation between models of one encoding, pooled over encodings, and its
    degrees of freedom: 0 without a second model."""
    variance, freedom = pooled_variance(scores.values())
    return variance**0.5, freedom


def differences(scores: Scores) -> dict[str, Difference]:
    """Return the difference of each encoding to `REFERENCE`. All intervals of the encodings hold
    together with 95 % confidence (Bonferroni)."""
    if REFERENCE not in scores:
        return {}
    reference = scores[REFERENCE]
    others = [position for position in scores if position != REFERENCE]
    sd, freedom = deviation(scores)
    found = {}
    for position in others:
        values = scores[position]
        width = None
        if freedom:
            counts = len(values), len(reference)
            width = half_width(sd, freedom, counts, comparisons=len(others))
        difference = statistics.fmean(values) - statistics.fmean(reference)
        found[position] = Difference(difference, width)
    return found
