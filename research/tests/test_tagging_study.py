"""The study of tagging: models in order, differences with intervals, and its page."""

import pytest
from scipy import stats

from research.tagging import plan, report, runs, verdicts
from research.which_encoding import recipe


def line(origin, position, seed, task, scores, of_model=()):
    metric = plan.TASKS[task].metric
    return {
        "origin": origin,
        "position": position,
        "seed": seed,
        "task": task,
        "learning_rate": 1e-4,
        "epochs": 3.0,
        "scores": {metric: scores},
        "baseline": {metric: 50.0},
        "of_model": dict(of_model),
    }


LINES = [
    line(plan.PUBLISHED, "learned_absolute", 0, "ncbi", [80.0, 82.0]),
    line(plan.DISTILLED, "rope", 0, "ncbi", [76.0, 78.0], {"r2": 0.9}),
    line(plan.DISTILLED, "rope", 1, "ncbi", [78.0, 80.0], {"r2": 0.8}),
    line(plan.DISTILLED, "none", 0, "ncbi", [60.0, 62.0]),
    line(plan.DISTILLED, "none", 1, "ncbi", [61.0, 61.0]),
    line(plan.DISTILLED, "t5", 0, "ncbi", [79.0, 79.0]),
    line(plan.DISTILLED, "t5", 0, "cola", [30.0]),
]


def test_each_model_is_planned_once_and_the_published_one_first():
    models = list(plan.models())
    assert len(models) == len(set(models)) == 1 + 10 + 4 + 2 * 7
    assert models[0].origin == plan.PUBLISHED
    assert models[1] == plan.Model(plan.SCRATCH, "none", 0)
    assert len({model.folder for model in models}) == len(models)


def test_intervals_are_of_the_spread_between_models():
    scores = verdicts.scores_of(LINES, plan.DISTILLED, "ncbi")
    assert scores == {"rope": [77.0, 79.0], "none": [61.0, 61.0], "t5": [79.0]}
    # Squares 2 and 0, of one degree of freedom each.
    assert verdicts.deviation(scores) == (pytest.approx(1.0), 2)
    differences = verdicts.differences(scores)
    quantile = stats.t.ppf(1 - 0.025 / 2, 2)
    assert differences["none"] == pytest.approx((-17.0, quantile))
    assert differences["none"].verdict == "worse"
    assert differences["t5"] == pytest.approx((1.0, quantile * 1.5**0.5))
    assert differences["t5"].verdict == "not decided"


def test_without_a_second_model_nothing_is_decided():
    differences = verdicts.differences({"rope": [50.0], "none": [10.0]})
    assert differences == {"none": (-40.0, None)}
    assert differences["none"].verdict == "one model each"
    assert verdicts.differences({"none": [10.0]}) == {}


def test_the_page_shows_the_operating_point_and_each_model():
    page = report.page(LINES)
    assert "| ncbi | f1_test | 50.0    | 61.0   | 81.0      |" in page
    assert "61.0 (-17.0 ± 6.2)" in page
    assert "**7 of 145 lines" in page
    assert "BERT-minis from scratch\n" not in page
    assert "Operating point" not in report.page([])


def test_the_page_says_what_is_decided_and_how_well_models_were_trained():
    page = report.page(LINES)
    assert "- **ncbi**: worse: `none`; not decided: `t5`." in page
    assert "| encoding | R²   |" in page
    assert "| `rope`   | 0.85 |" in page
    assert "| `t5`     | –    |" in page


def test_a_model_from_scratch_is_one_of_ten_million_tokens(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(runs.recipe, "train_long", lambda *about: trained.append(about))
    monkeypatch.setattr(runs.candidates, "best", {"rope": ("rope", 1.0)}.get)
    folders = runs.Folders(*[tmp_path] * 5, tfds="")
    folder = runs.make_model(plan.Model(plan.SCRATCH, "rope", 1), folders)
    assert folder == tmp_path / "rope-1"
    assert trained == [(recipe.Treatment("rope", 1.0, 1), tmp_path, folder)]
    with pytest.raises(FileNotFoundError, match=r"^fire has no .*choose\.py"):
        runs.make_model(plan.Model(plan.SCRATCH, "fire", 0), folders)
    assert runs.make_model(plan.Model(plan.PUBLISHED, "", 0), folders) == tmp_path
