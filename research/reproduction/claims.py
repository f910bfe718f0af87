"""Claims of the paper, and of the article on its accepted version, judged by a study.

The first 27 were fixed before the runs that they are judged by: effect, direction, the size below
which a difference does not matter, and the family of claims that p is corrected for. With the
scores known, claims 11 and 12 got the arm that shows them, and those from 28 on were added. "The
table" is `learned_absolute`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from research.reproduction.effects import (
    ABSOLUTE,
    ADDED,
    ARTICLE,
    COMBINED,
    EXPLORATORY,
    FIXED,
    LEARNABLE,
    LEARNED,
    LEVEL,
    OTHERS,
    OURS,
    RELATIVE,
    SINGLES,
    SINUSOIDS,
    THEIR_ABSOLUTE,
    THEIR_RELATIVE,
    UNMEASURED,
    Claim,
    Difference,
    NotMeasured,
    Ranks,
    Verdict,
)
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import (
    ACCURACY,
    CHANGE,
    CLASSIFICATION,
    KEPT,
    LOSS,
    LOSS_UNSEEN,
    R2,
    Values,
)
from research.reproduction.results_file import SQUAD_F1

_POINTS, _NATS, _VIOLATION, _SHARE = 2.0, 0.05, 0.02, 0.05  # Margins.
_HEAT_MAP = "article on the accepted paper, heat map"
_TRAINED, _START = "vectors trained, {}", "vectors at the start, {}"
_LOCAL, _INVARIANT = "local monotonicity", "translation invariance"


def _by_training(name: str) -> Difference:
    """Violation of a property by a learned absolute table, trained minus at the start."""
    return Difference(
        _TRAINED.format(name), (LEARNED,), other_measure=_START.format(name)
    )


_SYMMETRY = Difference("words, symmetry", ("learned_relative",), ABSOLUTE)
_LIKENESS = Difference("vectors trained, likeness of far offsets", ("learned_relative",),
                       other_measure="vectors trained, likeness of near offsets")  # fmt: skip
_SYMMETRY_CLAIM = "Learned relative attention is less symmetric than absolute"
_LIKENESS_CLAIM = "Learned relative vectors separate near offsets, merge far ones"
CLAIMS: tuple[Claim, ...] = (
    Claim("Without positions, span prediction collapses",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, ("none",), SINGLES), -1, _POINTS),
    Claim("Relative encodings beat the table on spans",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, RELATIVE, (LEARNED,)), +1, _POINTS),
    Claim("The table beats the others on classification",
          "section 4.1, table 2", REPLACED,
          Difference(CLASSIFICATION, (LEARNED,), OTHERS), +1, _POINTS),
    Claim("Learnable frequencies beat fixed ones on spans",
          "section 4.1", REPLACED,
          Difference(SQUAD_F1, LEARNABLE, FIXED), +1, _POINTS),
    Claim("Learnable frequencies beat fixed ones on classification",
          "section 4.1", REPLACED,
          Difference(CLASSIFICATION, LEARNABLE, FIXED), +1, _POINTS),
    Claim("On inputs longer than in fine-tuning the table loses most",
          "section 4.2", REPLACED,
          Difference(CHANGE.format(512), OTHERS, (LEARNED,)), +1, _POINTS / 2),
    Claim("Without positions, masked words are predicted worse",
          "section 4.1", SCRATCH,
          Difference(LOSS, ("none",), SINGLES), +1, _NATS, source=OURS),
    Claim("Relative encodings predict masked words better than the table",
          "section 4.1", SCRATCH,
          Difference(LOSS, RELATIVE, (LEARNED,)), -1, _NATS, source=OURS),
    Claim("Learnable frequencies predict masked words better than fixed ones",
          "section 4.1", SCRATCH,
          Difference(LOSS, LEARNABLE, FIXED), -1, _NATS, source=OURS),
    Claim("On inputs longer than in pretraining the table loses most",
          "section 4.2, figure 1", SCRATCH,
          Difference(LOSS_UNSEEN, OTHERS, (LEARNED,)), -1, _NATS),
    Claim("Training makes the table local",
          "sections 5.2 and A.4, figure 5", REPLACED,
          _by_training(_LOCAL), -1, _VIOLATION, ADDED),
    Claim("Training makes the table nearly translation invariant",
          "sections 5.2 and A.4, figure 5", REPLACED,
          _by_training(_INVARIANT), -1, _VIOLATION, ADDED),
    Claim(_SYMMETRY_CLAIM, "sections 5.1 and 5.3, figures 2 and 3", SCRATCH,
          _SYMMETRY, +1, _VIOLATION),
    Claim(_LIKENESS_CLAIM, "section 5.1, figure 2; article", SCRATCH,
          _LIKENESS, +1, _VIOLATION),
    *(Claim(f"{violation} goes with {'lower' if sign < 0 else 'higher'} scores ({probe})",
            _HEAT_MAP, arm, Ranks(f"{probe}, {name}", score), sign, None, EXPLORATORY, ARTICLE)
      for arm, score in ((REPLACED, SQUAD_F1), (SCRATCH, ACCURACY))
      for probe in ("words", "kernel")
      for violation, name, sign in (
          ("Violated translation invariance", "translation invariance", -1),
          ("Violated local monotonicity", "local monotonicity", -1),
          ("Asymmetry", "symmetry", +1),
      )),
    Claim("What imitates the teacher best scores best on spans", "", REPLACED,
          Ranks(R2, SQUAD_F1), +1, None, EXPLORATORY, OURS),
    Claim(_SYMMETRY_CLAIM, "sections 5.1 and 5.3, figures 2 and 3", REPLACED,
          _SYMMETRY, +1, _VIOLATION, ADDED),
    Claim(_LIKENESS_CLAIM, "section 5.1, figure 2; article", REPLACED,
          _LIKENESS, +1, _VIOLATION, ADDED),
    Claim("Short training makes the table a little more local",
          "sections 5.2 and A.4, figure 5", SCRATCH,
          _by_training(_LOCAL), -1, _VIOLATION, source=OURS),
    Claim("Short training makes the table a little more invariant",
          "sections 5.2 and A.4, figure 5", SCRATCH,
          _by_training(_INVARIANT), -1, _VIOLATION, source=OURS),
    Claim("Learnable absolute sinusoids beat the table on spans",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, ("learnable_sinusoidal_absolute",), (LEARNED,)), +1, _POINTS, ADDED),
    Claim("Absolute sinusoids beat the table on spans",
          "section 4.1, table 3", REPLACED,
          Difference(SQUAD_F1, SINUSOIDS, (LEARNED,)), +1, _POINTS, ADDED),
    Claim("Absolute sinusoids are below the table on classification",
          "section 4.1, table 2", REPLACED,
          Difference(CLASSIFICATION, SINUSOIDS, (LEARNED,)), -1, _POINTS, ADDED),
    Claim("Without positions, classification loses less than spans",
          "section 4.1, tables 2 and 3", REPLACED,
          Difference(KEPT.format(CLASSIFICATION), ("none",),
                     other_measure=KEPT.format(SQUAD_F1)), +1, _SHARE, ADDED),
    *(Claim(f"Combinations beat their {part} part on {task}", "section 4.1, tables 2 and 3",
            REPLACED, Difference(score, COMBINED, parts), +1, _POINTS, ADDED)
      for task, score in (("spans", SQUAD_F1), ("classification", CLASSIFICATION))
      for part, parts in (("absolute", THEIR_ABSOLUTE), ("relative", THEIR_RELATIVE))),
    *(Claim(text, place, arm, NotMeasured(reason), 0, None, UNMEASURED)
      for text, place, arm, reason in (
          ("Learnable relative sinusoids attend forward", "section 5.1, figure 3", SCRATCH,
           "direction was not measured"),
          ("Span tasks lead to longer monotone windows", "section 5", REPLACED,
           "not measured after fine-tuning"),
          ("Relative encodings leave the table's patterns unchanged", "section 5", REPLACED,
           "vectors of combinations were not measured"),
      )),
)  # fmt: skip


def judge(values: Values, arms: Sequence[str]) -> list[Verdict]:
    """Judge the claims of these arms."""
    verdicts = [
        claim.effect.verdict(claim, values) for claim in CLAIMS if claim.arm in arms
    ]
    for family in dict.fromkeys((v.claim.family, v.claim.arm) for v in verdicts):
        members = [
            n for n, v in enumerate(verdicts) if (v.claim.family, v.claim.arm) == family
        ]
        # Claims that cannot be tested yet count with p = 1: more runs do not change the family.
        every_p = [1.0 if (p := verdicts[n].p) is None else p for n in members]
        correct = benjamini_hochberg if family[0] == EXPLORATORY else holm
        for n, p in zip(members, correct(every_p), strict=True):
            if verdicts[n].p is not None:
                verdicts[n] = verdicts[n]._replace(corrected=p)
    return verdicts


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for the probability of any false claim (Holm 1979)."""
    order = np.argsort(p)
    factors = len(p) - np.arange(len(p))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(
        1, np.maximum.accumulate(np.asarray(p)[order] * factors)
    )
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


def models_above(
    values: Values, arm: str, measure: str, score: float
) -> tuple[int, int]:
    """Return how many models of an arm are above `score` by more than chance, and how many have
    several seeds: by Student's one-sided t-test over seeds, p < 0.025."""
    from scipy import stats

    columns = [
        [*values.by_seed(arm, model, measure).values()] for model in values.models(arm)
    ]
    repeated = [column for column in columns if len(column) > 1]
    above = [
        column
        for column in repeated
        if np.ptp(column) > 0
        and stats.ttest_1samp(column, score, alternative="greater").pvalue < LEVEL / 2
    ]
    return len(above), len(repeated)
