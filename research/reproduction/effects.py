"""Effects that claims are judged by: their samples over seeds, intervals and verdicts.

An effect is of one arm. A difference between groups of models, or between two measures of them, is
judged over seeds, by Student's t: seeds of pretraining from scratch; in the arm `replaced` seeds of
fine-tuning, which share a distilled model. A rank correlation is judged over models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_jax import properties
from research.reproduction.plan import REPLACED, SCRATCH, UNTOUCHED
from research.reproduction.results import Values

LEARNED = "learned_absolute"
FIXED = ("sinusoidal_absolute", "sinusoidal_relative")
LEARNABLE = ("learnable_sinusoidal_absolute", "learnable_sinusoidal_relative")
ABSOLUTE = (LEARNED, "sinusoidal_absolute", "learnable_sinusoidal_absolute")
RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")
SINGLES = (*ABSOLUTE, *RELATIVE)
OTHERS = tuple(name for name in SINGLES if name != LEARNED)

_GROUPS = {
    SINGLES: "the six singles",
    OTHERS: "the other five singles",
    RELATIVE: "relative",
    ABSOLUTE: "absolute",
    LEARNABLE: "learnable sinusoids",
    FIXED: "fixed sinusoids",
}
LEVEL = 0.05
# Below it a corrected p decides a claim. Claims from scratch are judged twice, with three seeds and
# with four: 0.0294 at each time keeps errors at 5 % in all (Pocock 1977).
LEVELS = {SCRATCH: 0.0294, REPLACED: LEVEL}
PRIMARY, EXPLORATORY = "primary", "exploratory"


class Difference(NamedTuple):
    """Difference between the means of two groups of models, or of two measures of one group.

    Attributes:
      other_models, other_measure: what is subtracted; each defaults to that of the minuend.
    """

    measure: str
    models: tuple[str, ...]
    other_models: tuple[str, ...] = ()
    other_measure: str = ""

    def verdict(self, claim: Claim, values: Values) -> Verdict:
        minuend = values.mean(claim.arm, self.models, self.measure)
        subtrahend = values.mean(
            claim.arm, self.other_models or self.models, self.other_measure or self.measure
        )
        if not (seeds := sorted(minuend.keys() & subtrahend.keys())):
            return Verdict(claim, 0)
        a, b = (np.array([column[seed] for seed in seeds]) for column in (minuend, subtrahend))
        verdict = _of_samples(claim, (a - b).tolist())
        return verdict._replace(between=(float(a.mean()), float(b.mean())))

    def __str__(self) -> str:
        models, others = (
            _GROUPS.get(group, ", ".join(group)) for group in (self.models, self.other_models)
        )
        if others:
            return f"{self.measure}: {models} minus {others}"
        return f"{self.measure} minus {self.other_measure}: {models}"


class Ranks(NamedTuple):
    """Spearman's correlation of a property with a score over all models, each the mean of its
    seeds, tested by permuting the models."""

    violation: str
    score: str

    def verdict(self, claim: Claim, values: Values) -> Verdict:
        models = [
            model
            for model in values.models(claim.arm)
            if model != UNTOUCHED
            and values.by_seed(claim.arm, model, self.violation)
            and values.by_seed(claim.arm, model, self.score)
        ]
        if len(models) < properties.MINIMUM_RUNS:
            return Verdict(claim, 0)
        violations = values.model_means(claim.arm, models, self.violation)
        scores = values.model_means(claim.arm, models, self.score)
        (row,) = properties.correlate({self.violation: violations}, {self.score: scores})
        if row.spearman is None:
            return Verdict(claim, 0)
        seeds = min(len(values.by_seed(claim.arm, model, self.score)) for model in models)
        influence = _influence(models, violations, scores)
        return Verdict(claim, seeds, row.spearman, p=row.spearman_p, influence=influence)

    def __str__(self) -> str:
        return f"rank correlation of {self.violation} with {self.score}"


def _influence(
    models: Sequence[str], violations: Sequence[float], scores: Sequence[float]
) -> tuple[int, str, float]:
    """Return the number of models in a correlation, the one whose removal changes it most, and the
    correlation without it; 0 if nothing varies any more."""
    from scipy import stats

    def correlation(without: Sequence[int]) -> float:
        x, y = np.delete(violations, without), np.delete(scores, without)
        varies = np.ptp(x) > 0 and np.ptp(y) > 0
        return float(stats.spearmanr(x, y).statistic) if varies else 0.0

    most = max(range(len(models)), key=lambda n: abs(correlation([n]) - correlation([])))
    return len(models), models[most], correlation([most])


class Claim(NamedTuple):
    """A claim in our words, where it stands, and how it is judged.

    Attributes:
      arm: of the study, whose models it is judged by.
      effect, sign: what is measured, and its sign if the claim is right.
      margin: effects within ± this are too small to matter; None for correlations.
      family: PRIMARY, claims of the paper on training and scores, or EXPLORATORY.
    """

    text: str
    place: str
    arm: str
    effect: Difference | Ranks
    sign: int
    margin: float | None = None
    family: str = PRIMARY


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
      n: seeds, of a correlation the fewest of any model's score; 0 where runs are missing.
      effect: its mean over seeds, or the correlation; low, high: the 95 % interval of a mean, None
        with one seed.
      size: the mean over the standard deviation of the seeds' effects (Cohen's d of pairs).
      p: two-sided; corrected: for the claims of the same family and arm, by Holm for PRIMARY
        (errors), by Benjamini and Hochberg for EXPLORATORY (false discoveries).
      between: the two means that a difference is taken of.
      influence: see `_influence`, of a correlation.
    """

    claim: Claim
    n: int
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    size: float | None = None
    p: float | None = None
    corrected: float | None = None
    between: tuple[float, float] | None = None
    influence: tuple[int, str, float] | None = None

    @property
    def outcome(self) -> str:
        """In words: equivalent if the 95 % interval lies within the margin, however small p."""
        if self.effect is None:
            return "not made yet"
        ends, margin = (self.low, self.high), self.claim.margin or 0
        if all(end is not None and abs(end) < margin for end in ends):
            return f"equivalent within ±{margin:g}"
        if self.corrected is None or self.corrected >= LEVELS[self.claim.arm]:
            return "undecided"
        return "reproduced" if np.sign(self.effect) == self.claim.sign else "contradicted"


def _of_samples(claim: Claim, effects: list[float]) -> Verdict:
    """Return the verdict on a difference, given for at least one seed."""
    from scipy import stats

    mean = float(np.mean(effects))
    verdict = Verdict(claim, len(effects), mean)
    if len(effects) < 2:
        return verdict
    if np.ptp(effects) == 0:  # One value says nothing of chance.
        return verdict._replace(low=mean, high=mean)
    test = stats.ttest_1samp(effects, 0)
    low, high = map(float, test.confidence_interval(0.95))
    size = mean / float(np.std(effects, ddof=1))
    return verdict._replace(low=low, high=high, size=size, p=float(test.pvalue))
