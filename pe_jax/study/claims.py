"""Claims of the paper, and of the article on its accepted version, and what a study says of them.

An effect is of one arm: a difference between groups of models, between two measures of them, or a
rank correlation over models. Its samples are seeds: the interval is the t distribution's, and says
nothing of other pretrained models where the seeds are those of fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pe_jax import properties
from pe_jax.study.evidence import CHANGE, GLUE_MEAN, LOSS, LOSS_UNSEEN, SQUAD_F1, BySeed, Evidence
from pe_jax.study.plan import KEPT

LEARNED = "learned_absolute"
FIXED = ("sinusoidal_absolute", "sinusoidal_relative")
LEARNABLE = ("learnable_sinusoidal_absolute", "learnable_sinusoidal_relative")
ABSOLUTE = (LEARNED, "sinusoidal_absolute", "learnable_sinusoidal_absolute")
RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")
SINGLES = (*ABSOLUTE, *RELATIVE)
OTHERS = tuple(one for one in SINGLES if one != LEARNED)

_GROUPS = {
    SINGLES: "the six singles",
    OTHERS: "the other five singles",
    RELATIVE: "relative",
    ABSOLUTE: "absolute",
    LEARNABLE: "learnable sinusoids",
    FIXED: "fixed sinusoids",
}


class Influence(NamedTuple):
    """Of a correlation: over how many models, the one without which it is the most different, and
    what it is then."""

    models: int
    model: str
    without: float


class Samples(NamedTuple):
    """Of an effect.

    Attributes:
      values: one for each seed.
      p: where seeds are not what it is tested over.
      limit: the greatest size that it can have.
      between: of a difference, the two means that it is taken of; influence: of a correlation.
    """

    values: list[float]
    p: float | None = None
    limit: float = np.inf
    between: tuple[float, float] | None = None
    influence: Influence | None = None


class Effect(Protocol):
    def samples(self, evidence: Evidence, arm: str) -> Samples: ...

    def __str__(self) -> str: ...


class Difference(NamedTuple):
    """Between groups of models, by one measure; the mean of each group."""

    measure: str
    of: tuple[str, ...]
    against: tuple[str, ...]

    def samples(self, evidence: Evidence, arm: str) -> Samples:
        ours = evidence.mean(arm, self.of, self.measure)
        return _minus(ours, evidence.mean(arm, self.against, self.measure))

    def __str__(self) -> str:
        return f"{self.measure}: {_named(self.of)} minus {_named(self.against)}"


class Change(NamedTuple):
    """Between two measures of the same models."""

    measure: str
    before: str
    of: tuple[str, ...]

    def samples(self, evidence: Evidence, arm: str) -> Samples:
        after = evidence.mean(arm, self.of, self.measure)
        return _minus(after, evidence.mean(arm, self.of, self.before))

    def __str__(self) -> str:
        return f"{self.measure} minus {self.before}: {_named(self.of)}"


class Ranks(NamedTuple):
    """Spearman's correlation over all models of a violation, of the first pretraining run, with a
    score; tested by permuting the models."""

    violation: str
    score: str

    def samples(self, evidence: Evidence, arm: str) -> Samples:
        models = [
            model
            for model in evidence.models(arm)
            if KEPT not in model  # The same encoding again.
            and evidence.of(arm, model, self.violation)
            and evidence.of(arm, model, self.score)
        ]
        if len(models) < properties.MINIMUM_RUNS:
            return Samples([])
        violations = [evidence.of(arm, model, self.violation)[0] for model in models]
        scores = [evidence.of(arm, model, self.score) for model in models]
        seeds = sorted(set.intersection(*map(set, scores)))
        by_seed = {str(seed): [one[seed] for one in scores] for seed in seeds}
        mean = np.mean(list(by_seed.values()), axis=0)
        found = properties.correlate({self.violation: violations}, {**by_seed, "mean": mean})
        *each, whole = (one.spearman for one in found)
        if whole is None:
            return Samples([])
        values = [one for one in each if one is not None]
        influence = _influence(models, violations, [*by_seed.values()])
        return Samples(values, found[-1].spearman_p, limit=1, influence=influence)

    def __str__(self) -> str:
        return f"rank correlation of violations ({self.violation}) with {self.score}"


def _influence(
    models: Sequence[str], violations: Sequence[float], scores: Sequence[Sequence[float]]
) -> Influence:
    from scipy import stats

    def mean(without: Sequence[int]) -> float:
        """Over the seeds, which `scores` has one after another."""
        x = np.delete(violations, without)
        each = [stats.spearmanr(x, np.delete(one, without)).statistic for one in scores]
        return float(np.nanmean(each))

    most = max(range(len(models)), key=lambda n: abs(mean([n]) - mean([])))
    return Influence(len(models), models[most], mean([most]))


def _minus(one: BySeed, other: BySeed) -> Samples:
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return Samples([])
    ours, theirs = (np.array([of[seed] for seed in seeds]) for of in (one, other))
    between = float(ours.mean()), float(theirs.mean())
    return Samples((ours - theirs).tolist(), between=between)


def _named(models: tuple[str, ...]) -> str:
    return _GROUPS.get(models, ", ".join(models))


class Claim(NamedTuple):
    """A claim.

    Attributes:
      says: in our words; place: where it stands.
      sign: of the effect, if the claim is right.
    """

    says: str
    place: str
    effect: Effect
    sign: int


_ARTICLE = "article on the accepted paper, heat map"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Without positions, span prediction collapses",
        "section 4.1, table 3",
        Difference(SQUAD_F1, ("none",), SINGLES),
        -1,
    ),
    Claim(
        "Relative encodings are better than the learned absolute table on spans",
        "section 4.1, table 3",
        Difference(SQUAD_F1, RELATIVE, (LEARNED,)),
        +1,
    ),
    Claim(
        "The learned absolute table leads classification",
        "section 4.1, table 2",
        Difference(GLUE_MEAN, (LEARNED,), OTHERS),
        +1,
    ),
    Claim(
        "Learnable frequencies beat fixed ones on spans",
        "section 4.1",
        Difference(SQUAD_F1, LEARNABLE, FIXED),
        +1,
    ),
    Claim(
        "Learnable frequencies beat fixed ones on classification",
        "section 4.1",
        Difference(GLUE_MEAN, LEARNABLE, FIXED),
        +1,
    ),
    Claim(
        "Learnable frequencies beat fixed ones in pretraining (ours, after the two above)",
        "section 4.1",
        Difference(LOSS, LEARNABLE, FIXED),
        -1,
    ),
    Claim(
        "Sinusoidal and relative encodings carry over to inputs longer than any seen in "
        "pretraining, the learned absolute table does not",
        "section 4.2, figure 1",
        Difference(LOSS_UNSEEN, OTHERS, (LEARNED,)),
        -1,
    ),
    Claim(
        "The same after fine-tuning on shorter inputs",
        "section 4.2",
        Difference(CHANGE.format(512), OTHERS, (LEARNED,)),
        +1,
    ),
    Claim(
        "Training makes a learned absolute table more local (the paper's becomes local)",
        "sections 5.2 and A.4, figure 5",
        Change("vectors trained, local monotonicity", "vectors at the start, local monotonicity",
               (LEARNED,)),
        -1,
    ),
    Claim(
        "and more nearly translation invariant (the paper's becomes nearly so)",
        "sections 5.2 and A.4, figure 5",
        Change("vectors trained, translation invariance",
               "vectors at the start, translation invariance", (LEARNED,)),
        -1,
    ),
    Claim(
        "The learned relative table tells forward from backward, absolute encodings nearly do not",
        "sections 5.1 and 5.3, figures 2 and 3",
        Difference("words, symmetry", ("learned_relative",), ABSOLUTE),
        +1,
    ),
    Claim(
        "It tells near offsets apart and merges far ones",
        "section 5.1, figure 2; article",
        Change("vectors trained, likeness of far offsets",
               "vectors trained, likeness of near offsets", ("learned_relative",)),
        +1,
    ),
    *(
        Claim(
            f"{what} goes with {how} span scores",
            _ARTICLE,
            Ranks(f"{probe}, {name}", SQUAD_F1),
            sign,
        )
        for probe in ("words", "kernel")
        for what, how, name, sign in (
            ("Violated translation invariance", "lower", "translation invariance", -1),
            ("Violated local monotonicity", "lower", "local monotonicity", -1),
            ("Asymmetry", "higher", "symmetry", +1),
        )
    ),
)  # fmt: skip


class Verdict(NamedTuple):
    """What one arm says of a claim.

    Attributes:
      n: seeds; 0 where cells are missing.
      effect: its mean; low, high: the 95 % interval, None with one seed.
      between: the two means that it is the difference of, None of a correlation; influence: of a
        correlation.
      p: two-sided; q: of all claims together, by Benjamini and Hochberg.
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


_LEVEL = 0.05


def judge(evidence: Evidence, arms: Sequence[str]) -> list[Verdict]:
    """Every claim in every arm; false discoveries are controlled over all of them."""
    from scipy import stats  # Long to import.

    verdicts = [_verdict(claim, arm, evidence) for claim in CLAIMS for arm in arms]
    tested = [one.p for one in verdicts if one.p is not None]
    corrected = iter(stats.false_discovery_control(tested)) if tested else iter(())
    return [one if one.p is None else one._replace(q=float(next(corrected))) for one in verdicts]


def _verdict(claim: Claim, arm: str, evidence: Evidence) -> Verdict:
    from scipy import stats

    values, p, limit, between, influence = claim.effect.samples(evidence, arm)
    if not values:
        return Verdict(claim, arm, 0)
    mean = float(np.mean(values))
    verdict = Verdict(claim, arm, len(values), mean, p=p, between=between, influence=influence)
    if len(values) < 2:
        return verdict
    if _all_agree(values):
        return verdict._replace(low=mean, high=mean)
    test = stats.ttest_1samp(values, 0)
    low, high = np.clip(test.confidence_interval(0.95), -limit, limit).tolist()
    return verdict._replace(low=low, high=high, p=float(test.pvalue) if p is None else p)


def models_above(evidence: Evidence, arm: str, measure: str, score: float) -> tuple[int, int]:
    """How many models of an arm are above `score` by more than chance, of those with several seeds:
    by Student's one-sided t-test over seeds, p < 0.025."""
    from scipy import stats

    found = [evidence.of(arm, model, measure) for model in evidence.models(arm)]
    repeated = [[*by_seed.values()] for by_seed in found if len(by_seed) > 1]
    above = [
        values
        for values in repeated
        if not _all_agree(values)
        and stats.ttest_1samp(values, score, alternative="greater").pvalue < _LEVEL / 2
    ]
    return len(above), len(repeated)


def _all_agree(values: Sequence[float]) -> bool:
    """Seeds that do tell nothing of chance."""
    return bool(np.ptp(values) == 0)
