"""Effects that claims are judged by: their samples over seeds, intervals and verdicts.

An effect is of one arm. A difference between groups of models, or between two measures of them, is
judged over seeds, by Student's t: seeds of pretraining from scratch; in the arm `replaced` seeds of
fine-tuning, to which the spread between distillations is added as a component of variance. Every
pair of models in a difference of groups is judged as well: it can contradict the verdict on the
mean. A rank correlation is judged over models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_jax import properties
from research.reproduction.intervals import Interval, Weights, interval
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import Values

LEARNED = "learned_absolute"
FIXED = ("sinusoidal_absolute", "sinusoidal_relative")
LEARNABLE = ("learnable_sinusoidal_absolute", "learnable_sinusoidal_relative")
SINUSOIDS = ("sinusoidal_absolute", "learnable_sinusoidal_absolute")
ABSOLUTE = (LEARNED, *SINUSOIDS)
RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")
SINGLES = (*ABSOLUTE, *RELATIVE)
OTHERS = tuple(name for name in SINGLES if name != LEARNED)
# The paper's combinations, and for each its absolute and its relative part.
_PARTS = tuple(
    (a, r) for a in (LEARNED, "learnable_sinusoidal_absolute") for r in RELATIVE
)
COMBINED = tuple("+".join(parts) for parts in _PARTS)
THEIR_ABSOLUTE, THEIR_RELATIVE = (tuple(part) for part in zip(*_PARTS, strict=True))

_GROUPS = {
    SINGLES: "the six singles",
    OTHERS: "the other five singles",
    RELATIVE: "relative",
    ABSOLUTE: "absolute",
    SINUSOIDS: "absolute sinusoids",
    LEARNABLE: "learnable sinusoids",
    FIXED: "fixed sinusoids",
    COMBINED: "six combinations",
    THEIR_ABSOLUTE: "their absolute parts",
    THEIR_RELATIVE: "their relative parts",
}
LEVEL = 0.05
# Below it a corrected p decides a claim. Claims from scratch are judged twice, with three seeds and
# with four: 0.0294 at each time keeps errors at 5 % in all (Pocock 1977).
LEVELS = {SCRATCH: 0.0294, REPLACED: LEVEL}
# ADDED claims were chosen when their scores were known.
PRIMARY, ADDED, EXPLORATORY, UNMEASURED = (
    "primary",
    "added",
    "exploratory",
    "unmeasured",
)
PAPER, ARTICLE, OURS = "the paper", "the article", "ours"
ONE_MODEL = " in one model"


class Difference(NamedTuple):
    """Difference between the means of two groups of models, or of two measures of one group.

    Groups of equal size are compared pair by pair, others each with each.

    Attributes:
      other_models, other_measure: what is subtracted; each defaults to that of the minuend.
    """

    measure: str
    models: tuple[str, ...]
    other_models: tuple[str, ...] = ()
    other_measure: str = ""

    def verdict(self, claim: Claim, values: Values) -> Verdict:
        others = self.other_models or self.models
        if not (
            mean := interval(values, claim.arm, self._weights(self.models, others))
        ):
            return Verdict(claim, 0)
        pairs = [*zip(self.models, others, strict=True)] if len(others) == len(self.models) else [
            (one, other) for one in self.models for other in others
        ]  # fmt: skip
        members = {
            self._named(*pair): member
            for pair in pairs
            if len(pairs) > 1
            and (
                member := interval(
                    values, claim.arm, self._weights(*((one,) for one in pair))
                )
            )
        }
        columns = [
            values.mean(claim.arm, self.models, self.measure),
            values.mean(claim.arm, others, self.other_measure or self.measure),
        ]
        seeds = columns[0].keys() & columns[1].keys()
        first, second = (
            float(np.mean([column[seed] for seed in seeds])) for column in columns
        )
        return Verdict(
            claim, mean.n, mean.mean, mean.low, mean.high, mean.size, mean.p,
            between=(first, second), members=members, alone=mean.alone,
        )  # fmt: skip

    def _weights(self, models: Sequence[str], others: Sequence[str]) -> Weights:
        weights: Weights = {}
        for group, measure, sign in (
            (models, self.measure, 1), (others, self.other_measure or self.measure, -1)
        ):  # fmt: skip
            for model in group:
                key = model, measure
                weights[key] = weights.get(key, 0.0) + sign / len(group)
        return weights

    def _named(self, model: str, other: str) -> str:
        """Return the name of a pair: of what differs between the pairs."""
        fixed = {
            len(group) == 1 for group in (self.models, self.other_models or self.models)
        }
        if fixed == {True, False}:
            return other if len(self.models) == 1 else model
        return f"{model} − {other}" if self.other_models else model

    def __str__(self) -> str:
        models, others = (
            _GROUPS.get(group, ", ".join(group))
            for group in (self.models, self.other_models)
        )
        if others:
            return f"{self.measure}: {models} minus {others}"
        return f"{self.measure} minus {self.other_measure}: {models}"


class Ranks(NamedTuple):
    """Spearman's correlation of a property with a score over all models, each the mean of its
    seeds, tested by permuting the models. Combinations share their parts with others, and do not
    count."""

    violation: str
    score: str

    def verdict(self, claim: Claim, values: Values) -> Verdict:
        models = [
            model
            for model in values.distinct_models(claim.arm)
            if values.by_seed(claim.arm, model, self.violation)
            and values.by_seed(claim.arm, model, self.score)
        ]
        if len(models) < properties.MINIMUM_RUNS:
            return Verdict(claim, 0)
        violations = values.model_means(claim.arm, models, self.violation)
        scores = values.model_means(claim.arm, models, self.score)
        (row,) = properties.correlate(
            {self.violation: violations}, {self.score: scores}
        )
        if row.spearman is None:
            return Verdict(claim, 0)
        seeds = min(
            len(values.by_seed(claim.arm, model, self.score)) for model in models
        )
        influence = _influence(models, violations, scores)
        return Verdict(
            claim, seeds, row.spearman, p=row.spearman_p, influence=influence
        )

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

    most = max(
        range(len(models)), key=lambda n: abs(correlation([n]) - correlation([]))
    )
    return len(models), models[most], correlation([most])


class NotMeasured(NamedTuple):
    """Effect that no score of the study decides, with the reason."""

    reason: str

    def verdict(self, claim: Claim, values: Values) -> Verdict:
        return Verdict(claim, 0)

    def __str__(self) -> str:
        return self.reason


class Claim(NamedTuple):
    """A claim in our words, where it stands, and how it is judged.

    Attributes:
      arm: of the study, whose models it is judged by.
      effect, sign: what is measured, and its sign if the claim is right.
      margin: effects within ± this are too small to matter; None for correlations.
      family: PRIMARY, claims on training and scores that were fixed before the runs; ADDED, those
        chosen later; or EXPLORATORY.
      source: PAPER, ARTICLE or OURS.
    """

    text: str
    place: str
    arm: str
    effect: Difference | Ranks | NotMeasured
    sign: int
    margin: float | None = None
    family: str = PRIMARY
    source: str = PAPER


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
      n: seeds, of a correlation the fewest of any model's score; 0 where runs are missing.
      effect: its mean over seeds, or the correlation; low, high: the 95 % interval of a mean, None
        with one seed; size, alone: see `Interval`.
      p: two-sided; corrected: for the claims of the same family and arm, by Holm (errors), for
        EXPLORATORY by Benjamini and Hochberg (false discoveries).
      between: the two means that a difference is taken of.
      influence: see `_influence`, of a correlation.
      members: the effect of each pair of models, by name, in a difference of groups.
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
    members: dict[str, Interval] = {}
    alone: tuple[float, float] | None = None

    @property
    def outcome(self) -> str:
        """In words.

        *Equivalent* if the 95 % intervals of the mean and of all members lie within the margin,
        however small p; *mixed* if a member contradicts what the mean says. One seed says nothing
        of chance: an effect beyond the margin, in all members alike, is one *in one model*.
        """
        if self.effect is None:
            return "not judged"
        margin, members = self.claim.margin or 0, self.members.values()
        mean = Interval(self.n, self.effect, self.low, self.high)
        if mean.within(margin):
            if all(member.within(margin) for member in members):
                return f"equivalent within ±{margin:g}"
            return (
                "mixed"
                if any(member.beyond(margin) for member in members)
                else "undecided"
            )
        word = (
            "reproduced" if np.sign(self.effect) == self.claim.sign else "contradicted"
        )
        once = self.p is None and self.low is None
        if once and (self.claim.margin is None or abs(self.effect) <= margin):
            return "undecided"
        if not once and (
            self.corrected is None or self.corrected >= LEVELS[self.claim.arm]
        ):
            return "undecided"
        if any(member.opposes(np.sign(self.effect), margin) for member in members):
            return "mixed"
        return word + ONE_MODEL * once
