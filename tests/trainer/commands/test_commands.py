"""train.py and eval.py as a user runs them, mistakes included."""

import importlib.util
import json
import types
from pathlib import Path

import pytest
from helpers import tiny_run
from helpers.commands import call, run

ROOT = Path(__file__).parents[3]


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


MEASURE = [
    "--config=configs/properties.py",
    "--config.size=tiny",
    "--config.parts=vectors",
]


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
    assert "Positions learned_relative; learned parameters: 2,064" in err
    assert (
        "MLM: masked language model; NSP: next sentence; acc: accuracy; losses in nats"
        in err
    )
    chance = (
        "No better than the baseline: masked-LM loss, next-sentence "
        "accuracy. Train for more steps."
    )
    assert chance in out
    run = folder / "learned_relative"
    assert f"python eval.py --config=configs/properties.py --workdir={run}" in out
    assert f"{run}/report/report.html, for a browser" in out
    assert f"tensorboard --logdir={run}" in out
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


def test_the_next_commands(monkeypatch):
    """As `train` was called; a fine-tuned run goes into a table."""
    from pe_jax.trainer.commands import train

    for script, task, evaluation in (
        (
            "train.py",
            "distillation",
            "python eval.py --config=configs/properties.py --workdir=W",
        ),
        ("pe-jax train", "pretraining", "pe-jax eval --config=properties --workdir=W"),
        ("pe-jax train", "cola", "pe-jax eval --config=tables --workdir=W"),
    ):
        config = types.SimpleNamespace(value=types.SimpleNamespace(task=task))
        monkeypatch.setattr(train, "_CONFIG", config)
        monkeypatch.setattr("sys.argv", [script])
        lines = [line for _, line in train._next_commands("W")]
        assert lines == [evaluation, "tensorboard --logdir=W"]


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
    difference = (
        by_name["learned_relative"]["masked_lm_loss"]
        - by_name["none"]["masked_lm_loss"]
    )
    assert by_name["learned_relative"]["loss_difference"] == pytest.approx(
        difference, abs=1e-6
    )
    assert 0 < by_name["learned_relative"]["loss_difference_standard_error"] < 0.5
    assert "| learned_relative" in out
    # The scores by example add up to the report's score of the whole.
    report = json.loads(
        (folder / "learned_relative" / "report" / "report.json").read_text()
    )
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
        programs.append(
            {path.name for path in (tmp_path / "cache" / "compiled").iterdir()}
        )
    assert any("train_step" in name for name in programs[0])
    assert programs[1] == programs[0]


def test_measuring_properties(trained, tmp_path):
    """A run and an untrained encoding in one report."""
    folder, _, _ = trained
    code, out, err = call(
        "eval.py", *MEASURE, f"--workdir={folder / 'learned_relative'}",
        "--encodings=sinusoidal_absolute", f"--out={tmp_path}",
    )  # fmt: skip
    assert code == 0, err
    assert "| learned_relative " in out and "| sinusoidal_absolute (untrained)" in out
    assert (tmp_path / "vectors.json").exists() and (
        tmp_path / "figure2_vectors.png"
    ).exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["train.py", *SMALL, "--config.model.postion=none"],
            "Did you mean config.model.position",
        ),
        (
            ["train.py", *SMALL, "--config.model.position=learned"],
            "Did you mean learned_absolute or learned_2d or learned_relative or ",
        ),
        (
            ["train.py", *SMALL, "--config.stage1.steps=many"],
            "--config.stage1.steps must be an integer from 0 to 2,147,483,647, got 'many'",
        ),
        (["train.py", *SMALL, "--wokdir=x"], "Did you mean: workdir"),
        (["train.py", *SMALL, "extra"], "arguments not understood: extra"),
        (["train.py", "--config=configs/nothing.py"], "configs/nothing.py"),
        (
            ["train.py", "--config=configs/glue.py"],
            "Fine-tuning starts from a pretrained model: ",
        ),
        (["eval.py"], "WORKDIR/config.json is missing"),
        (
            ["eval.py", "--config=configs/quickstart.py"],
            "sweep, tables, got 'pretr",
        ),
        (
            ["eval.py", "--runs=WORKDIR/*"],
            "Give --workdir=RUN to report on it, or --runs",
        ),
        (["eval.py", *MEASURE, "--runs=WORKDIR/*"], "No runs match WORKDIR/*"),
        (["eval.py", *MEASURE, "--encodings=rope"], "WORKDIR/config.json is missing"),
        # Told before the run is looked for, or any other encoding is measured.
        (["eval.py", *MEASURE, "--encodings=rope,learnt"], "'learnt' is unknown"),
    ],
    ids=[
        "key",
        "encoding",
        "value",
        "flag",
        "argument",
        "config",
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


@pytest.mark.skipif(
    COMPILER, reason="the TPU's compiler (libtpu, the extra tpu) is installed"
)
def test_compiling_without_the_compiler():
    code, _, err = call("benchmarks/compile_for.py", *SMALL, "--topology=v5e:2x4")
    assert code != 0 and "Traceback" not in err
    assert "needs its compiler: pip install '.[tpu]'" in err


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    not COMPILER, reason="the TPU's compiler (libtpu, the extra tpu) is not installed"
)
def test_compiling_for_a_tpu(tmp_path):
    """The first stage fits, the second does not; no text is read."""
    numbers = tmp_path / "numbers.json"
    code, out, err = run(
        "benchmarks/compile_for.py", "--config=configs/pretrain_books.py", "--topology=v5e:2x4",
        "--config.model.dtype=bfloat16", "--config.stage2.batch_size=131072",
        f"--out={numbers}", seconds=1200,
    )  # fmt: skip
    assert code == 0, err
    assert (
        "# 4 layers of 256, learned_absolute, bfloat16 on 8 TPU v5 lite (v5e:2x4)"
        in out
    )
    assert "## Length 16: 128 rows, 16 a chip\n\nFits: 0." in out
    assert (
        "**Does not fit** in 15.75 GiB a chip. The compiler: Ran out of memory" in out
    )
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
    reduced = sum(
        one["bytes"] for one in found["collectives"] if one["name"] == "all-reduce"
    )
    assert 0.5 < reduced / found["memory"]["parameters"] < 2
