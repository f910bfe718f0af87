"""The study: its plan, its cells in any starts, and what it says of claims."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from helpers import tiny_run, tiny_study
from helpers.commands import call
from helpers.finetuning_data import examples
from scipy import stats

from pe_jax.configs import study as study_config
from pe_jax.configs import tables
from pe_jax.data import glue_tasks
from pe_jax.files import write_text
from pe_jax.study import cell as cell_module
from pe_jax.study import cells, claims, cost, figures, heat_map, run, state, study
from pe_jax.study.claims import Claim, Difference, Ranks, judge, models_above
from pe_jax.study.evidence import PROPERTIES, Evidence, Key, gather, trivial_scores
from pe_jax.study.progress import open_cells
from pe_jax.study.report import report

PAPER = 13
CONFIG = f"--config={tiny_run.ROOT / 'configs' / 'study.py'}"


def test_the_plan(tmp_path):
    """The shipped one: what issue and page say of it."""
    config = study_config.get_config()
    config.published = "BERT"
    plan = cells(config, tmp_path)
    assert len({cell.folder for cell in plan}) == len({cell.name for cell in plan}) == len(plan)
    by = lambda arm, kind: [cell for cell in plan if (cell.arm, cell.kind) == (arm, kind)]
    scratch, replaced = by("from_scratch", "pretraining"), by("replaced", "pretraining")
    assert len(scratch) == PAPER + 3 + 2 * 7 and len(replaced) == PAPER + 1
    assert len(by("from_scratch", "squad")) == PAPER + 3 and len(by("replaced", "rte")) == PAPER + 1
    assert {cell.config.keep_position for cell in replaced if "kept" in cell.model} == {True}
    assert {cell.config.keep_position for cell in replaced if "kept" not in cell.model} == {False}
    assert {cell.config.init for cell in replaced} == {"BERT"}
    made = set()
    for cell in plan:  # In an order in which each can be made.
        assert cell.needs is None or cell.needs in made
        made.add(cell.folder)
    models = {cell.model for cell in plan}
    mentioned = {
        one for claim in claims.CLAIMS if not isinstance(claim.effect, Ranks)
        for one in (*claim.effect.of, *getattr(claim.effect, "against", ()))
    }  # fmt: skip
    assert mentioned <= models
    config.published = ""
    assert {cell.arm for cell in cells(config, tmp_path)} == {"from_scratch"}


def test_an_encoding_that_is_named_twice(tmp_path):
    config = study_config.get_config()
    config.from_scratch.then = "rope,rope(base=500)"
    with pytest.raises(ValueError, match="it has from_scratch/pretraining/rope twice"):
        cells(config, tmp_path)


def test_encodings_that_change_others_are_models_of_their_own(tmp_path):
    config = study_config.get_config()
    config.from_scratch.first = "cycle(rope(base=500), none),cycle(alibi, none)"
    config.from_scratch.then = "interpolated(rope, factor=2),interpolated(alibi, factor=2)"
    models = {cell.model for cell in cells(config, tmp_path)}
    assert {"cycle(rope, none)", "interpolated(alibi)", "cycle(alibi, none), seed 1"} <= models


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A whole study, its cells made in this process."""
    folder = tmp_path_factory.mktemp("study")
    config = tiny_study.config(folder)
    sets = {"train": examples(44, 0), "validation": examples(21, 1)}

    def started(cell, cores):
        cell_module.describe(cell, cores)
        cell_module.make(cell.folder)
        return study._Running(cell, types.SimpleNamespace(poll=lambda: 0), 0.0)

    with pytest.MonkeyPatch.context() as patch:
        opened = types.SimpleNamespace(as_data_source=sets.__getitem__)
        patch.setattr(glue_tasks, "open_prepared", lambda *args: opened)
        patch.setattr(study, "_started", started)
        patch.setattr(cost, "_rate", lambda config, model: 1e9)  # A dry run measures it.
        text = run(config, folder / "S")
    return config, folder / "S", text


def test_a_study(done):
    config, folder, text = done
    plan = cells(config, folder)
    assert "·" not in text and all(map(state.is_done, plan)) and not state.to_make(plan)
    assert len(plan) == (2 + 2) + 2
    assert not list(folder.glob("*/cola/*/checkpoints"))
    evidence = gather(plan)
    assert evidence.models("from_scratch") == ["learned_absolute"]
    for measure, seeds in {
        "masked-LM loss": {0, 1},
        "masked-LM loss added by unseen lengths": {0, 1},
        "words, translation invariance": {0, 1},
        "cola": {0, 1},
        "cola, best step": {0, 1},
        "squad f1": {0, 1},
        "squad f1, change at 32 tokens": {0, 1},
    }.items():
        assert evidence.of("from_scratch", "learned_absolute", measure).keys() == seeds, measure
    for seed, best in evidence.of("from_scratch", "learned_absolute", "cola, best step").items():
        assert best >= evidence.of("from_scratch", "learned_absolute", "cola")[seed]


@pytest.fixture(scope="module")
def written(done, tmp_path_factory):
    """Its page, by the command, which takes the settings from the study."""
    out = tmp_path_factory.mktemp("out")
    code, _, err = call("eval.py", CONFIG, f"--workdir={done[1]}", f"--out={out}")
    assert not code, err
    return out


def test_its_page(written):
    page = (written / "README.md").read_text()
    assert (
        "6 of 6 cells are done" in page
        and "**No number here is comparable with the paper's**" in page
    )
    headings = [
        "Claims",
        "From scratch: scores",
        "From scratch: the paper's tables",
        "From scratch: properties once trained",
        "From scratch: figures",
        "The paper's table 1",
        "Settings",
    ]
    for heading in (*headings, "What choosing the best step", "How it was made"):
        assert f"## {heading}" in page
    assert re.search(r"^\| \*a trivial answer\* +\| – .*\d\.\d ", page, re.M)
    assert re.search(r"^\| \*models above it\* +\| – .*[01] of 1 ", page, re.M)
    links = re.findall(r"!\[.*?\]\((.*?)\)", page)
    for link in links:
        assert (written / link).is_file()
    figure = lambda number: any(f"/figure{number}_" in link for link in links)
    assert [number for number in range(1, 8) if figure(number)] == [1, 2, 3, 5, 7]
    assert len(links) == 5  # Figure 1 of all models, not of each as well.
    values = json.loads((written / "evidence.json").read_text())
    assert values["from_scratch"]["learned_absolute"]["cola"].keys() == {"0", "1"}
    assert (written / "from_scratch" / "glue.md").is_file()


def test_trivial_scores(tmp_path):
    """Of either constant label the better, by whatever metric; a mean once all tasks have one."""
    plan = cells(study_config.get_config(), tmp_path)
    assert trivial_scores(plan) == {}
    baselines = {
        "squad": ("f1", {"f1": 9.5, "exact": 0.1}),
        "cola": ("matthews", {"matthews": 0.0}),
        "rte": ("accuracy", {"accuracy": 47.0}),
        "mrpc": ("f1", {"f1": 40.0, "accuracy": 20.0}),
        "sst2": ("accuracy", {"accuracy": 51.0}),
    }
    expected = {"squad f1": 9.5, "squad exact": 0.1, "cola": 0.0, "rte": 53.0, "mrpc": 40.0}
    for task, (metric, baseline) in baselines.items():
        folder = next(cell.folder for cell in plan if cell.kind == task)
        results = {"metric": metric, "baseline": baseline}
        write_text(folder / "results.json", json.dumps(results))
        assert task not in trivial_scores(plan)  # Not before the cell is done.
        write_text(folder / "done.json", "{}")
    assert trivial_scores(plan) == {**expected, "sst2": 51.0, "GLUE": 36.0}


def test_models_above_a_score():
    """By more than chance; neither one seed nor seeds that all agree can say so."""
    scores = {
        "clear": {0: 60.0, 1: 61.0, 2: 60.5},
        "by chance": {0: 49.0, 1: 61.0, 2: 52.0},
        "below": {0: 40.0, 1: 41.0, 2: 40.5},
        "all agree": {0: 60.0, 1: 60.0},
        "one seed": {0: 90.0},
    }
    evidence = Evidence({Key("replaced", model, "rte"): own for model, own in scores.items()})
    assert models_above(evidence, "replaced", "rte", 50.0) == (1, 4)


def test_figures_outlive_weights(done, written, tmp_path):
    """What is drawn stays where the weights that it was drawn from are gone, and is shown."""
    config, folder, _ = done
    before = (written / "README.md").read_text()
    own = written / "from_scratch" / "learned_absolute"
    assert {path.name for path in own.glob("*.json")} >= {"vectors.json", "scores.json"}
    assert not (own / figures.scores.SCORED).exists()
    together = written / "from_scratch" / f"{figures.scores.FIGURE}.png"
    together.unlink()
    weights = folder / "from_scratch" / "pretraining" / "learned_absolute" / "checkpoints"
    weights.rename(tmp_path / "away")
    try:
        assert report(config, folder, tables.get_config(), written) == before
    finally:
        (tmp_path / "away").rename(weights)
    assert together.is_file()


def test_links_to_figures_of_a_name_with_a_comma(written, tmp_path):
    """As the control's: Markdown ends a link at a space, and what readers make of %20 differs."""
    config = study_config.get_config()
    config.published, config.replaced.kept = "BERT", "learned_absolute"
    own = [cell for cell in cells(config, tmp_path / "S") if "kept" in cell.model]
    write_text(own[0].folder / "done.json", "{}")
    out = tmp_path / "replaced"
    shutil.copytree(written / "from_scratch" / "learned_absolute", out / "learned_absolute__kept")
    drawn = figures.draw(own, Evidence({}), config.measures, out)
    page = "\n".join(figures.gallery(out, drawn))
    links = re.findall(r", kept\]\((.*?)\)", page)
    assert len(links) == 4
    for link in links:
        assert re.fullmatch(r"[\w./-]+", link) and (tmp_path / link).is_file()


def test_only_what_is_missing_is_made_again(done, tmp_path):
    """With the small files alone, models come back only for what starts from them."""
    config, folder, _ = done
    plan = cells(config, folder)
    by_name = {cell.name: cell for cell in plan}
    model = by_name["from_scratch/pretraining/learned_absolute"]
    hidden = [(model.folder / "checkpoints", tmp_path / "checkpoints")]
    cola = by_name["from_scratch/cola/learned_absolute"]
    hidden.append((cola.folder / "done.json", tmp_path / "done.json"))
    hidden[0][0].rename(hidden[0][1])
    try:
        assert not state.to_make(plan)
        hidden[1][0].rename(hidden[1][1])
        assert [cell.name for cell in state.to_make(plan)] == [
            "from_scratch/pretraining/learned_absolute",
            "from_scratch/cola/learned_absolute",
        ]
        assert not state.is_ready(cola)
        assert open_cells(plan) == "from scratch, cola of 1 model"
        prices = cost.Costs(plan, {cell.folder: 3.6e12 for cell in plan}, 1e9, 1)
        lines = cost.cost_table(prices).splitlines()
        counts = {tuple(row[1:3]): row[3:6] for row in (re.split(r" *\| *", one) for one in lines)}
        assert counts["from scratch", "pretraining"] == ["2", "2", "1"]
        assert counts["from scratch", "cola"] == ["1", "0", "1"]
        assert counts["all", ""] == [str(len(plan)), str(len(plan) - 1), "2"]
    finally:
        for there, here in hidden:
            if here.exists():
                here.rename(there)


def test_cells_of_other_settings_are_not_taken(done):
    """What is done was made with the settings that are given; more models may come."""
    config, folder, _ = done
    other = config.copy_and_resolve_references()
    other.from_scratch.first, other.from_scratch.then = "learned_absolute,none", "rope"
    other.jobs = 3
    state.check(cells(other, folder))
    other.glue.optimizer.learning_rate = 0.25
    with pytest.raises(ValueError, match="^from_scratch/cola/learned_absolute: made with other"):
        run(other, folder)


def test_settings_belong_to_the_study(done):
    _, folder, _ = done
    code, _, err = call("eval.py", CONFIG, f"--workdir={folder}", "--config.jobs=3")
    assert code == 1 and "give no --config.KEY" in err


# A cell that notes who it is, and does what its model asks for.
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
settings = json.loads((folder / "cell.json").read_text())["settings"]
(folder / "done.json").write_text(json.dumps({"settings": settings}))
"""


def starts(folder):
    return {
        str(path.parent.relative_to(folder)): len(path.read_text())
        for path in folder.rglob("starts")
    }


def test_what_fails_and_what_is_stopped(tmp_path):
    """Cells that fail are told and tried again; SIGTERM ends all of them with 75, and the same
    command goes on."""
    folder = tmp_path / "S"
    folder.mkdir()
    (tmp_path / "fake.py").write_text(FAKE)
    program = f"""
        import pathlib, subprocess, sys, time
        sys.path.insert(0, {str(tiny_run.ROOT / "tests")!r})
        from helpers import tiny_study
        from pe_jax.study import cost, study
        def started(cell, cores):
            study.describe(cell, cores)
            command = [sys.executable, {str(tmp_path / "fake.py")!r}, str(cell.folder)]
            return study._Running(cell, subprocess.Popen(command), time.monotonic())
        study._started = started
        cost._rate = lambda config, model: 1e9
        folder = pathlib.Path({str(tmp_path)!r})
        try:
            study.run(tiny_study.config(folder, jobs=2), folder / "S")
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
    assert len(starts(folder)) == 2 and not list(folder.rglob("done.json"))
    assert len(list(folder.rglob("told *"))) == 2  # Each once: a second one ends it at once.
    (folder / "seconds").write_text("0")
    process = start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "1 cells failed" in err
    assert "from_scratch/cola/learned_absolute" in err.splitlines()[-1]
    counted = starts(folder)
    assert len(counted) == 6 and sorted(counted.values()) == [1] * 4 + [2] * 2
    assert "failed" in (folder / "progress.md").read_text()


def test_a_cell_that_fails(tmp_path):
    """It ends as other commands do, while it still listens to its study."""
    first = cells(tiny_study.config(tmp_path), tmp_path / "S")[0]
    first.config.data.source = str(tmp_path / "nowhere.txt")
    cell_module.describe(first, ())
    command = [sys.executable, "-m", "pe_jax.study", str(first.folder)]
    process = subprocess.Popen(
        command, cwd=tiny_run.ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "nowhere.txt" in process.stderr.read() and process.wait(60) == 1


def test_a_cell_stops_with_its_study(tmp_path):
    """However that ended: here its end of the pipe is closed."""
    config = tiny_study.config(tmp_path, **{"from_scratch.pretraining.stage1.steps": 10_000})
    first = cells(config, tmp_path / "S")[0]
    cell_module.describe(first, ())
    command = [sys.executable, "-m", "pe_jax.study", str(first.folder)]
    process = subprocess.Popen(
        command, cwd=tiny_run.ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("step"):
            break
    process.stdin.close()
    assert process.wait(60) == 75
    assert any((first.folder / "checkpoints").iterdir())


def test_a_dry_run_makes_nothing(tmp_path):
    config = tiny_study.config(tmp_path)
    text = study.dry_run(config, tmp_path / "S")
    assert "| all " in text and not (tmp_path / "S").exists()
    plan = cells(config, tmp_path / "S")
    prices = cost.Costs(plan, {cell.folder: 3.6e12 for cell in plan}, 1e9, 1)
    assert prices.hours(plan[:3]) == pytest.approx(3)
    for one in plan[:2]:  # A run and its measures: each kind has its own speed.
        write_text(one.folder / "done.json", "{}")
    state.add_seconds(plan[0], 1_800)
    state.add_seconds(plan[0], 5_400)  # After a stop.
    assert prices.hours([cell for cell in plan if cell.kind == "pretraining"]) == pytest.approx(4)
    assert prices.hours([plan[1]]) == pytest.approx(1)


# --- claims ---------------------------------------------------------------------------------------


def made(**values):
    """Evidence of one arm and measure "score", by model."""
    return Evidence({Key("arm", m, "score"): dict(enumerate(v)) for m, v in values.items()})


def verdict(evidence, effect, sign=+1, monkeypatch=None):
    monkeypatch.setattr(claims, "CLAIMS", (Claim("says", "place", effect, sign),))
    (found,) = judge(evidence, ["arm"])
    return found


def test_verdicts(monkeypatch):
    a, b = [5.0, 5.5, 5.2, 5.1, 5.4], [4.0, 4.1, 4.3, 4.2, 4.0]
    evidence = made(a=a, b=b)
    for sign, says in ((+1, "reproduced"), (-1, "contradicted")):
        found = verdict(evidence, Difference("score", ("a",), ("b",)), sign, monkeypatch)
        assert found.says == says and found.n == 5
        assert found.agrees == (says == "reproduced") and not found.leans
        assert found.between == pytest.approx((np.mean(a), np.mean(b)))
    d = np.subtract(a, b)
    half = stats.t.ppf(0.975, 4) * d.std(ddof=1) / np.sqrt(5)
    assert (found.low, found.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
    same = verdict(made(a=[1.0, 2.0], b=[2.0, 1.0]), Difference("score", ("a",), ("b",)), 1,
                   monkeypatch)  # fmt: skip
    assert same.says == "undecided" and same.effect == 0
    one = verdict(made(a=[1.0], b=[2.0]), Difference("score", ("a",), ("b",)), 1, monkeypatch)
    assert (one.says, one.effect, one.low, one.p) == ("undecided", -1.0, None, None)
    none = verdict(made(a=[1.0]), Difference("score", ("a",), ("b",)), 1, monkeypatch)
    assert (none.says, none.n) == ("not made yet", 0)


def test_false_discoveries_are_controlled(monkeypatch):
    rng = np.random.default_rng(0)
    evidence = made(**{f"m{n}": rng.normal(size=5) for n in range(41)})
    many = tuple(
        Claim("", "", Difference("score", (f"m{n}",), (f"m{n + 1}",)), 1) for n in range(40)
    )
    monkeypatch.setattr(claims, "CLAIMS", many)
    found = judge(evidence, ["arm"])
    assert min(one.p for one in found) < 0.05 <= min(one.q for one in found)
    assert {one.says for one in found} == {"undecided"}
    assert all(one.q >= one.p for one in found)
    assert [one.leans for one in found] == [one.p < 0.05 for one in found]


def test_ranks(monkeypatch):
    """Over models, and not with one that is there twice."""
    values = {}
    for number, model in enumerate([*"abcdefg", "g, kept"]):
        values[Key("arm", model, "violation")] = {0: float(number)}
        values[Key("arm", model, "score")] = {s: -number + 0.1 * s for s in range(3)}
    found = verdict(Evidence(values), Ranks("violation", "score"), -1, monkeypatch)
    assert found.effect == pytest.approx(-1) and found.says == "reproduced" and found.n == 3
    assert found.between is None and found.influence.models == 7
    assert found.low >= -1
    assert found.p == pytest.approx(2 / 5040, rel=0.01)  # All orders of seven.


def test_the_model_that_decides_a_correlation(monkeypatch):
    values = {}
    for number, model in enumerate("abcdef"):
        values[Key("arm", model, "violation")] = {0: float(number)}
        values[Key("arm", model, "score")] = {0: 100.0 if model == "e" else -float(number)}
    found = verdict(Evidence(values), Ranks("violation", "score"), -1, monkeypatch)
    assert found.influence == (6, "e", pytest.approx(-1)) and found.effect > -0.5


@pytest.mark.parametrize("models", [3, 5])
def test_the_heat_map(tmp_path, models):
    """Once there are models enough, those with some of the scores only in the columns they have."""
    rng = np.random.default_rng(0)
    names = [f"m{n}" for n in range(models)] + ["m0, kept"]
    probes = [f"{one}, {name}" for one in ("words", "kernel") for name in PROPERTIES]
    values = {Key("arm", one, name): {0: rng.uniform()} for one in names for name in probes}
    values |= {Key("arm", one, "squad f1"): {0: rng.uniform(), 1: rng.uniform()} for one in names}
    values |= {Key("arm", one, "cola"): {0: rng.uniform()} for one in names[:3]}
    paths = heat_map.draw("arm", Evidence(values), tmp_path / "out")
    assert len(paths) == (2 if models == 5 else 0) and all(path.is_file() for path in paths)
    alike = {key: {0: 0.0} if key.measure == "squad f1" else one for key, one in values.items()}
    assert not heat_map.draw("arm", Evidence(alike), tmp_path / "none")
