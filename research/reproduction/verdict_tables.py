"""Tables of verdicts: how the claims of a study are judged, and the members of groups."""

from __future__ import annotations

from collections.abc import Sequence

from pe_jax.common.markdown import raw_table
from research.reproduction.claims import detectable
from research.reproduction.effects import LEVEL, LEVELS, Difference, Verdict
from research.reproduction.intervals import Interval, Parts
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import CLASSIFICATION, Spread, Values
from research.reproduction.results_file import SQUAD_F1

TITLES = {SCRATCH: "From scratch", REPLACED: "Positions replaced"}
_ABOUT_VERDICTS = f"""\
- **Effect**: of a difference, the mean over seeds with Student's 95 % interval; *d* is that mean
  over the standard deviation of the seeds. Of a correlation, Spearman's, over the models that share
  no parts; each is the mean of its seeds.
- **Seeds** are those of pretraining (from scratch), or of fine-tuning (replaced). Where positions
  are replaced the interval has a component of variance for the distillations; *seeds alone* is the
  interval without it.
- **Members**: groups of equal size are compared pair by pair, others each with each. A member
  contradicts a verdict if its interval includes 0 or the other side, and no effect of that side
  beyond the margin.
- **p** is two-sided, of correlations by permuting the models. *Corrected* is by Holm over all
  primary claims of the arm, or all added ones, by Benjamini and Hochberg over all its exploratory
  ones; a claim without p counts with p = 1.
- ***Reproduced*** and ***contradicted*** need a corrected p below {LEVEL:g}, or from scratch below
  {LEVELS[SCRATCH]:g}, as these claims are judged twice, with three seeds and with four: that keeps
  errors at 5 % in all (Pocock 1977). And no member may contradict them: else the verdict is
  ***mixed***.
- ***In one model***: there is one seed, and the effect and all members are beyond the margin or on
  its side. Nothing is known of chance.
- ***Equivalent*** means that the whole intervals of the mean and of all members are within the
  margin, however small p; it is not corrected.
- ***Of*** has the two means of a difference; of a correlation, the number of models, and the
  correlation without the model that changes it most.
- **Families**: *primary* and *exploratory* claims were fixed before the runs, *added* ones later,
  with the scores known.
- *Likeness* is the mean cosine of two vectors on one side, at offsets of 8 at most (near) or beyond
  half of `max_distance` (far). *Share* is the score above a trivial answer, of the untouched
  model's."""


def effects(verdicts: Sequence[Verdict], every: Values) -> list[str]:
    """Return the lines on how each claim is judged."""
    rows = [
        [str(n), verdict.claim.family, TITLES[verdict.claim.arm].lower(), verdict.claim.place,
         str(verdict.claim.effect), _compared(verdict), number(verdict.effect),
         interval_text(verdict), _seeds_alone(verdict), number(verdict.size), str(verdict.n or "–"),
         _probability(verdict.p), _probability(verdict.corrected), verdict.outcome]
        for n, verdict in enumerate(verdicts, 1)
    ]  # fmt: skip
    header = ["", "family", "models", "where", "effect", "of", "mean", "95 % interval",
              "seeds alone", "d", "seeds", "p", "corrected", "verdict"]  # fmt: skip
    return [_ABOUT_VERDICTS, *_power(verdicts, every), "", *raw_table(header, rows)]


def members(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a table of the pairs of models that means over groups are made of, if any."""
    rows = [
        [str(n), name, number(member.mean), interval_text(member)]
        for n, verdict in enumerate(verdicts, 1)
        for name, member in verdict.members.items()
    ]
    return raw_table(["", "pair", "mean", "95 % interval"], rows) if rows else []


def _power(verdicts: Sequence[Verdict], every: Values) -> list[str]:
    """Return lines on the differences that the numbers of seeds and distillations can find."""
    numbers = {
        verdict.n
        for verdict in verdicts
        if isinstance(verdict.claim.effect, Difference)
        and verdict.n > 1 and verdict.claim.arm == SCRATCH
    }  # fmt: skip
    differences = [
        f"{detectable(n, LEVELS[SCRATCH]):.1f} with {n} seeds" for n in sorted(numbers)
    ]
    lines = [
        "- From scratch, differences that a test finds four times of five, before correction, in "
        f"standard deviations over seeds: {', '.join(differences)}."
    ] * bool(differences)
    narrowest = [
        f"{Parts.of([Spread(2 * spread.variance, spread.freedom)]).half_width():.1f} ({measure})"
        for measure, spread in every.spreads.items()
        if measure in (SQUAD_F1, CLASSIFICATION)
    ]
    if any(verdict.claim.arm == REPLACED and verdict.n for verdict in verdicts):
        lines.append(
            "- Where positions are replaced, the interval of a difference between two models that "
            f"were distilled once is at least ± {' or '.join(narrowest)} points wide."
        )
    return lines


def _probability(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.0005 else "<0.001"


def number(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 9):+.3g}"


def _compared(verdict: Verdict) -> str:
    if verdict.influence:
        return "{} models; without `{}` {:+.3g}".format(*verdict.influence)
    return (
        "–" if verdict.between is None else "{:.3g} and {:.3g}".format(*verdict.between)
    )


def interval_text(verdict: Verdict | Interval) -> str:
    return (
        "–"
        if verdict.low is None
        else f"{number(verdict.low)} to {number(verdict.high)}"
    )


def _seeds_alone(verdict: Verdict) -> str:
    if verdict.claim.arm == SCRATCH or not verdict.alone:
        return "–"
    return " to ".join(map(number, verdict.alone))
