"""Claims of the paper, and of the article on its accepted version, judged by a study.

An effect is of one arm: a difference between groups of models or between two measures of them, or a
rank correlation over models. Its samples are seeds: the interval is the t distribution's, and says
nothing of other pretrained models where the seeds are those of fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_jax import properties
from pe_jax.study.plan import KEPT
from pe_jax.study.results import CHANGE, GLUE_MEAN, LOSS, LOSS_UNSEEN, SQUAD_F1, Values

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
_LEVEL = 0.05


class Difference(NamedTuple):
    """Difference between the means of two groups of models, or of two measures of one group.

    Attributes:
      other_models, other_measure: what is subtracted; each defaults to that of the minuend.
    """

    measure: str
    models: tuple[str, ...]
    other_models: tuple[str, ...] = ()
    other_measure: str = ""

    def verdict(self, claim: Claim, arm: str, values: Values) -> Verdict:
        minuend = values.mean(arm, self.models, self.measure)
        subtrahend = values.mean(
            arm, self.other_models or self.models, self.other_measure or self.measure
        )
        if not (seeds := sorted(minuend.keys() & subtrahend.keys())):
            return Verdict(claim, arm, 0)
        a, b = (np.array([column[seed] for seed in seeds]) for column in (minuend, subtrahend))
        verdict = _of_samples(claim, arm, (a - b).tolist())
        return verdict._replace(between=(float(a.mean()), float(b.mean())))

    def __str__(self) -> str:
        models, others = (
            _GROUPS.get(group, ", ".join(group)) for group in (self.models, self.other_models)
        )
        if others:
            return f"{self.measure}: {models} minus {others}"
        return f"{self.measure} minus {self.other_measure}: {models}"


class Ranks(NamedTuple):
    """Spearman's correlation over all models of a violation, of the first pretraining run, with a
    score; tested by permuting the models."""

    violation: str
    score: str

    def verdict(self, claim: Claim, arm: str, values: Values) -> Verdict:
        models = [
            model
            for model in values.models(arm)
            if KEPT not in model  # The same encoding again.
            and values.by_seed(arm, model, self.violation)
            and values.by_seed(arm, model, self.score)
        ]
        if len(models) < properties.MINIMUM_RUNS:
            return Verdict(claim, arm, 0)
        violations = [values.by_seed(arm, model, self.violation)[0] for model in models]
        scores = [values.by_seed(arm, model, self.score) for model in models]
        seeds = sorted(set.intersection(*map(set, scores)))
        columns = {str(seed): [by_seed[seed] for by_seed in scores] for seed in seeds}
        mean = np.mean(list(columns.values()), axis=0)
        *by_seed, of_mean = properties.correlate(
            {self.violation: violations}, {**columns, "mean": mean}
        )
        if of_mean.spearman is None:
            return Verdict(claim, arm, 0)
        effects = [row.spearman for row in by_seed if row.spearman is not None]
        verdict = _of_samples(claim, arm, effects, of_mean.spearman_p, limit=1)
        return verdict._replace(influence=_influence(models, violations, [*columns.values()]))

    def __str__(self) -> str:
        return f"rank correlation of violations ({self.violation}) with {self.score}"


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
    """A claim in our words, where it stands, its effect, and the sign of that if it is right."""

    says: str
    place: str
    effect: Difference | Ranks
    sign: int


_ARTICLE = "article on the accepted paper, heat map"
CLAIMS: tuple[Claim, ...] = (
    Claim("Without positions, span prediction collapses",
          "section 4.1, table 3", Difference(SQUAD_F1, ("none",), SINGLES), -1),
    Claim("Relative encodings are better than the learned absolute table on spans",
          "section 4.1, table 3", Difference(SQUAD_F1, RELATIVE, (LEARNED,)), +1),
    Claim("The learned absolute table leads classification",
          "section 4.1, table 2", Difference(GLUE_MEAN, (LEARNED,), OTHERS), +1),
    Claim("Learnable frequencies beat fixed ones on spans",
          "section 4.1", Difference(SQUAD_F1, LEARNABLE, FIXED), +1),
    Claim("Learnable frequencies beat fixed ones on classification",
          "section 4.1", Difference(GLUE_MEAN, LEARNABLE, FIXED), +1),
    Claim("Learnable frequencies beat fixed ones in pretraining (ours, after the two above)",
          "section 4.1", Difference(LOSS, LEARNABLE, FIXED), -1),
    Claim("Sinusoidal and relative encodings carry over to inputs longer than any seen in "
          "pretraining, the learned absolute table does not",
          "section 4.2, figure 1", Difference(LOSS_UNSEEN, OTHERS, (LEARNED,)), -1),
    Claim("The same after fine-tuning on shorter inputs",
          "section 4.2", Difference(CHANGE.format(512), OTHERS, (LEARNED,)), +1),
    Claim("Training makes a learned absolute table more local (the paper's becomes local)",
          "sections 5.2 and A.4, figure 5",
          Difference("vectors trained, local monotonicity", (LEARNED,),
                     other_measure="vectors at the start, local monotonicity"), -1),
    Claim("and more nearly translation invariant (the paper's becomes nearly so)",
          "sections 5.2 and A.4, figure 5",
          Difference("vectors trained, translation invariance", (LEARNED,),
                     other_measure="vectors at the start, translation invariance"), -1),
    Claim("The learned relative table tells forward from backward, absolute encodings nearly "
          "do not", "sections 5.1 and 5.3, figures 2 and 3",
          Difference("words, symmetry", ("learned_relative",), ABSOLUTE), +1),
    Claim("It tells near offsets apart and merges far ones", "section 5.1, figure 2; article",
          Difference("vectors trained, likeness of far offsets", ("learned_relative",),
                     other_measure="vectors trained, likeness of near offsets"), +1),
    *(Claim(f"{property} goes with {scores} span scores",
            _ARTICLE, Ranks(f"{probe}, {name}", SQUAD_F1), sign)
      for probe in ("words", "kernel")
      for property, scores, name, sign in (
          ("Violated translation invariance", "lower", "translation invariance", -1),
          ("Violated local monotonicity", "lower", "local monotonicity", -1),
          ("Asymmetry", "higher", "symmetry", +1),
      )),
)  # fmt: skip


class Verdict(NamedTuple):
    """Verdict of one arm on a claim.

    Attributes:
      n: seeds; 0 where runs are missing.
      effect: its mean; low, high: the 95 % interval, None with one seed.
      p: two-sided; q: of all claims together, by Benjamini and Hochberg.
      between: the two means that a difference is taken of.
      influence: see `_influence`, of a correlation.
    """

    claim: Claim
    arm: str
    n: int
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    q: float | None = None
    between: tuple[float, float] | None = None
    influence: tuple[int, str, float] | None = None

    @property
    def says(self) -> str:
        if self.effect is None:
            return "not made yet"
        if self.q is None or self.q >= _LEVEL:
            return "undecided"
        return "reproduced" if self.agrees else "contradicted"

    @property
    def agrees(self) -> bool:
        """True if the effect has the sign that is claimed, by chance or not."""
        return self.effect is not None and bool(np.sign(self.effect) == self.claim.sign)

    @property
    def leans(self) -> bool:
        """True if it is undecided only because of the correction over the table."""
        return self.says == "undecided" and self.p is not None and self.p < _LEVEL


def judge(values: Values, arms: Sequence[str]) -> list[Verdict]:
    """Judge every claim in every arm; false discoveries are controlled over all of them."""
    from scipy import stats  # Long to import.

    verdicts = [claim.effect.verdict(claim, arm, values) for claim in CLAIMS for arm in arms]
    tested = [verdict.p for verdict in verdicts if verdict.p is not None]
    corrected = iter(stats.false_discovery_control(tested)) if tested else iter(())
    return [
        verdict if verdict.p is None else verdict._replace(q=float(next(corrected)))
        for verdict in verdicts
    ]


def _of_samples(
    claim: Claim, arm: str, effects: list[float], p: float | None = None, limit: float = np.inf
) -> Verdict:
    """Return the verdict on an effect of at least one seed.

    Args:
      p: the p-value, if it is not that of a t-test over seeds.
      limit: the greatest size that the effect can have.
    """
    from scipy import stats

    mean = float(np.mean(effects))
    verdict = Verdict(claim, arm, len(effects), mean, p=p)
    if len(effects) < 2:
        return verdict
    if np.ptp(effects) == 0:  # One value says nothing of chance.
        return verdict._replace(low=mean, high=mean)
    test = stats.ttest_1samp(effects, 0)
    low, high = np.clip(test.confidence_interval(0.95), -limit, limit).tolist()
    return verdict._replace(low=low, high=high, p=float(test.pvalue) if p is None else p)


def models_above(values: Values, arm: str, measure: str, score: float) -> tuple[int, int]:
    """Return how many models of an arm are above `score` by more than chance, and how many have
    several seeds: by Student's one-sided t-test over seeds, p < 0.025."""
    from scipy import stats

    columns = [[*values.by_seed(arm, model, measure).values()] for model in values.models(arm)]
    repeated = [column for column in columns if len(column) > 1]
    above = [
        column
        for column in repeated
        if np.ptp(column) > 0
        and stats.ttest_1samp(column, score, alternative="greater").pvalue < _LEVEL / 2
    ]
    return len(above), len(repeated)
