"""Claims: effects, tests of chance, false discoveries, and the heat map over models."""

import numpy as np
import pytest
from scipy import stats

from research.reproduction import claims
from research.reproduction.claims import benjamini_hochberg, detectable, holm, judge, models_above
from research.reproduction.drawing import draw_heat_map
from research.reproduction.effects import EXPLORATORY, Claim, Difference, Ranks
from research.reproduction.plan import REPLACED, SCRATCH
from research.reproduction.results import PROPERTIES, Values

ARM = REPLACED


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
    assert (result.low, result.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert result.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    same = verdict(arm_values(a=[1.0, 2.0], b=[2.0, 1.0]), effect)
    assert same.outcome == "undecided" and same.effect == 0
    single = verdict(arm_values(a=[1.0], b=[2.0]), effect)
    assert (single.outcome, single.effect, single.low, single.p) == ("undecided", -1.0, None, None)
    missing = verdict(arm_values(a=[1.0]), effect)
    assert (missing.outcome, missing.n) == ("not made yet", 0)


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
    assert verdict(arm_values(a=[1.0], b=[1.0]), effect, margin=0.2).outcome == "undecided"


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
        Claim("", "", ARM, Difference("score", (f"m{n}",), (f"m{n + 1}",)), 1, None, family)
        for n in range(40)
    ]
    other = "primary" if family == EXPLORATORY else EXPLORATORY
    single = many[0]._replace(family=other)
    elsewhere = many[0]._replace(arm=SCRATCH)
    monkeypatch.setattr(claims, "CLAIMS", (*many, single, elsewhere))
    *verdicts, alone = judge(values, [ARM])
    assert min(one.p for one in verdicts) < 0.05 <= min(one.corrected for one in verdicts)
    assert {one.outcome for one in verdicts} == {"undecided"}
    assert alone.corrected == alone.p == verdicts[0].p


@pytest.mark.parametrize(("arm", "says"), [(REPLACED, "reproduced"), (SCRATCH, "undecided")])
def test_claims_from_scratch_are_judged_twice_and_need_a_smaller_p(monkeypatch, arm, says):
    claim = Claim("says", "place", arm, Difference("score", ("a",), ("b",)), +1)
    monkeypatch.setattr(claims, "CLAIMS", (claim,))
    columns = {"a": [3.0, 4.0, 5.0, 4.0], "b": [2.0, 3.5, 3.0, 3.0]}
    scores = {(arm, model, "score"): dict(enumerate(column)) for model, column in columns.items()}
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
    assert np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05) == pytest.approx(
        0.8, abs=0.01
    )
    assert detectable(5, 0.03) > detectable(5, 0.05) > detectable(20, 0.05)


def test_rank_correlations_over_models(verdict):
    """The untouched model does not count."""
    by_key = {}
    for number, model in enumerate([*"abcdefg", "untouched"]):
        by_key[ARM, model, "violation"] = {0: float(number)}
        by_key[ARM, model, "score"] = {s: -number + 0.1 * s for s in range(3)}
    result = verdict(Values(by_key), Ranks("violation", "score"), -1)
    assert result.effect == pytest.approx(-1) and result.outcome == "reproduced" and result.n == 3
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
    probes = [f"{probe}, {name}" for probe in ("words", "kernel") for name in PROPERTIES]
    values = {(ARM, one, name): {0: rng.uniform()} for one in names for name in probes}
    values |= {(ARM, one, "squad f1"): {0: rng.uniform(), 1: rng.uniform()} for one in names}
    values |= {(ARM, one, "cola"): {0: rng.uniform()} for one in names[:3]}
    draw_heat_map(ARM, Values(values), tmp_path / "out")
    assert (tmp_path / "out" / "correlation_spearman.png").is_file() == (models == 5)
    equal = {key: {0: 0.0} if key[2] == "squad f1" else one for key, one in values.items()}
    draw_heat_map(ARM, Values(equal), tmp_path / "none")
    assert not (tmp_path / "none").exists()
