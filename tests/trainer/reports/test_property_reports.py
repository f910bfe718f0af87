"""Property reports on small runs, untrained encodings and checkpoints: numbers and figures."""

import json
import shutil
import types
from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers import tiny_run
from matplotlib import image
from safetensors.numpy import save_file

from pe_jax import encodings, properties
from pe_jax.encodings.parser import PAPER
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.configs.sweep import SweepConfig
from pe_jax.trainer.figures import style
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report import scores as scores_part
from pe_jax.trainer.reports.property_report import vectors as vectors_part
from pe_jax.trainer.reports.property_report.matrices import average
from pe_jax.trainer.reports.property_report.report import PARTS, measure_properties
from pe_jax.trainer.reports.property_report.subjects import (
    from_checkpoint,
    from_name,
    from_run,
)
from pe_jax.trainer.reports.property_report.texts import texts
from pe_jax.trainer.reports.sinusoid_sweep import sweep_sinusoids
from pe_jax.trainer.tasks import pretraining
from pe_jax.trainer.training import workdir
from pe_jax.trainer.training.checkpointing import Checkpoints


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two trained runs and a copy of each: enough to correlate, if not to learn from."""
    folder = tmp_path_factory.mktemp("runs")
    for name, stages in (
        ("learnable_sinusoidal_absolute", {}),
        ("learned_absolute+learned_relative", {"stage1.steps": 20, "stage2.steps": 0}),
    ):
        changes = {"model.position": name, "checkpoint_every": 10, **stages}
        config = tiny_run.config(folder, **tiny_run.NO_DROPOUT, **changes)
        pretraining.run(config, folder / name)
        shutil.copytree(folder / name, folder / f"{name}_again")
    return sorted(path for path in folder.iterdir() if (path / "config.json").exists())


@pytest.fixture(scope="module")
def trained(runs):
    """The two that were trained. Reading a run compiles what draws its parameters."""
    return [from_run(runs[0]), from_run(runs[2])]


@pytest.fixture
def subjects(runs, trained):
    """The runs and their copies, without what other tests measured."""
    both = zip(runs, np.repeat(trained, 2), strict=True)
    return [replace(subject, name=path.name, folder=path) for path, subject in both]


@pytest.fixture
def config():
    return PropertiesConfig(
        size="tiny",
        length=24,
        words=12,
        seeds=2,
        windows=(3, 8),
        table_window=3,
        score_examples=16,
        texts=16,
    )


def numbers(out, part):
    return json.loads((out / f"{part}.json").read_text())


def assert_shown(pictures, text):
    """The page links each picture, and none is an empty page."""
    assert pictures
    for path in pictures:
        assert f"]({path.name})" in text
        assert image.imread(path)[..., :3].std() > 0.05, path


def test_less_text_than_asked_for(subjects, config, tmp_path, capsys):
    """All of it is read, and that is said; none at all is an error."""
    config = replace(config, texts=10_000)
    subject = subjects[0]
    found = texts(subject, config).tokens
    assert 0 < len(found) < 10_000 and len(np.unique(found, axis=0)) == len(found)
    assert (
        f"The text has only {len(found):,} pieces of 22 tokens"
        in capsys.readouterr().err
    )
    config = replace(config, text=str(tmp_path / "short.txt"))
    (tmp_path / "short.txt").write_text("The whale stood.\n\nThe ship looked.\n")
    with pytest.raises(ValueError, match="No document has 22 tokens"):
        texts(subject, config)


# Parts whose own tests make a report of them.
ELSEWHERE = (
    "rotary_frequencies", "massive_values", "positional_basis", "position_probe", "shift", "place",
    "attention_flow", "order_sensitivity",
)  # fmt: skip


@pytest.mark.slow
def test_a_report_on_runs(runs, subjects, config, tmp_path, monkeypatch):
    """All parts at once: files are written, figures are not empty, the page links all of them."""
    for part in (*ELSEWHERE, "correlation"):
        monkeypatch.delitem(PARTS, part)
    config = replace(config, windows=(3,))  # Compiled for every shape of a matrix.
    subjects = [subjects[0], subjects[2]]  # Without their copies.
    subjects.append(from_name("learnable_sinusoidal_absolute", config, 0))
    text = measure_properties(subjects, config, tmp_path)
    assert text == (tmp_path / "report.md").read_text()
    assert {path.stem for path in tmp_path.glob("*.json")} == set(PARTS)
    pictures = sorted(tmp_path.glob("*.png"))
    assert (tmp_path / "report.html").read_text().count("data:image/png") == len(
        pictures
    )
    for number in range(1, 8):
        assert any(path.name.startswith(f"figure{number}_") for path in pictures), (
            number
        )
    assert_shown(pictures, text)

    # What is written is what the library measures on the run's own checkpoint.
    (component,) = subjects[0].with_vectors()
    phi = properties.proximity(component.vectors(np.arange(24)))
    found = numbers(tmp_path, "vectors")["learnable_sinusoidal_absolute"]["trained"]
    assert found["monotonicity_3"] == pytest.approx(
        float(properties.monotonicity(phi, 3))
    )
    assert found["monotonicity_all"] == pytest.approx(
        float(properties.monotonicity(phi))
    )

    moments = {
        label: [*map(int, at)] for label, at in numbers(tmp_path, "evolution").items()
    }
    assert moments["learned_absolute+learned_relative: learned_relative"] == [0, 10, 20]
    assert moments["learnable_sinusoidal_absolute"] == [
        0,
        10,
        12,
        20,
    ]  # 12: the end of a stage.

    # The last checkpoint's score is the one in the run's own metrics.
    path = runs[0]
    lines = [
        json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()
    ]
    last = [line for line in lines if "held_out/masked_lm_loss" in line][-1]
    scored = numbers(tmp_path, "scores")[path.name]
    assert scored["checkpoints"][-1]["step"] == last["step"] == 20
    assert scored["checkpoints"][-1]["masked_lm_loss"] == pytest.approx(
        last["held_out/masked_lm_loss"], rel=1e-5
    )
    assert [c["stage_length"] for c in scored["checkpoints"]] == [32, 32, 48]
    epochs = [c["epoch"] for c in scored["checkpoints"]]
    assert epochs == sorted(epochs) and scored["stages"][1]["epoch"] == epochs[1]

    kernels = numbers(tmp_path, "offset_kernel")
    assert set(kernels) == {subject.name for subject in subjects}
    assert all(len(one["layers"]) == 1 for one in kernels.values())

    trained = numbers(tmp_path, "table1")["learnable_sinusoidal_absolute"]["trained"]
    assert set(trained) == {"learnable_sinusoidal_absolute"}


def test_correlation_with_the_runs_own_scores(runs, subjects, config, tmp_path):
    config = replace(config, parts="correlation")
    text = measure_properties(subjects, config, tmp_path)
    table = numbers(tmp_path, "correlation")
    assert table["runs"] == [path.name for path in runs]
    assert table["correlations"] and all(one["n"] == 4 for one in table["correlations"])
    assert_shown([*tmp_path.glob("*.png")], text)


def test_scores_are_kept(subjects, config, tmp_path, monkeypatch):
    config = replace(config, parts="scores")
    first = measure_properties(subjects[:1], config, tmp_path)
    monkeypatch.setattr(
        scores_part, "build", None
    )  # A second call that scored would fail.
    assert measure_properties(subjects[:1], config, tmp_path) == first
    config = replace(config, score_examples=8)
    with pytest.raises(TypeError):
        measure_properties(subjects[:1], config, tmp_path)


def test_the_start_is_the_run_s_own(subjects):
    """`ReportSubject.start` is what the first step started from: replayed from the seed."""
    run = subjects[2]
    resolved = workdir.load_config(run.folder, PretrainingConfig)
    experiment = pretraining.build(resolved, run.folder / "tokenizer.json")
    expected = experiment.program.init().params["bert"]["position"]
    jax.tree.map(np.testing.assert_array_equal, run.start, expected)
    assert set(run.start) == {"learned_absolute", "learned_relative"}


def test_table_1(config, tmp_path, monkeypatch, capsys):
    """The paper's ticks and crosses: exact zeros for sinusoids, parameters from `init`."""
    config = replace(config, parts="table1", words=3, seeds=1)
    monkeypatch.setattr(render, "_SECONDS_A_LINE", 0.0)
    both, layered = "learned_absolute+sinusoidal_relative", "cycle(rope, none)"
    subjects = [from_name(name, config, 0) for name in (*PAPER[:7], both, layered)]
    measure_properties(subjects, config, tmp_path)
    assert "\nTable 1: 9 of 9 encodings, " in capsys.readouterr().err
    found = numbers(tmp_path, "table1")
    assert {name: row["parameters"] for name, row in found.items()} == {
        "none": 0,
        "learned_absolute": 24 * 128,
        "sinusoidal_absolute": 0,
        "learnable_sinusoidal_absolute": 64,
        "learned_relative": 129 * 64,
        "sinusoidal_relative": 0,
        "learnable_sinusoidal_relative": 32,
        both: 24 * 128,
        layered: 0,
    }
    assert found.pop(layered)["formula"].startswith("q_i → R(ω i) q_i")
    assert found.pop(both)["formula"] == "P_x free + S(ω, m), ω_i = 10000^(−2i/d)"
    for name, row in found.items():
        if "sinusoidal" in name:
            assert row["untrained"]["vectors"]["translation_invariance"] == 0
            assert row["untrained"]["vectors"]["symmetry"] == 0
            assert row["turning_point"] == (5 if "relative" in name else 11)
        if "relative" in name:
            assert row["untrained"]["words"]["translation_invariance"] < 1e-6
            assert row["untrained"]["words"]["symmetry"] > 0.05
            assert row["untrained"]["kernel"]["translation_invariance"] < 1e-6
    assert (
        found["sinusoidal_absolute"]["untrained"]["words"]["translation_invariance"]
        > 0.05
    )
    assert (
        found["learned_absolute"]["untrained"]["vectors"]["translation_invariance"]
        > 0.9
    )


@pytest.mark.slow
def test_untrained_encodings_heads_and_vector_figures(config, tmp_path):
    config = replace(
        config,
        heads="each",
        attention="weights",
        vector="pdf",
        parts="words,regression",
    )
    names = ["sinusoidal_absolute", "learned_absolute+sinusoidal_relative"]
    text = measure_properties(
        [from_name(name, config, 0) for name in names], config, tmp_path
    )
    assert (tmp_path / "figure3_words.pdf").read_bytes()[:4] == b"%PDF"
    found = numbers(tmp_path, "words")["sinusoidal_absolute (untrained)"]
    assert len(found["heads"]) == 2 and found["words"] == 12
    assert "forward share" in text
    # Sinusoids of many frequencies determine the position up to rounding.
    fits = numbers(tmp_path, "regression")["sinusoidal_absolute (untrained)"]
    assert max(fit["r2"]["test"] for fit in fits) > 0.99


@pytest.mark.slow
def test_offset_kernels_of_encodings_without_vectors(config, tmp_path):
    """RoPE and ALiBi have a row by the kernel in table 1 and the part of their own."""
    config = replace(config, parts="table1,offset_kernel", seeds=1, heads="each")
    names = ["rope", "alibi", "rope+causal"]
    subjects = [from_name(name, config, 0) for name in names]
    text = measure_properties(subjects, config, tmp_path)
    found = numbers(tmp_path, "offset_kernel")
    table = numbers(tmp_path, "table1")
    for name, subject in zip(names, subjects, strict=True):
        (layer,) = found[subject.name]["layers"]
        by_kernel = table[name]["untrained"]["kernel"]
        assert layer["average"]["translation_invariance"] < 1e-8
        assert layer["average"]["monotonicity_all"] == by_kernel["monotonicity_all"]
        assert "vectors" not in table[name]["untrained"] and len(layer["heads"]) == 2
        assert np.shape(layer["curve"]) == (2, 47) and layer["curve"][0][23] is None
        assert ("symmetry" in layer["average"]) == ("causal" not in name)
    assert found["alibi (untrained)"]["layers"][0]["average"]["monotonicity_all"] == 0
    assert found["rope+causal (untrained)"]["layers"][0]["curve"][0][24:] == [None] * 23
    assert "(offset_kernel_curves.png)" in text and "| alibi " in text
    config = replace(config, kernel="texts", parts="offset_kernel", heads="average")
    assert "12 texts of random words" in measure_properties(
        subjects[:1], config, tmp_path
    )
    assert average([{"a": 1.0, "b": 2.0}, {"a": 2.0}]) == {"a": 1.5}


def test_progress_within_a_part(config, tmp_path, monkeypatch, capsys):
    """Each model is counted when it is done; a part of a single model prints no line of its own."""
    monkeypatch.setattr(render, "_SECONDS_A_LINE", 0.0)
    measured = []

    def measure(model, config):
        measured.append((model.name, capsys.readouterr().err.partition(", ")[0]))
        return render.Findings({model.name: {}})

    part = render.ReportSection("Some part", render.MODEL, [], measure)
    models = [types.SimpleNamespace(name=name, model=True) for name in "abc"]
    render.render(part, models, config, tmp_path)
    lines = [
        "Some part: 1 of 3 models",
        "Some part: 2 of 3 models",
        "Some part: 3 of 3 models",
    ]
    assert measured == [("a", ""), ("b", lines[0]), ("c", lines[1])]
    assert capsys.readouterr().err.startswith(lines[2])
    render.render(part, models[:1], config, tmp_path)
    assert not capsys.readouterr().err


def test_tables_of_other_families(config, tmp_path):
    """A table alone has vectors and can be probed, but has no attention."""
    rows = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    save_file({"transformer.wpe.weight": rows}, tmp_path / "gpt.safetensors")
    save_file(
        {"roberta.embeddings.position_embeddings.weight": rows},
        tmp_path / "rob.safetensors",
    )
    gpt = from_checkpoint(tmp_path / "gpt.safetensors", "")
    roberta = from_checkpoint(tmp_path / "rob.safetensors", "", "RoBERTa")
    assert (gpt.name, gpt.length, roberta.name, roberta.length) == (
        "gpt",
        32,
        "RoBERTa",
        30,
    )
    (component,) = roberta.with_vectors()
    np.testing.assert_array_equal(component.vectors(np.arange(30)), rows[2:])
    text = measure_properties([gpt, roberta], config, tmp_path / "out")
    assert "## Regression probe" in text and "## Identical words" not in text
    config = replace(config, parts="words")
    with pytest.raises(
        ValueError, match="words needs a run, an untrained encoding or an imported"
    ):
        measure_properties([gpt], config, tmp_path / "out")


def test_scores_from_a_table(runs, subjects, config, tmp_path):
    config = replace(config, parts="correlation")
    table = tmp_path / "scores.csv"
    lines = [f"{path.name},{i},{i % 2}.5" for i, path in enumerate(runs)]
    table.write_text("\n".join(["run,cola,rte", *reversed(lines)]) + "\n")
    config = replace(config, scores=str(table))
    measure_properties(subjects, config, tmp_path / "out")
    found = numbers(tmp_path / "out", "correlation")
    assert found["scores"] == {"cola": [0, 1, 2, 3], "rte": [0.5, 1.5, 0.5, 1.5]}

    table.write_text(
        "run,cola\n" + "\n".join(f"{path.name},{path.name}" for path in runs)
    )
    with pytest.raises(ValueError, match="has a cell that is not a number"):
        measure_properties(subjects, config, tmp_path / "out")
    table.write_text("run,cola\nother,1\n")
    with pytest.raises(
        ValueError, match="has no scores of learnable_sinusoidal_absolute, "
    ):
        measure_properties(subjects, config, tmp_path / "out")


def test_what_cannot_be_measured(subjects, config, tmp_path):
    with pytest.raises(
        ValueError, match="give --workdir, --runs, --encodings or --checkpoints"
    ):
        measure_properties([], config, tmp_path)
    config = replace(config, parts="correlation")
    with pytest.raises(
        ValueError, match="correlation needs four runs or more that have scores"
    ):
        measure_properties(subjects[:3], config, tmp_path)
    with pytest.raises(
        ValueError, match="vector must be one of '', pdf, svg, got 'eps'"
    ):
        replace(config, parts="vectors", vector="eps")
    config = replace(config, parts="words", layer=1)
    with pytest.raises(ValueError, match="layer must be 0 to 0, got 1"):
        measure_properties(subjects, config, tmp_path)


def test_a_run_that_has_not_saved_yet(runs, tmp_path):
    shutil.copy(runs[0] / "config.json", tmp_path)
    Checkpoints(tmp_path, keep=1).close()
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        from_run(tmp_path)


@pytest.mark.parametrize(
    "measure", ["turning_point", "monotonicity", "monotonicity_weighted"]
)
def test_the_sweep_from_the_command_line(measure, tmp_path, capsys):
    config = SweepConfig(
        measure=measure,
        base_count=3,
        dim_count=4,
        length=40,
        window=9,
        bases=(100.0, 10_000.0),
        dims=(8.0, 64.0),
    )
    text = sweep_sinusoids(config, tmp_path)
    assert "12 of 12 settings" in capsys.readouterr().err
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert np.shape(found[measure]) == (3, 4) and found["dims"] == [8, 16, 32, 64]
    w = encodings.default_frequencies(64, 10_000.0)
    values = properties.psi(w, np.arange(40))
    expected = {
        "turning_point": properties.turning_point(values),
        "monotonicity": properties.monotonicity(values[_apart(40)], 9),
        "monotonicity_weighted": properties.monotonicity(
            values[_apart(40)], 9, weighted=True
        ),
    }
    assert found[measure][-1][-1] == pytest.approx(float(expected[measure]), abs=1e-5)
    assert "12 fixed sinusoids" in text and (tmp_path / "sweep.png").exists()


def _apart(length):
    at = np.arange(length)
    return np.abs(at[:, None] - at)


def test_the_last_steps_of_stages(tmp_path):
    """What figure 5 marks: the length is tokens over examples, whatever the rates are."""
    lines = [
        {
            "step": step,
            "train/tokens_per_second": rate * length,
            "train/examples_per_second": rate,
        }
        for step, rate, length in (
            (5, 3.1, 16),
            (10, 2.7, 16),
            (15, 1.3, 64),
            (20, 1.1, 64),
        )
    ]
    lines.insert(1, {"step": 5, "held_out/masked_lm_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    assert vectors_part._last_steps(tmp_path) == {10: 16}


def test_signed_scales_have_their_neutral_colour_at_0():
    assert style.colour_map((-3.0, 3.0)) == "RdBu_r"
    assert style.colour_map((0.0, 1.0)) == "viridis"
    with pytest.raises(ValueError, match="symmetric"):
        style.colour_map((-0.25, 1.0))
