"""Effects that claims are judged by: their samples over seeds, intervals and verdicts.

An effect is of one arm: a difference between groups of models or between two measures of them, or a
rank correlation over models. Its samples are seeds, with the t distribution's interval: seeds of
pretraining from scratch; in the arm `replaced` seeds of fine-tuning, which share a distilled model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_jax import properties
from pe_jax.study.plan import REPLACED, SCRATCH, UNTOUCHED
from pe_jax.study.results import Values

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
    """Spearman's correlation over all models of a property, of the first training, with a score;
    tested by permuting the models."""

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
        violations = [values.by_seed(claim.arm, model, self.violation)[0] for model in models]
        scores = [values.by_seed(claim.arm, model, self.score) for model in models]
        seeds = sorted(set.intersection(*map(set, scores)))
        columns = {str(seed): [by_seed[seed] for by_seed in scores] for seed in seeds}
        mean = np.mean(list(columns.values()), axis=0)
        *by_seed, of_mean = properties.correlate(
            {self.violation: violations}, {**columns, "mean": mean}
        )
        if of_mean.spearman is None:
            return Verdict(claim, 0)
        effects = [row.spearman for row in by_seed if row.spearman is not None]
        verdict = _of_samples(claim, effects, of_mean.spearman_p, limit=1)
        return verdict._replace(influence=_influence(models, violations, [*columns.values()]))

    def __str__(self) -> str:
        return f"rank correlation of {self.violation} with {self.score}"


def _influence(
    models: Sequence[str], violations: Sequence[float], scores: Sequence[Sequence[float]]
) -> tuple[int, str, float]:
    """Return the number of models in a correlation, the one whose removal changes it most, and the
    correlation without it; `scores` has a column for each seed."""
    from scipy import stats

    def correlation(without: Sequence[int]) -> float:
        x = np.delete(violations, without)
        by_seed = [stats.spearmanr(x, np.delete(column, without)).statistic for column in scores]
        return float(np.nanmean(by_seed))

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

    says: str
    place: str
    arm: str
    effect: Difference | Ranks
    sign: int
    margin: float | None = None
    family: str = PRIMARY


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
      n: seeds; 0 where runs are missing.
      effect: its mean; low, high: the 95 % interval, None with one seed.
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
    def says(self) -> str:
        """The verdict: equivalent if the 95 % interval lies within the margin, however small p."""
        if self.effect is None:
            return "not made yet"
        ends, margin = (self.low, self.high), self.claim.margin or 0
        if all(end is not None and abs(end) < margin for end in ends):
            return f"equivalent within ±{margin:g}"
        if self.corrected is None or self.corrected >= LEVELS[self.claim.arm]:
            return "undecided"
        return "reproduced" if np.sign(self.effect) == self.claim.sign else "contradicted"


def _of_samples(
    claim: Claim, effects: list[float], p: float | None = None, limit: float = np.inf
) -> Verdict:
    """Return the verdict on an effect of at least one seed.

    Args:
      p: the p-value, if it is not that of a t-test over seeds.
      limit: the greatest size that the effect can have.
    """
    from scipy import stats

    mean = float(np.mean(effects))
    verdict = Verdict(claim, len(effects), mean, p=p)
    if len(effects) < 2:
        return verdict
    if np.ptp(effects) == 0:  # One value says nothing of chance.
        return verdict._replace(low=mean, high=mean)
    test = stats.ttest_1samp(effects, 0)
    low, high = np.clip(test.confidence_interval(0.95), -limit, limit).tolist()
    size = mean / float(np.std(effects, ddof=1))
    p = float(test.pvalue) if p is None else p
    return verdict._replace(low=low, high=high, size=size, p=p)
