"""The study: its plan, its runs in any starts, and its report."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import tiny_study
from helpers import tiny_run
from helpers.commands import call
from helpers.finetuning_data import examples

from pe_jax.common.files import write_text
from pe_jax.common.schema import changed, from_values
from pe_jax.trainer.data import glue
from research.reproduction import claims, cost, process, state, study
from research.reproduction import config as study_config
from research.reproduction.appendix import appendix
from research.reproduction.config import ReproductionConfig
from research.reproduction.drawing import gallery, model_folder
from research.reproduction.effects import Difference
from research.reproduction.plan import TRAINED, plan
from research.reproduction.report import report
from research.reproduction.results import values
from research.reproduction.results_file import read_results
from research.reproduction.study import execute

PAPER = 13
SHIPPED = from_values(study_config.get_config(), ReproductionConfig)
RUN = "research/reproduction/run.py"
CONFIG = f"--config={tiny_run.ROOT / 'research/reproduction/config.py'}"


def test_the_plan(tmp_path):
    """The shipped one: what issue and page say of it."""
    config = changed(SHIPPED, {"published": "BERT"})
    runs = plan(config, tmp_path)
    assert (
        len({run.folder for run in runs})
        == len({run.name for run in runs})
        == len(runs)
    )

    def by(arm, kind):
        return [run for run in runs if (run.arm, run.kind) == (arm, kind)]

    scratch, replaced = (
        by("from_scratch", "pretraining"),
        by("replaced", "distillation"),
    )
    assert len(scratch) == PAPER + 3 + 3 * 10 and len(replaced) == PAPER + 3
    assert (
        not by("from_scratch", "squad") and len(by("replaced", "cola")) == PAPER + 3 + 1
    )
    assert {run.config.init for run in replaced} == {"BERT"}
    (untouched,) = [run for run in by("replaced", "squad") if run.model == "untouched"]
    assert untouched.config.init == "BERT" and untouched.needs is None
    made = set()
    for run in runs:  # In an order in which each can be made.
        assert run.needs is None or run.needs in made
        made.add(run.folder)
    models = {run.model for run in runs}
    mentioned = {
        one for claim in claims.CLAIMS if isinstance(claim.effect, Difference)
        for one in (*claim.effect.models, *claim.effect.other_models)
    }  # fmt: skip
    assert mentioned <= models
    assert {run.arm for run in plan(SHIPPED, tmp_path)} == {"from_scratch"}


def test_arms_that_are_left_out(tmp_path):
    empty = changed(SHIPPED, {"from_scratch.first": "", "from_scratch.then": ""})
    runs = plan(changed(empty, {"published": "BERT"}), tmp_path)
    assert {run.arm for run in runs} == {"replaced"}
    with pytest.raises(
        ValueError, match="has no runs: config.from_scratch.first and config.publ"
    ):
        plan(empty, tmp_path)


def test_distillation_on_a_text_of_its_own(tmp_path):
    changes = {"published": "BERT", "text": "books", "held_out_text": "others"}
    config = changed(SHIPPED, changes)
    texts = {
        "": {("from_scratch", "books", "others"), ("replaced", "books", "others")},
        "news": {("from_scratch", "books", "others"), ("replaced", "news", "")},
    }
    for text, expected in texts.items():
        runs = plan(changed(config, {"replaced.text": text}), tmp_path)
        data = {(run.arm, run.config.data) for run in runs if run.kind in TRAINED}
        assert {(arm, part.source, part.validation) for arm, part in data} == expected


def test_an_encoding_that_is_named_twice(tmp_path):
    config = changed(SHIPPED, {"from_scratch.then": "rope,rope(base=500)"})
    with pytest.raises(
        ValueError, match="once; from_scratch/pretraining/rope is listed twice"
    ):
        plan(config, tmp_path)


def test_encodings_that_change_others_are_models_of_their_own(tmp_path):
    changes = {
        "from_scratch.first": "cycle(rope(base=500), none),cycle(alibi, none)",
        "from_scratch.then": "interpolated(rope, factor=2),interpolated(alibi, factor=2)",
    }
    config = changed(SHIPPED, changes)
    models = {run.model for run in plan(config, tmp_path)}
    assert {
        "cycle(rope, none)",
        "interpolated(alibi)",
        "cycle(alibi, none), seed 1",
    } <= models


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A whole study, its runs executed in this process."""
    folder = tmp_path_factory.mktemp("study")
    config = tiny_study.config(folder)
    sets = {"train": examples(44, 0), "validation": examples(21, 1)}

    def start(study_folder, run, cores):
        process.execute_run(study_folder, run.name)
        return study._Process(run, types.SimpleNamespace(poll=lambda: 0), 0.0)

    with pytest.MonkeyPatch.context() as patch:
        opened = types.SimpleNamespace(as_data_source=sets.__getitem__)
        patch.setattr(glue, "open_dataset", lambda *args, **named: opened)
        patch.setattr(study, "_start", start)
        patch.setattr(
            cost, "_rate", lambda config, model: 1e9
        )  # A dry run measures it.
        text = execute(config, folder / "S")
    return config, folder / "S", text


def test_a_study(done):
    config, folder, text = done
    runs = plan(config, folder)
    entries = state.finished_entries(runs, folder)
    assert (
        "·" not in text
        and len(entries) == len(runs)
        and not state.to_execute(runs, entries)
    )
    assert len(runs) == (2 + 2) + 2
    assert not list(folder.glob("*/cola/*/checkpoints"))
    results = read_results(folder)
    assert list(results["runs"]) == [run.name for run in runs]
    by_seed = values(results).by_seed
    assert values(results).models("from_scratch") == ["learned_absolute"]
    for measure, seeds in {
        "masked-LM loss": {0, 1},
        "masked-LM loss added by unseen lengths": {0, 1},
        "words, translation invariance": {0, 1},
        "cola": {0, 1},
        "cola, best step": {0, 1},
        "squad f1": {0, 1},
        "squad f1, change at 32 tokens": {0, 1},
    }.items():
        assert by_seed("from_scratch", "learned_absolute", measure).keys() == seeds, (
            measure
        )
    for seed, best in by_seed(
        "from_scratch", "learned_absolute", "cola, best step"
    ).items():
        assert best >= by_seed("from_scratch", "learned_absolute", "cola")[seed]


@pytest.mark.slow
def test_positions_replaced_in_a_published_model(done, monkeypatch, tmp_path):
    """The arm `replaced`, of a model that stands for a published one."""
    config, folder, _ = done
    published = folder / "from_scratch" / "pretraining" / "learned_absolute"
    stages = {
        "stage1.length": 16,
        "stage1.batch_size": 8,
        "stage1.steps": 2,
        "data.held_out": 0.25,
    }
    changes = {f"replaced.training.{key}": value for key, value in stages.items()}
    changes |= {"published": str(published), "replaced.tasks": "cola"}
    config = changed(config, changes | {"replaced.first": "rope", "replaced.then": ""})
    sets = {"train": examples(44, 0), "validation": examples(21, 1)}
    opened = types.SimpleNamespace(as_data_source=sets.__getitem__)
    monkeypatch.setattr(glue, "open_dataset", lambda *args, **named: opened)
    runs = [run for run in plan(config, tmp_path) if run.arm == "replaced"]
    names = ["cola/untouched", "distillation/rope", "measures/rope", "cola/rope"]
    assert [run.name for run in runs] == [f"replaced/{name}" for name in names]
    state.save(config, runs, {}, tmp_path)
    for run in runs:
        assert state.is_ready(run)
        process.execute_run(tmp_path, run.name)
    state.save(config, runs, state.finished_entries(runs, tmp_path), tmp_path)
    by_seed = values(read_results(tmp_path)).by_seed
    assert by_seed("replaced", "untouched", "classification").keys() == {0, 1}
    assert by_seed("replaced", "rope", "classification").keys() == {0, 1}
    assert by_seed("replaced", "rope", "R² of the hidden states")[0] < 1
    assert by_seed("replaced", "rope", "words, symmetry").keys() == {0}
    assert not by_seed("replaced", "rope", "masked-LM loss added by unseen lengths")


@pytest.fixture(scope="module")
def written(done, tmp_path_factory):
    """Its report, by the command, which takes the settings from the study."""
    out = tmp_path_factory.mktemp("out")
    code, _, err = call(RUN, f"--workdir={done[1]}", f"--out={out}")
    assert not code, err
    return out


def test_the_report_of_a_study(written):
    page, text = ((written / name).read_text() for name in ("README.md", "appendix.md"))
    assert "## Claims" in page and "runs are missing" in page
    assert (
        "6 of 6 runs are done" in text
        and "**No number here is comparable with the paper's**" in text
    )
    headings = [
        "From scratch: scores",
        "From scratch: the paper's tables",
        "From scratch: properties once trained",
        "From scratch: figures",
        "The paper's table 1",
    ]
    for heading in (*headings, "What choosing the best step", "How it was made"):
        assert f"## {heading}" in text
    assert re.search(r"^\| \*a trivial answer\* +\| – .*\d\.\d ", text, re.M)
    assert re.search(r"^\| \*models above it\* +\| – .*[01] of 1 ", text, re.M)
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    for link in links:
        assert (written / link).is_file()

    def shown(number):
        return any(f"/figure{number}_" in link for link in links)

    assert [number for number in range(1, 8) if shown(number)] == [1, 2, 3, 5, 7]
    assert len(links) == 8  # Figure 1 of all models, not of each as well.
    results = json.loads((written / "results.json").read_text())
    entry = results["runs"]["from_scratch/cola/learned_absolute"]
    assert entry["values"]["cola"].keys() == {"0", "1"}
    assert {"settings", "code", "jax", "device", "cores", "seconds"} <= entry.keys()
    files = {"README.md", "appendix.md", "results.json", "figures"}
    assert {path.name for path in written.iterdir()} == files


def test_tables_of_a_study(done, tmp_path):
    """Its fine-tuning runs are those of any folder, though their checkpoints are gone."""
    runs = f"--runs={done[1]}/from_scratch/*/*"
    code, text, err = call(
        "eval.py", "--config=configs/tables.py", runs, f"--out={tmp_path / 'R'}"
    )
    assert not code, err
    assert (
        len(re.findall(r"^\| learned_absolute +\| .*± \d", text, re.M)) == 3
    )  # Matthews, F1, EM.
    assert "GLUE" in text and "SQuAD" in text


def test_a_report_is_written_again_from_its_results_alone(written, tmp_path):
    """Figures stay where the weights that they were drawn from are gone; those of all models are
    drawn from the results."""
    before = (written / "README.md").read_text()
    together = written / "figures" / "from_scratch" / "figure1_scores.png"
    together.unlink()
    assert report(written, written) == before
    assert together.is_file()
    with pytest.raises(ValueError, match=r"holds no study: .*results\.json is missing"):
        report(tmp_path, tmp_path)


def test_links_to_figures_of_a_name_with_a_comma(tmp_path):
    """Markdown ends a link at a space, and what readers make of %20 differs."""
    folder = model_folder(tmp_path, "from_scratch", "cycle(rope, none)")
    write_text(folder / "figure3_words.png", "")
    text = "\n".join(gallery(tmp_path, "from_scratch"))
    (link,) = re.findall(r"\]\((.*?)\)", text)
    assert re.fullmatch(r"[\w./-]+", link) and (tmp_path / link).is_file()


def test_only_what_is_missing_is_executed_again(done, tmp_path):
    """With the results file alone, models are retrained only for what still starts from them."""
    config, folder, _ = done
    results = read_results(folder)
    elsewhere = tmp_path / "S"
    state.write(elsewhere / "results.json", results)
    runs = plan(config, elsewhere)
    assert not state.to_execute(runs, state.finished_entries(runs, elsewhere))
    results["runs"]["from_scratch/cola/learned_absolute"] = None
    state.write(elsewhere / "results.json", results)
    entries = state.finished_entries(runs, elsewhere)
    state.check(runs, entries)
    assert [run.name for run in state.to_execute(runs, entries)] == [
        "from_scratch/pretraining/learned_absolute",
        "from_scratch/cola/learned_absolute",
    ]
    cola = next(run for run in runs if run.kind == "cola")
    assert not state.is_ready(cola)
    assert "left out below: from scratch, 1 run of cola." in appendix(results, tmp_path)
    costs = cost.Costs(
        runs, entries, {run.name: 3.6e12 for run in runs}, {"from_scratch": 1e9}, 1
    )
    lines = cost.cost_table(costs).splitlines()
    counts = {
        tuple(row[1:3]): row[3:6] for row in (re.split(r" *\| *", one) for one in lines)
    }
    assert counts["from scratch", "pretraining"] == ["2", "2", "1"]
    assert counts["from scratch", "cola"] == ["1", "0", "1"]
    assert counts["all", ""] == [str(len(runs)), str(len(runs) - 1), "2"]


def test_weights_in_the_folder_are_needed_to_start_from_a_model(done, tmp_path):
    config, folder, _ = done
    runs = {run.name: run for run in plan(config, folder)}
    model = runs["from_scratch/pretraining/learned_absolute"].folder / "checkpoints"
    cola = runs["from_scratch/cola/learned_absolute"]
    assert state.is_ready(cola)
    model.rename(tmp_path / "away")
    try:
        assert not state.is_ready(cola)
    finally:
        (tmp_path / "away").rename(model)


def test_runs_of_other_settings_are_not_taken(done):
    """What is done was made with the settings that are given; more models may come."""
    config, folder, _ = done
    changes = {
        "from_scratch.first": "learned_absolute,none",
        "from_scratch.then": "rope",
    }
    other = changed(config, {**changes, "jobs": 3})
    runs = plan(other, folder)
    state.check(runs, state.finished_entries(runs, folder))
    other = changed(other, {"glue.optimizer.learning_rate": 0.25})
    with pytest.raises(
        ValueError, match="^from_scratch/cola/learned_absolute: made with other"
    ):
        execute(other, folder)


def test_a_run_does_not_go_on_with_other_steps(done):
    """Its learning rate would follow two schedules."""
    config, folder, _ = done
    run = next(run for run in plan(config, folder) if run.kind == "cola")
    process._check_steps(run)
    longer = run._replace(config=changed(run.config, {"steps": 99}))
    with pytest.raises(
        ValueError, match=r"was started with config.steps=\d+, but the study now has 99"
    ):
        process._check_steps(longer)


def test_settings_belong_to_the_study(done):
    _, folder, _ = done
    code, _, err = call(RUN, CONFIG, f"--workdir={folder}", "--out=R")
    assert code == 1 and "remove other flags" in err
    code, _, err = call(RUN, f"--workdir={folder}")
    assert code == 1 and "--config is required" in err


# A run that notes who it is, and does what its model asks for.
FAKE = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
with open(folder / "starts", "a") as file:
    file.write("x")
if folder.name == "learned_absolute" and folder.parent.name == "cola":
    sys.exit(1)
if folder.parent.name == "pretraining":
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "1").touch()
def stop(*_):
    (folder / f"told {time.monotonic()}").touch()
    time.sleep(1)  # As if it saved.
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
time.sleep(float((folder.parents[2] / "seconds").read_text()))
entry = json.loads(sys.argv[2])
(folder / "result.json").write_text(json.dumps(entry))
"""


def starts(folder):
    return {
        str(path.parent.relative_to(folder)): len(path.read_text())
        for path in folder.rglob("starts")
    }


@pytest.mark.slow
def test_what_fails_and_what_is_stopped(tmp_path):
    """Runs that fail are reported and tried again; SIGTERM ends all of them with 75, and the same
    command goes on."""
    folder = tmp_path / "S"
    folder.mkdir()
    (tmp_path / "fake.py").write_text(FAKE)
    program = f"""
        import json, pathlib, subprocess, sys, time
        sys.path[:0] = [{str(tiny_run.ROOT / "tests")!r}, {str(Path(__file__).parent)!r}]
        import tiny_study
        from research.reproduction import cost, study
        def start(study_folder, run, cores):
            run.folder.mkdir(parents=True, exist_ok=True)
            fake = {str(tmp_path / "fake.py")!r}
            command = [sys.executable, fake, str(run.folder), json.dumps(tiny_study.entry(run))]
            return study._Process(run, subprocess.Popen(command), time.monotonic())
        study._start = start
        cost._rate = lambda config, model: 1e9
        folder = pathlib.Path({str(tmp_path)!r})
        try:
            study.execute(tiny_study.config(folder, jobs=2), folder / "S")
        except OSError as error:
            sys.exit(str(error))
    """
    environment = os.environ | {"PYTHONPATH": str(tiny_run.ROOT)}

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=tiny_run.ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    (folder / "seconds").write_text("60")
    process = start()
    for line in process.stderr:
        if "0 of them done" in line:
            break
    while len(starts(folder)) < 2:  # Both jobs are at work.
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert len(starts(folder)) == 2 and not list(folder.rglob("result.json"))
    assert (
        len(list(folder.rglob("told *"))) == 2
    )  # Each once: a second one ends it at once.
    (folder / "seconds").write_text("0")
    process = start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "1 runs failed" in err
    assert "from_scratch/cola/learned_absolute" in err.splitlines()[-1]
    counted = starts(folder)
    assert len(counted) == 6 and sorted(counted.values()) == [1] * 4 + [2] * 2
    assert "failed" in (folder / "progress.md").read_text()


def start_first_run(config, folder, cwd):
    runs = plan(config, folder)
    state.save(config, runs, {}, folder)
    command = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study.subprocess, "Popen", lambda args, **_: command.extend(args))
        study._start(folder, runs[0], [])
    child = subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return child, runs[0]


def test_a_run_that_fails(tmp_path):
    """It ends as other commands do, while it still listens to its study. Files of the working
    directory are not run, whatever their names."""
    config = tiny_study.config(tmp_path, text=str(tmp_path / "nowhere.txt"))
    for name in (
        "json.py",
        "threading.py",
        "pe_jax/__init__.py",
        "research/__init__.py",
    ):
        write_text(tmp_path / "cwd" / name, "raise SystemExit('ran')")
    child, _ = start_first_run(config, tmp_path / "S", tmp_path / "cwd")
    assert "nowhere.txt" in child.stderr.read() and child.wait(60) == 1


@pytest.mark.slow
def test_a_run_stops_with_its_study(tmp_path):
    """However that ended: here its end of the pipe is closed."""
    config = tiny_study.config(
        tmp_path, **{"from_scratch.training.stage1.steps": 10_000}
    )
    child, first = start_first_run(config, tmp_path / "S", tmp_path)
    for line in child.stderr:
        if line.startswith("step"):
            break
    child.stdin.close()
    assert child.wait(60) == 75
    assert any((first.folder / "checkpoints").iterdir())


def test_a_dry_run_makes_nothing(tmp_path):
    config = tiny_study.config(tmp_path)
    text = study.dry_run(config, tmp_path / "S")
    assert "| all " in text and not (tmp_path / "S").exists()


def test_a_step_is_timed_only_where_runs_are_left(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr(cost, "_rate", lambda stage, model: timed.append(model) or 1e9)
    runs = plan(tiny_study.config(tmp_path), tmp_path / "S")
    assert cost.costs(runs, {}, 1).rates == {"from_scratch": 1e9}
    assert (
        cost.costs(runs, {run.name: {} for run in runs}, 1).rates == {}
        and len(timed) == 1
    )


def test_hours_are_estimated_from_runs_that_are_done(tmp_path):
    runs = plan(tiny_study.config(tmp_path), tmp_path / "S")
    costs = cost.Costs(
        runs, {}, {run.name: 3.6e12 for run in runs}, {"from_scratch": 1e9}, 1
    )
    assert costs.hours(runs[:3]) == pytest.approx(3)
    for run in runs[:2]:  # A model and its measures: each kind has its own speed.
        write_text(run.folder / "result.json", json.dumps(tiny_study.entry(run)))
    state.add_seconds(runs[0], 1_800)
    state.add_seconds(runs[0], 5_400)  # After a stop.
    costs.done.update(state.finished_entries(runs, tmp_path / "S"))
    assert costs.hours(
        [run for run in runs if run.kind == "pretraining"]
    ) == pytest.approx(4)
    assert costs.hours([runs[1]]) == pytest.approx(1)
