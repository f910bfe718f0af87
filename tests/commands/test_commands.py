"""train.py and eval.py as a user runs them, mistakes included."""

import importlib.util
import json
import re
import types
from pathlib import Path

import jax
import pytest
from helpers import tiny_run
from helpers.commands import call, run

from pe_jax.console import markdown, terminal
from pe_jax.console.compile_cache import cache_compiled_programs

ROOT = Path(__file__).parents[2]


COMPILER = importlib.util.find_spec("libtpu") is not None
SMALL = [
    "--config=configs/quickstart.py",
    "--config.model.num_layers=1",
    "--config.model.hidden_size=32",
    "--config.model.num_heads=2",
    "--config.model.intermediate_size=32",
    "--config.model.dropout_rate=0.0",
    "--config.model.attention_dropout_rate=0.0",
    "--config.stage1.batch_size=8",
    "--config.stage1.steps=6",
    "--config.eval_examples=16",
    "--config.log_every=3",
    "--config.data.vocab_size=300",
]


MEASURE = ["--config=configs/properties.py", "--config.size=tiny", "--config.parts=vectors"]


def small(folder, position, workdir):
    """train.py with the text in `folder`, for a run in `workdir`."""
    return [
        "train.py", *SMALL, f"--workdir={workdir}", f"--config.model.position={position}",
        f"--config.data.source={folder / 'books.jsonl'}",
        f"--config.data.cache_dir={folder / 'cache'}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of two runs, and what the second printed."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_run.write_books(folder)
    for position in ("none", "learned_relative"):
        code, out, err = call(*small(folder, position, folder / position))
        assert code == 0, err
    return folder, out, err


def test_train_then_eval_say_the_same(trained):
    folder, out, err = trained
    assert "# What the run learned: learned_relative, 6 steps" in out
    assert "| masked-LM accuracy" in out
    model = "Model     1 layer of 32, float32: "
    for said in ("Run       ", "Devices   4 cpu", model, "compiled in "):
        assert said in err
    assert "Start     from scratch: random parameters, as config.init is empty\n" in err
    assert "Positions learned_relative: 2,064 of them" in err
    assert "Batch     length 128, 8 rows; 6 steps, " in err
    assert "![" not in out
    lines = (err + out).replace(str(folder.parent), "W").splitlines()
    assert not [line for line in lines if len(line) > 100]
    assert "compiling, then steps 1 to 6" in err
    assert "step 3/6" in err  # Plain lines where there is no terminal.
    code, again, err = call("eval.py", f"--workdir={folder / 'learned_relative'}")
    assert code == 0, err
    table = lambda text: [line for line in text.splitlines() if line.startswith("|")]
    assert table(again) == table(out)
    assert (folder / "learned_relative" / "report" / "figure2_vectors.png").exists()


def test_tables_that_are_too_wide_are_told_in_parts():
    """Each with the columns that tell rows apart; every number once, in order."""
    header = ["position", "when", *(f"monotonicity {n}" for n in range(9))]
    rows = [["a|b", when, *(f"{n}.{when}" for n in range(8)), "–"] for when in ("early", "late")]
    page = "\n".join(["word " * 30, "", *markdown.table(header, rows), "", "![figure](a.png)", ""])
    told = markdown.for_terminal(page)
    assert max(map(len, told.splitlines())) <= 100 and told.split()[:30] == ["word"] * 30
    _, *parts = told.strip("\n").split("\n\n")
    cells = [[re.split(r" *(?<!\\)\| *", line)[1:-1] for line in one.split("\n")] for one in parts]
    assert [part[0][:2] for part in cells] == [header[:2]] * 3
    for i, row in enumerate([header, *rows]):
        line = i + (i > 0)  # After the rule below the header.
        assert [cell for part in cells for cell in part[line][2:]] == row[2:]
    assert [part[3][:2] for part in cells] == [[r"a\|b", "late"]] * 3
    narrow = "\n".join(markdown.table(header[:3], [row[:3] for row in rows])) + "\n"
    assert markdown.for_terminal(narrow) == narrow


def test_lines_of_progress_keep_their_distance(monkeypatch, capsys):
    clock = iter(range(0, 100, 4))  # Seconds: at the start, then at every tenth of the total.
    monkeypatch.setattr(terminal, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    progress = terminal.Progress(10, unit="batch", lines=10.0)
    for _ in range(10):
        progress.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{n} of 10 batches, {4 * n:.1f} s" for n in (3, 6, 9)]


def test_lines_of_scalars_fit_a_terminal(capsys):
    scalars = {"masked_lm_accuracy": 0.123456, "masked_lm_loss": 4.56789, "mfu": 0.25}
    progress = terminal.Progress(100)
    progress.report(7, "training", scalars)
    progress.report(8, "training", {f"{name}_{i}": 1234.5 for i in range(4) for name in scalars})
    first, *more = capsys.readouterr().err.splitlines()
    assert first == "step   7/100  training  MLM acc 0.123  MLM loss 4.568  mfu 0.250"
    assert len(more) > 1 and all(len(line) <= 100 for line in more)


def test_comparing_runs(trained):
    folder, _, _ = trained
    code, out, err = call("eval.py", f"--runs={folder}/*", f"--out={folder / 'out'}")
    assert code == 0, err
    rows = json.loads((folder / "out" / "comparison.json").read_text())
    assert {row["position"]: row["parameters"] for row in rows} == {
        "none": 0,
        "learned_relative": 129 * 16,
    }
    by_name = {row["position"]: row for row in rows}
    difference = by_name["learned_relative"]["masked_lm_loss"] - by_name["none"]["masked_lm_loss"]
    assert by_name["learned_relative"]["loss_difference"] == pytest.approx(difference, abs=1e-6)
    assert 0 < by_name["learned_relative"]["loss_difference_standard_error"] < 0.5
    assert "| learned_relative" in out
    # The scores by example add up to the report's score of the whole.
    report = json.loads((folder / "learned_relative" / "report" / "report.json").read_text())
    for name in ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy"):
        assert by_name["learned_relative"][name] == pytest.approx(
            report["held_out"][name], rel=1e-4
        )


@pytest.mark.slow
def test_a_second_run_compiles_nothing(tmp_path):
    tiny_run.write_books(tmp_path)
    cache = {"PE_JAX_CACHE": str(tmp_path / "cache"), "JAX_COMPILATION_CACHE_DIR": None}
    programs = []
    for name in ("first", "second"):
        command = small(tmp_path, "learned_relative", tmp_path / name)
        code, _, err = run(*command, **cache)
        assert code == 0, err
        programs.append({path.name for path in (tmp_path / "cache" / "compiled").iterdir()})
    assert any("train_step" in name for name in programs[0])
    assert programs[1] == programs[0]


@pytest.fixture
def jax_settings():
    """Puts JAX's own cache settings back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield names
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("value", ["", "/somewhere"])
def test_the_environment_says_where_programs_are_kept(monkeypatch, tmp_path, jax_settings, value):
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", value)
    before = [getattr(jax.config, name) for name in jax_settings]
    cache_compiled_programs()
    assert [getattr(jax.config, name) for name in jax_settings] == before
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == f"verified://{tmp_path / 'compiled'}"


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, jax_settings, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    jax.config.update("jax_compilation_cache_dir", None)
    cache_compiled_programs()
    assert jax.config.jax_compilation_cache_dir is None
    assert "Compiled programs are not cached" in capsys.readouterr().err


def test_measuring_properties(trained, tmp_path):
    """A run and an untrained encoding in one report."""
    folder, _, _ = trained
    code, out, err = call(
        "eval.py", *MEASURE, f"--workdir={folder / 'learned_relative'}",
        "--encodings=sinusoidal_absolute", f"--out={tmp_path}",
    )  # fmt: skip
    assert code == 0, err
    assert "| learned_relative " in out and "| sinusoidal_absolute (untrained)" in out
    assert (tmp_path / "vectors.json").exists() and (tmp_path / "figure2_vectors.png").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train.py", *SMALL, "--config.model.postion=none"], "Did you mean config.model.position"),
        (["train.py", *SMALL, "--config.model.position=learned"], "Did you mean learned_"),
        (["train.py", *SMALL, "--config.stage1.steps=many"], "many"),
        (["train.py", *SMALL, "extra"], "arguments not understood: extra"),
        (["train.py", "--config=configs/nothing.py"], "configs/nothing.py"),
        (["train.py", *SMALL, "--compile_for=v6e"], "No TPU slice 'v6e'. Give a chip (v4, v5e, "),
        (
            ["train.py", "--config=configs/glue.py"],
            "Fine-tuning starts from a pretrained model: ",
        ),
        (["eval.py"], "WORKDIR/config.json is missing"),
        (
            ["eval.py", "--config=configs/quickstart.py"],
            "sweep, tables, got 'pretr",
        ),
        (["eval.py", "--runs=WORKDIR/*"], "Give --workdir=RUN to report on it, or --runs"),
        (["eval.py", *MEASURE, "--runs=WORKDIR/*"], "No runs match WORKDIR/*"),
        (["eval.py", *MEASURE, "--encodings=rope"], "WORKDIR/config.json is missing"),
        # Told before the run is looked for, or any other encoding is measured.
        (["eval.py", *MEASURE, "--encodings=rope,learnt"], "'learnt' is unknown"),
    ],
    ids=[
        "key",
        "encoding",
        "value",
        "argument",
        "config",
        "slice",
        "nothing to start from",
        "no run",
        "task",
        "both",
        "no runs",
        "no run to measure",
        "no encoding to measure",
    ],
)
def test_mistakes_are_one_message(tmp_path, args, message):
    args = [arg.replace("WORKDIR", str(tmp_path)) for arg in args]
    code, _, err = call(*args, f"--workdir={tmp_path}")
    assert code != 0
    assert message.replace("WORKDIR", str(tmp_path)) in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_no_place_for_the_run():
    code, _, err = call("train.py", *SMALL)
    assert code != 0 and "error: --workdir is required: the folder of the run." in err


def test_a_mistake_to_the_shell(tmp_path):
    """The commands above run within this process; this one is the shell's own."""
    code, out, err = run("eval.py", f"--workdir={tmp_path}")
    assert (code, out) == (1, "") and err.startswith(f"error: {tmp_path} holds no run")


@pytest.mark.skipif(COMPILER, reason="the TPU's compiler (libtpu, the extra tpu) is installed")
def test_compiling_without_the_compiler():
    code, _, err = call("train.py", *SMALL, "--compile_for=v5e:2x4")
    assert code != 0 and "Traceback" not in err
    assert "needs its compiler: pip install 'pe_jax[tpu]'" in err


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    not COMPILER, reason="the TPU's compiler (libtpu, the extra tpu) is not installed"
)
def test_compiling_for_a_tpu(tmp_path):
    """The first stage fits, the second does not; no text is read."""
    numbers = tmp_path / "numbers.json"
    code, out, err = run(
        "train.py", "--config=configs/pretrain_books.py", "--compile_for=v5e:2x4",
        "--config.model.dtype=bfloat16", "--config.stage2.batch_size=131072",
        f"--out={numbers}", seconds=1200,
    )  # fmt: skip
    assert code == 0, err
    assert "# 4 layers of 256, learned_absolute, bfloat16 on 8 TPU v5 lite (v5e:2x4)" in out
    assert "## Length 16: 128 rows, 16 a chip\n\nFits: 0." in out
    assert "**Does not fit** in 15.75 GiB a chip. The compiler: Ran out of memory" in out
    first, second = json.loads(numbers.read_text())
    assert not second["fits"] and "15.75G" in second["failure"]
    assert 0.001 < first["mfu_bound"] < 1
    # The compiler counts element-wise operations as well.
    assert 0.5 < first["model_flops"] / 8 / first["flops"] < 1


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    not COMPILER, reason="the TPU's compiler (libtpu, the extra tpu) is not installed"
)
def test_the_waterfall_of_a_step_for_a_tpu(tmp_path):
    """Numbers of a stage, as tpu_estimates.py writes them."""
    numbers = tmp_path / "numbers.jsonl"
    code, _, err = run(
        "benchmarks/tpu_estimates.py", f"--out={numbers}", "--encodings=learned_absolute",
        "--topologies=v5e:2x4", "--size=mini", "--lengths=128", "--rows=16", seconds=1200,
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(numbers.read_text())["found"]
    assert found["seconds"]["estimated"] > 0.5 * sum(found["seconds"].values())
    assert 0.001 < found["mfu"] < found["mfu_bound"] <= 1
    # All gradients are reduced, in either precision, and some twice: those of the tied embedding.
    reduced = sum(one["bytes"] for one in found["collectives"] if one["name"] == "all-reduce")
    assert 0.5 < reduced / found["memory"]["parameters"] < 2
