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


class Influence(NamedTuple):
    """Number of models in a correlation, the model whose removal changes it most, and the
    correlation without that model."""

    models: int
    model: str
    without: float


class Samples(NamedTuple):
    """Samples of an effect.

    Attributes:
      effects: one for each seed.
      p: the p-value, if it is not that of a t-test over seeds.
      limit: the greatest size that the effect can have.
      between: the two means that a difference is taken of; influence: of a correlation.
    """

    effects: list[float]
    p: float | None = None
    limit: float = np.inf
    between: tuple[float, float] | None = None
    influence: Influence | None = None


class Difference(NamedTuple):
    """Difference between the means of two groups of models, or of two measures of one group.

    Attributes:
      other_models, other_measure: what is subtracted; each defaults to that of the minuend.
    """

    measure: str
    models: tuple[str, ...]
    other_models: tuple[str, ...] = ()
    other_measure: str = ""

    def samples(self, values: Values, arm: str) -> Samples:
        minuend = values.mean(arm, self.models, self.measure)
        subtrahend = values.mean(
            arm, self.other_models or self.models, self.other_measure or self.measure
        )
        seeds = sorted(minuend.keys() & subtrahend.keys())
        if not seeds:
            return Samples([])
        a, b = (np.array([column[seed] for seed in seeds]) for column in (minuend, subtrahend))
        return Samples((a - b).tolist(), between=(float(a.mean()), float(b.mean())))

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

    def samples(self, values: Values, arm: str) -> Samples:
        models = [
            model
            for model in values.models(arm)
            if KEPT not in model  # The same encoding again.
            and values.by_seed(arm, model, self.violation)
            and values.by_seed(arm, model, self.score)
        ]
        if len(models) < properties.MINIMUM_RUNS:
            return Samples([])
        violations = [values.by_seed(arm, model, self.violation)[0] for model in models]
        scores = [values.by_seed(arm, model, self.score) for model in models]
        seeds = sorted(set.intersection(*map(set, scores)))
        columns = {str(seed): [by_seed[seed] for by_seed in scores] for seed in seeds}
        mean = np.mean(list(columns.values()), axis=0)
        *by_seed, of_mean = properties.correlate(
            {self.violation: violations}, {**columns, "mean": mean}
        )
        if of_mean.spearman is None:
            return Samples([])
        effects = [row.spearman for row in by_seed if row.spearman is not None]
        influence = _influence(models, violations, [*columns.values()])
        return Samples(effects, of_mean.spearman_p, limit=1, influence=influence)

    def __str__(self) -> str:
        return f"rank correlation of violations ({self.violation}) with {self.score}"


def _influence(
    models: Sequence[str], violations: Sequence[float], scores: Sequence[Sequence[float]]
) -> Influence:
    """Return the model that decides a correlation; `scores` has a column for each seed."""
    from scipy import stats

    def correlation(without: Sequence[int]) -> float:
        x = np.delete(violations, without)
        each = [stats.spearmanr(x, np.delete(column, without)).statistic for column in scores]
        return float(np.nanmean(each))

    most = max(range(len(models)), key=lambda n: abs(correlation([n]) - correlation([])))
    return Influence(len(models), models[most], correlation([most]))


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
      between, influence: as in `Samples`.
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
    influence: Influence | None = None

    @property
    def says(self) -> str:
        if self.effect is None:
            return "not made yet"
        if self.q is None or self.q >= _LEVEL:
            return "undecided"
        return "reproduced" if self.agrees else "contradicted"

    @property
    def agrees(self) -> bool:
        """Whether the effect has the sign that is claimed, by chance or not."""
        return self.effect is not None and bool(np.sign(self.effect) == self.claim.sign)

    @property
    def leans(self) -> bool:
        """Whether it is undecided only for the correction over the table."""
        return self.says == "undecided" and self.p is not None and self.p < _LEVEL


def judge(values: Values, arms: Sequence[str]) -> list[Verdict]:
    """Judge every claim in every arm; false discoveries are controlled over all of them."""
    from scipy import stats  # Long to import.

    verdicts = [_verdict(claim, arm, values) for claim in CLAIMS for arm in arms]
    tested = [verdict.p for verdict in verdicts if verdict.p is not None]
    corrected = iter(stats.false_discovery_control(tested)) if tested else iter(())
    return [
        verdict if verdict.p is None else verdict._replace(q=float(next(corrected)))
        for verdict in verdicts
    ]


def _verdict(claim: Claim, arm: str, values: Values) -> Verdict:
    from scipy import stats

    effects, p, limit, between, influence = claim.effect.samples(values, arm)
    if not effects:
        return Verdict(claim, arm, 0)
    mean = float(np.mean(effects))
    verdict = Verdict(claim, arm, len(effects), mean, p=p, between=between, influence=influence)
    if len(effects) < 2:
        return verdict
    if _all_equal(effects):
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
        if not _all_equal(column)
        and stats.ttest_1samp(column, score, alternative="greater").pvalue < _LEVEL / 2
    ]
    return len(above), len(repeated)


def _all_equal(samples: Sequence[float]) -> bool:
    """Return whether seeds give one value, which says nothing of chance."""
    return bool(np.ptp(samples) == 0)
