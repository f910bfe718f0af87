"""The page of the study, from its results file."""

import json
import re
import shutil
from pathlib import Path

import pytest

from pe_jax.schema import changed
from research.reproduction import state
from research.reproduction.page import page
from research.reproduction.plan import plan
from research.reproduction.results import trivial_scores
from research.reproduction.results_file import read_results, saved_config

STUDY = Path(__file__).parents[1]
FIGURES = 40


def test_the_page_is_regenerated_byte_for_byte():
    results = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    assert page(results, STUDY) == (STUDY / "README.md").read_text(encoding="utf-8")


def test_the_page_shows_every_figure_beside_it():
    links = re.findall(r"!\[.*?\]\((.*?)\)", (STUDY / "README.md").read_text(encoding="utf-8"))
    files = [str(path.relative_to(STUDY)) for path in STUDY.rglob("*.png")]
    assert sorted(links) == sorted(files) and len(files) <= FIGURES


def test_the_study_can_be_continued(tmp_path):
    """A copy of the results file is enough, with the same settings."""
    shutil.copy(STUDY / "results.json", tmp_path)
    results = read_results(STUDY)
    config = saved_config(results)
    runs = plan(config, tmp_path)
    assert [run.name for run in runs] == list(results["runs"])
    done = state.finished_entries(runs, tmp_path)
    state.check(runs, done)
    left = [run for run in runs if run.name not in done]
    needed = {run.needs for run in left} - {None}
    assert needed <= {run.folder for run in state.to_execute(runs, done)}
    other = plan(changed(config, {"from_scratch.training.optimizer.b2": 0.5}), tmp_path)
    with pytest.raises(ValueError, match=r"and \d+ more: made with other settings"):
        state.check(other, done)


def test_trivial_scores():
    """The better of either constant label, by the task's metric; a mean once all tasks have one."""
    tasks = "squad,cola,rte,mrpc,sst2"
    config = {arm: {"tasks": tasks} for arm in ("from_scratch", "replaced")}
    results = {"runs": {"from_scratch/squad/none": None}, "config": config}
    assert trivial_scores(results, "from_scratch") == {}
    baselines = {
        "squad": ("f1", {"f1": 9.5, "exact": 0.1}),
        "cola": ("matthews", {"matthews": 0.0}),
        "rte": ("accuracy", {"accuracy": 47.0}),
        "mrpc": ("f1", {"f1": 40.0, "accuracy": 20.0}),
        "sst2": ("accuracy", {"accuracy": 51.0}),
    }
    expected = {"squad f1": 9.5, "squad exact": 0.1, "cola": 0.0, "rte": 53.0, "mrpc": 40.0}
    for task, (metric, baseline) in baselines.items():
        assert task not in trivial_scores(results, "from_scratch")  # Not before the run is done.
        entry = {"metric": metric, "baseline": baseline}
        results["runs"][f"from_scratch/{task}/none"] = entry
    assert trivial_scores(results, "from_scratch") == {
        **expected,
        "sst2": 51.0,
        "classification": 36.0,
    }
    assert trivial_scores(results, "replaced") == {}
