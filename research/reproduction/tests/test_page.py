"""The page of the study and its appendix, from its results file."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from pe_jax.common.schema import changed, from_values
from research.reproduction import config as study_config
from research.reproduction import state
from research.reproduction.appendix import appendix
from research.reproduction.config import ReproductionConfig
from research.reproduction.plan import plan
from research.reproduction.results import trivial_scores
from research.reproduction.results_file import read_results, saved_config
from research.reproduction.summary import summary

STUDY = Path(__file__).parents[1]
FIGURES = 40


def test_the_pages_are_regenerated_byte_for_byte():
    results = json.loads((STUDY / "results.json").read_text(encoding="utf-8"))
    for text, name in ((summary, "README.md"), (appendix, "appendix.md")):
        assert text(results, STUDY) == (STUDY / name).read_text(encoding="utf-8"), name


def test_the_page_is_short():
    """800 words at most, those of its tables included; it has one figure."""
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|\]\(.*?\)", "", text, flags=re.S)
    assert len(re.findall(r"[A-Za-z][\w'+.-]*", text)) <= 800
    assert text.count("![") == 1


def test_the_pages_show_every_figure_beside_them():
    pages = [
        (STUDY / name).read_text(encoding="utf-8")
        for name in ("README.md", "appendix.md")
    ]
    links = [link for text in pages for link in re.findall(r"!\[.*?\]\((.*?)\)", text)]
    files = [str(path.relative_to(STUDY)) for path in STUDY.rglob("*.png")]
    assert sorted(links) == sorted(files) and len(files) <= FIGURES


def _study_in(folder, **changes):
    """The config of the study, by the options of its command, and its plan and finished runs in
    `folder`, which has a copy of the results file."""
    shutil.copy(STUDY / "results.json", folder)
    options = dict(
        option[9:].split("=", 1) for option in read_results(folder)["options"]
    )
    options = {
        key: ast.literal_eval(value)
        if re.fullmatch(r"\d+|True|\(.*\)", value)
        else value
        for key, value in options.items()
    }
    shipped = from_values(study_config.get_config(), ReproductionConfig)
    config = changed(shipped, options | changes)
    runs = plan(config, folder)
    return config, runs, state.finished_entries(runs, folder)


def test_the_study_can_be_continued(tmp_path):
    """A copy of the results file is enough, with the command on the page."""
    config, runs, done = _study_in(tmp_path)
    results = read_results(STUDY)
    assert config == saved_config(results)
    assert [run.name for run in runs] == list(results["runs"])
    state.check(runs, done)
    left = [run for run in runs if run.name not in done]
    needed = {run.needs for run in left} - {None}
    assert needed <= {run.folder for run in state.to_execute(runs, done)}
    other = plan(changed(config, {"from_scratch.training.optimizer.b2": 0.5}), tmp_path)
    with pytest.raises(ValueError, match=r"and \d+ more: made with other settings"):
        state.check(other, done)


def test_more_distillations_add_to_the_study(tmp_path):
    """What would decide the undecided claims: each is fine-tuned on both tasks."""
    changes = {"from_scratch.first": "", "replaced.repeats": (1, 2)}
    _, runs, done = _study_in(tmp_path, **changes)
    state.check(runs, done)
    left = [run for run in runs if run.name not in done]
    assert {run.seed for run in left} == {1, 2} and len(left) == 2 * 10 * 4
    (squad,) = [
        run for run in left if run.name == "replaced/squad/learned_relative, seed 2"
    ]
    assert squad.needs.name == "learned_relative, seed 2"


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
    expected = {
        "squad f1": 9.5,
        "squad exact": 0.1,
        "cola": 0.0,
        "rte": 53.0,
        "mrpc": 40.0,
    }
    for task, (metric, baseline) in baselines.items():
        assert task not in trivial_scores(
            results, "from_scratch"
        )  # Not before the run is done.
        entry = {"metric": metric, "baseline": baseline}
        results["runs"][f"from_scratch/{task}/none"] = entry
    assert trivial_scores(results, "from_scratch") == {
        **expected,
        "sst2": 51.0,
        "classification": 36.0,
    }
    assert trivial_scores(results, "replaced") == {}
