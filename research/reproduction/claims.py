"""Claims of the paper, and of the article on its accepted version, judged by a study.

The table is fixed before the runs that it is judged by: effect, direction, the size below which a
difference does not matter, and the family of claims that p is corrected for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from research.reproduction.effects import (
    ABSOLUTE,
    EXPLORATORY,
    FIXED,
    LEARNABLE,
    LEARNED,
    LEVEL,
    OTHERS,
    PRIMARY,
    RELATIVE,
    SINGLES,
    Claim,
    Difference,
    Ranks,
    Verdict,
)
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import (
    ACCURACY,
    CHANGE,
    CLASSIFICATION,
    LOSS,
    LOSS_UNSEEN,
    R2,
    Values,
)
from research.reproduction.results_file import SQUAD_F1

_POINTS, _NATS, _VIOLATION = 2.0, 0.05, 0.02  # Margins.
_ARTICLE = "article on the accepted paper, heat map"
CLAIMS: tuple[Claim, ...] = (
    Claim("Without positions, span prediction collapses",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, ("none",), SINGLES), -1, _POINTS),
    Claim("Relative encodings are on average better than the learned absolute table on spans",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, RELATIVE, (LEARNED,)), +1, _POINTS),
    Claim("The learned absolute table is better than the average of the others on classification",
          "section 4.1, table 2", REPLACED,
          Difference(CLASSIFICATION, (LEARNED,), OTHERS), +1, _POINTS),
    Claim("Learnable frequencies are on average better than fixed ones on spans",
          "section 4.1", REPLACED,
          Difference(SQUAD_F1, LEARNABLE, FIXED), +1, _POINTS),
    Claim("Learnable frequencies are on average better than fixed ones on classification",
          "section 4.1", REPLACED,
          Difference(CLASSIFICATION, LEARNABLE, FIXED), +1, _POINTS),
    Claim("On inputs longer than those of fine-tuning, other encodings lose less on average than "
          "the learned absolute table", "section 4.2", REPLACED,
          Difference(CHANGE.format(512), OTHERS, (LEARNED,)), +1, _POINTS / 2),
    Claim("Without positions, words are predicted worse (ours)",
          "section 4.1", SCRATCH, Difference(LOSS, ("none",), SINGLES), +1, _NATS),
    Claim("Relative encodings predict words better on average than the learned absolute table "
          "(ours)", "section 4.1", SCRATCH, Difference(LOSS, RELATIVE, (LEARNED,)), -1, _NATS),
    Claim("Learnable frequencies predict words better on average than fixed ones (ours)",
          "section 4.1", SCRATCH, Difference(LOSS, LEARNABLE, FIXED), -1, _NATS),
    Claim("On inputs longer than any seen in pretraining, sinusoidal and relative encodings lose "
          "less on average than the learned absolute table", "section 4.2, figure 1", SCRATCH,
          Difference(LOSS_UNSEEN, OTHERS, (LEARNED,)), -1, _NATS),
    Claim("Training makes a learned absolute table more local (the paper's becomes local)",
          "sections 5.2 and A.4, figure 5", SCRATCH,
          Difference("vectors trained, local monotonicity", (LEARNED,),
                     other_measure="vectors at the start, local monotonicity"), -1, _VIOLATION),
    Claim("Training makes a learned absolute table more nearly translation invariant (the paper's "
          "becomes nearly so)",
          "sections 5.2 and A.4, figure 5", SCRATCH,
          Difference("vectors trained, translation invariance", (LEARNED,),
                     other_measure="vectors at the start, translation invariance"), -1, _VIOLATION),
    Claim("The learned relative table tells forward from backward more than absolute encodings do: "
          "its logits of identical words are less symmetric",
          "sections 5.1 and 5.3, figures 2 and 3", SCRATCH,
          Difference("words, symmetry", ("learned_relative",), ABSOLUTE), +1, _VIOLATION),
    Claim("The learned relative table tells near offsets apart and merges far ones",
          "section 5.1, figure 2; article", SCRATCH,
          Difference("vectors trained, likeness of far offsets", ("learned_relative",),
                     other_measure="vectors trained, likeness of near offsets"), +1, _VIOLATION),
    *(Claim(f"{violation} goes with {'lower' if sign < 0 else 'higher'} scores ({probe})",
            _ARTICLE, arm, Ranks(f"{probe}, {name}", score), sign, None, EXPLORATORY)
      for arm, score in ((REPLACED, SQUAD_F1), (SCRATCH, ACCURACY))
      for probe in ("words", "kernel")
      for violation, name, sign in (
          ("Violated translation invariance", "translation invariance", -1),
          ("Violated local monotonicity", "local monotonicity", -1),
          ("Asymmetry", "symmetry", +1),
      )),
    Claim("What imitates the table of positions best scores best (ours)", "", REPLACED,
          Ranks(R2, SQUAD_F1), +1, None, EXPLORATORY),
)  # fmt: skip


def judge(values: Values, arms: Sequence[str]) -> list[Verdict]:
    """Judge the claims of these arms."""
    verdicts = [claim.effect.verdict(claim, values) for claim in CLAIMS if claim.arm in arms]
    for family in dict.fromkeys((v.claim.family, v.claim.arm) for v in verdicts):
        members = [n for n, v in enumerate(verdicts) if (v.claim.family, v.claim.arm) == family]
        # Claims that cannot be tested yet count with p = 1: more runs do not change the family.
        every_p = [1.0 if (p := verdicts[n].p) is None else p for n in members]
        correct = holm if family[0] == PRIMARY else benjamini_hochberg
        for n, p in zip(members, correct(every_p), strict=True):
            if verdicts[n].p is not None:
                verdicts[n] = verdicts[n]._replace(corrected=p)
    return verdicts


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for the probability of any false claim (Holm 1979)."""
    order = np.argsort(p)
    factors = len(p) - np.arange(len(p))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * factors))
    return corrected.tolist()


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for the share of false claims (Benjamini and Hochberg 1995)."""
    from scipy import stats  # Long to import.

    return stats.false_discovery_control(p).tolist() if len(p) else []


def detectable(seeds: int, level: float) -> float:
    """Return the difference, in standard deviations over seeds, that Student's two-sided paired
    t-test at `level` finds four times of five, before any correction."""
    from scipy import optimize, stats

    critical = stats.t.ppf(1 - level / 2, seeds - 1)

    def missing(d: float) -> float:
        return float(stats.nct.sf(critical, seeds - 1, d * np.sqrt(seeds))) - 0.8

    return float(optimize.brentq(missing, 0, 100))


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
        and stats.ttest_1samp(column, score, alternative="greater").pvalue < LEVEL / 2
    ]
    return len(above), len(repeated)
