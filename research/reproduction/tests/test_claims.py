"""Claims: effects and their members, tests of chance, the spread between distillations, false
discoveries, and the heat map over models."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from research.reproduction import claims
from research.reproduction.claims import (
    benjamini_hochberg,
    detectable,
    holm,
    judge,
    models_above,
)
from research.reproduction.drawing import draw_heat_map
from research.reproduction.effects import EXPLORATORY, Claim, Difference, Ranks
from research.reproduction.intervals import interval
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import (
    CLASSIFICATION,
    DISTILLED_TWICE,
    PROPERTIES,
    Spread,
    Values,
    values,
)
from research.reproduction.results_file import SQUAD_F1, read_results

ARM = REPLACED
STUDY = Path(__file__).parents[1]


def arm_values(measure="score", **models):
    """Values of one arm and measure, by model: a list with a value for each seed."""
    return Values({(ARM, m, measure): dict(enumerate(v)) for m, v in models.items()})


@pytest.fixture
def verdict(monkeypatch):
    """Judge one effect in one arm."""

    def judged(values, effect, sign=+1, margin=None):
        claim = Claim("says", "place", ARM, effect, sign, margin)
        monkeypatch.setattr(claims, "CLAIMS", (claim,))
        (result,) = judge(values, [ARM])
        return result

    return judged


def test_differences_are_judged_by_a_t_test_over_seeds(verdict):
    a, b = [5.0, 5.5, 5.2, 5.1, 5.4], [4.0, 4.1, 4.3, 4.2, 4.0]
    effect = Difference("score", ("a",), ("b",))
    for sign, says in ((+1, "reproduced"), (-1, "contradicted")):
        result = verdict(arm_values(a=a, b=b), effect, sign)
        assert result.outcome == says and result.n == 5
        assert result.between == pytest.approx((np.mean(a), np.mean(b)))
    d = np.subtract(a, b)
    half = stats.t.ppf(0.975, 4) * d.std(ddof=1) / np.sqrt(5)
    assert (result.low, result.high) == pytest.approx(
        (d.mean() - half, d.mean() + half)
    )
    assert result.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    same = verdict(arm_values(a=[1.0, 2.0], b=[2.0, 1.0]), effect)
    assert same.outcome == "undecided" and same.effect == 0
    single = verdict(arm_values(a=[1.0], b=[2.0]), effect)
    assert (single.outcome, single.effect, single.low, single.p) == (
        "undecided",
        -1.0,
        None,
        None,
    )
    missing = verdict(arm_values(a=[1.0]), effect)
    assert (missing.outcome, missing.n) == ("not judged", 0)


def test_differences_between_two_measures(verdict):
    values = Values({(ARM, "a", "after"): {0: 3.0, 1: 4.0, 2: 5.0},
                     (ARM, "a", "before"): {0: 1.0, 1: 1.5}})  # fmt: skip
    effect = Difference("after", ("a",), other_measure="before")
    result = verdict(values, effect)
    assert (result.n, result.effect, result.between) == (2, 2.25, (3.5, 1.25))
    assert str(effect) == "after minus before: a"


def test_a_difference_that_does_not_matter(verdict):
    """Equivalence needs the whole interval within the margin, and then p says nothing."""
    effect = Difference("score", ("a",), ("b",))
    values = arm_values(a=[1.10, 1.11, 1.12], b=[1.0, 1.0, 1.0])
    assert verdict(values, effect, margin=0.2).outcome == "equivalent within ±0.2"
    assert verdict(values, effect, margin=0.12).outcome == "reproduced"
    assert verdict(values, effect, -1, margin=0.12).outcome == "contradicted"
    assert (
        verdict(arm_values(a=[1.0], b=[1.0]), effect, margin=0.2).outcome == "undecided"
    )


def around(mean, spread=0.1):
    return [mean + spread * step for step in (-1, 0, 1)]


@pytest.mark.parametrize(
    ("members", "margin", "says"),
    [
        ((2, 3), 0.5, "reproduced"),
        ((2, -1), None, "mixed"),  # The other way.
        ((2, 0), 0.5, "mixed"),  # No effect that matters.
        ((2, 0.3), 0.5, "reproduced"),  # A small one, in the same direction.
        ((5, -5), 2, "mixed"),  # Zero on average.
        ((0.1, -0.1), 0.5, "equivalent within ±0.5"),
    ],
)
def test_a_member_that_contradicts_blocks_the_verdict_on_the_mean(
    verdict, members, margin, says
):
    scores = arm_values(a=around(members[0]), b=around(members[1]), c=around(0, 0.0))
    pairs = Difference("score", ("a", "b"), ("c",))
    result = verdict(scores, pairs, margin=margin)
    assert result.outcome == says
    assert {name: one.mean for name, one in result.members.items()} == pytest.approx(
        dict(zip("ab", members, strict=True))
    )


def test_members_of_groups_of_equal_size_are_pairs(verdict):
    """One effect of +4 and one of 0: the mean hides that half of the models do not show it."""
    scores = arm_values(a=around(5), b=around(2), c=around(1, 0.05), d=around(2, 0.05))
    result = verdict(scores, Difference("score", ("a", "b"), ("c", "d")), margin=0.5)
    assert result.effect == pytest.approx(2) and result.outcome == "mixed"
    assert [*result.members] == ["a − c", "b − d"]


def test_a_member_that_is_uncertain_blocks_equivalence_alone(verdict):
    up, down = [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]
    scores = arm_values(a=up, b=down, c=[0.0, 0.0, 0.01])
    result = verdict(scores, Difference("score", ("a", "b"), ("c",)), margin=0.5)
    assert result.outcome == "undecided" and result.high < 0.5


def test_one_seed_says_nothing_of_chance(verdict):
    effect = Difference("score", ("a", "b"), ("c",))
    alike = verdict(arm_values(a=[3.0], b=[1.0], c=[0.0]), effect, margin=0.5)
    assert (alike.outcome, alike.p) == ("reproduced in one model", None)
    other = verdict(arm_values(a=[3.0], b=[1.0], c=[0.0]), effect, -1, margin=0.5)
    assert other.outcome == "contradicted in one model"
    opposed = verdict(arm_values(a=[3.0], b=[-1.0], c=[0.0]), effect, margin=0.5)
    assert opposed.outcome == "mixed"
    small = verdict(arm_values(a=[0.3], b=[0.3], c=[0.0]), effect, margin=0.5)
    assert small.outcome == "undecided"


def test_the_spread_between_distillations_is_in_the_interval(verdict):
    """One of two models to four degrees of freedom, one of six to three, as by Satterthwaite."""
    scores = arm_values(a=[5.0, 5.5, 5.2, 5.1, 5.4], b=[4.0, 4.1, 4.3, 4.2, 4.0])
    effect = Difference("score", ("a",), ("b",))
    alone = verdict(scores, effect)
    assert alone.outcome == "reproduced" and alone.alone == (alone.low, alone.high)
    spread = scores._replace(spreads={"score": Spread(0.25, 3)})
    result = verdict(spread, effect)
    assert result.outcome == "undecided" and result.alone == alone.alone
    d = np.subtract([5.0, 5.5, 5.2, 5.1, 5.4], [4.0, 4.1, 4.3, 4.2, 4.0])
    seeds, distilled = d.var(ddof=1) / 5, 2 * 0.25
    freedom = (seeds + distilled) ** 2 / (seeds**2 / 4 + distilled**2 / 3)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(seeds + distilled)
    assert result.high - result.effect == pytest.approx(half)
    more = spread._replace(counts={("a", "score"): 100, ("b", "score"): 100})
    assert verdict(more, effect).outcome == "reproduced"
    key = ARM, "a", "score"
    scratch = spread._replace(by_key={(SCRATCH, *key[1:]): spread.by_key[key]})
    from_scratch = interval(scratch, SCRATCH, {("a", "score"): 1.0})
    assert (from_scratch.low, from_scratch.high) == from_scratch.alone


def test_a_model_in_both_groups_counts_once(verdict):
    """a minus the mean of a and b is half of a minus b."""
    scores = arm_values(a=[1.0, 2.0], b=[0.0, 0.0])._replace(
        spreads={"score": Spread(1.0, 9)}
    )
    result = verdict(scores, Difference("score", ("a",), ("a", "b")))
    assert result.effect == pytest.approx(0.75)
    variance = np.var([0.5, 1.0], ddof=1) / 2 + 2 * 0.25
    assert result.p == pytest.approx(
        2 * stats.t.sf(0.75 / variance**0.5, variance**2 / (0.0625**2 / 1 + 0.5**2 / 9))
    )


def test_the_spread_between_distillations_of_the_study():
    """Three encodings were distilled once more for docs/distillation.jsonl."""
    found = values(read_results(STUDY))
    lines = (
        (STUDY.parents[1] / "docs/distillation.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    again = [json.loads(line) for line in lines]
    for key, measure in (("f1", SQUAD_F1), ("matthews", CLASSIFICATION)):
        models = [one for one in found.models(ARM) if "+" not in one]
        here = dict(zip(models, found.model_means(ARM, models, measure), strict=True))
        untouched = [
            one[key] for one in again if one["position"] == "untouched" and key in one
        ]
        differences = [
            one[key]
            - np.mean(untouched)
            - (here[one["position"].partition("(")[0]] - here["untouched"])
            for one in again
            if one["position"] in ("t5", "sinusoidal_relative", "rope(fraction=0.5)")
            and (one["method"], one["tokens"]) == ("distillation", 1_000_000)
        ]
        variance = np.mean(np.square(differences)) / 2
        assert len(differences) == DISTILLED_TWICE[measure].freedom
        assert variance == pytest.approx(DISTILLED_TWICE[measure].variance, rel=0.002)
    assert found.spreads[SQUAD_F1] == DISTILLED_TWICE[SQUAD_F1]


def test_a_study_with_several_distillations_has_a_spread_of_its_own():
    """Scores are means over distillations for each seed of fine-tuning."""
    results = {
        "config": {arm: {"tasks": "squad"} for arm in (SCRATCH, REPLACED)},
        "runs": {},
    }
    for seed, scores in enumerate(([1.0, 3.0], [4.0, 4.0])):
        name = "replaced/squad/a" + f", seed {seed}" * bool(seed)
        by_seed = {str(n): score for n, score in enumerate(scores)}
        results["runs"][name] = {"seed": seed, "values": {SQUAD_F1: by_seed},
                                 "metric": "f1", "baseline": {"f1": 0.0, "exact": 0.0}}  # fmt: skip
    found = values(results)
    assert found.by_seed(ARM, "a", SQUAD_F1) == {0: 2.5, 1: 3.5}
    assert (
        found.distillations("a", SQUAD_F1) == 2
        and found.distillations("b", SQUAD_F1) == 1
    )
    assert found.spreads[SQUAD_F1] == Spread(2.0, 1)  # Of the means 2 and 4.


def test_the_verdicts_of_the_study_that_a_mean_would_hide():
    verdicts = [None, *judge(values(read_results(STUDY)), (SCRATCH, REPLACED))]
    says = {2: "undecided", 4: "undecided", 9: "mixed", 11: "reproduced in one model",
            13: "contradicted", 28: "reproduced in one model", 36: "mixed"}  # fmt: skip
    assert {n: verdicts[n].outcome for n in says} == says
    assert verdicts[13].claim.text == verdicts[28].claim.text
    assert verdicts[17].influence[0] == 10  # No combinations.


def test_size_of_an_effect(verdict):
    result = verdict(
        arm_values(a=[3.0, 4.0, 5.0], b=[1.0, 1.0, 1.0]), Difference("score", "a", "b")
    )
    assert result.size == pytest.approx(3.0)


@pytest.mark.parametrize("family", ["primary", EXPLORATORY])
def test_chance_is_corrected_for_within_a_family_of_an_arm(monkeypatch, family):
    rng = np.random.default_rng(0)
    values = arm_values(**{f"m{n}": rng.normal(size=5) for n in range(41)})
    many = [
        Claim(
            "",
            "",
            ARM,
            Difference("score", (f"m{n}",), (f"m{n + 1}",)),
            1,
            None,
            family,
        )
        for n in range(40)
    ]
    other = "primary" if family == EXPLORATORY else EXPLORATORY
    single = many[0]._replace(family=other)
    elsewhere = many[0]._replace(arm=SCRATCH)
    monkeypatch.setattr(claims, "CLAIMS", (*many, single, elsewhere))
    *verdicts, alone = judge(values, [ARM])
    assert (
        min(one.p for one in verdicts) < 0.05 <= min(one.corrected for one in verdicts)
    )
    assert {one.outcome for one in verdicts} == {"undecided"}
    assert alone.corrected == alone.p == verdicts[0].p


@pytest.mark.parametrize(
    ("arm", "says"), [(REPLACED, "reproduced"), (SCRATCH, "undecided")]
)
def test_claims_from_scratch_are_judged_twice_and_need_a_smaller_p(
    monkeypatch, arm, says
):
    claim = Claim("says", "place", arm, Difference("score", ("a",), ("b",)), +1)
    monkeypatch.setattr(claims, "CLAIMS", (claim,))
    columns = {"a": [3.0, 4.0, 5.0, 4.0], "b": [2.0, 3.5, 3.0, 3.0]}
    scores = {
        (arm, model, "score"): dict(enumerate(column))
        for model, column in columns.items()
    }
    (verdict,) = judge(Values(scores), [arm])
    assert verdict.outcome == says and 0.0294 < verdict.corrected < 0.05


def test_corrections():
    """By hand: Holm multiplies the smallest by the number, the next by one less, and so on."""
    p = [0.04, 0.01, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert benjamini_hochberg(p) == pytest.approx([0.04, 0.02, 0.04, 0.02])
    assert holm([]) == benjamini_hochberg([]) == []


def test_detectable_differences():
    """Against simulated tests."""
    rng = np.random.default_rng(0)
    samples = detectable(5, 0.05) + rng.normal(size=(20_000, 5))
    assert np.mean(
        stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05
    ) == pytest.approx(0.8, abs=0.01)
    assert detectable(5, 0.03) > detectable(5, 0.05) > detectable(20, 0.05)


def test_rank_correlations_over_models(verdict):
    """Neither the untouched model nor a combination counts."""
    by_key = {}
    for number, model in enumerate([*"abcdefg", "untouched", "a+b"]):
        by_key[ARM, model, "violation"] = {0: float(number)}
        by_key[ARM, model, "score"] = {s: -number + 0.1 * s for s in range(3)}
    result = verdict(Values(by_key), Ranks("violation", "score"), -1)
    assert (
        result.effect == pytest.approx(-1)
        and result.outcome == "reproduced"
        and result.n == 3
    )
    assert result.between is None and result.influence[0] == 7
    assert result.p == pytest.approx(2 / 5040, rel=0.01)  # All orders of seven.


def test_the_model_that_decides_a_correlation(verdict):
    by_key = {}
    for number, model in enumerate("abcdef"):
        by_key[ARM, model, "violation"] = {0: float(number)}
        by_key[ARM, model, "score"] = {0: 100.0 if model == "e" else -float(number)}
    result = verdict(Values(by_key), Ranks("violation", "score"), -1)
    assert result.influence == (6, "e", pytest.approx(-1)) and result.effect > -0.5


def test_models_above_a_score():
    """By more than chance; neither one seed nor seeds that all agree can say so."""
    values = arm_values(
        **{
            "clear": [60.0, 61.0, 60.5],
            "by chance": [49.0, 61.0, 52.0],
            "below": [40.0, 41.0, 40.5],
            "all agree": [60.0, 60.0],
            "one seed": [90.0],
        }
    )
    assert models_above(values, ARM, "score", 50.0) == (1, 4)


@pytest.mark.parametrize("models", [3, 5])
def test_a_heat_map_needs_enough_models_whose_scores_differ(tmp_path, models):
    """Models that have some of the scores are only in the columns that they have."""
    rng = np.random.default_rng(0)
    names = [f"m{n}" for n in range(models)] + ["untouched"]
    probes = [
        f"{probe}, {name}" for probe in ("words", "kernel") for name in PROPERTIES
    ]
    values = {(ARM, one, name): {0: rng.uniform()} for one in names for name in probes}
    values |= {
        (ARM, one, "squad f1"): {0: rng.uniform(), 1: rng.uniform()} for one in names
    }
    values |= {(ARM, one, "cola"): {0: rng.uniform()} for one in names[:3]}
    draw_heat_map(ARM, Values(values), tmp_path / "out")
    assert (tmp_path / "out" / "correlation_spearman.png").is_file() == (models == 5)
    equal = {
        key: {0: 0.0} if key[2] == "squad f1" else one for key, one in values.items()
    }
    draw_heat_map(ARM, Values(equal), tmp_path / "none")
    assert not (tmp_path / "none").exists()
