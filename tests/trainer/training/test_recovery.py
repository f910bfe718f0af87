"""Runs that are killed or stopped; damaged checkpoints, a full disk, a diverging loss."""

import contextlib
import errno
import fcntl
import gc
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import unittest.mock
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from etils.epath import testing
from helpers import tiny_run
from helpers.full_disk import files_of_at_most

from pe_jax.common.errors import Interrupted
from pe_jax.common.files import to_path, write_text
from pe_jax.common.schema import changed
from pe_jax.trainer import data
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.disk_cache import exclusive, make_once
from pe_jax.trainer.figures import style
from pe_jax.trainer.tasks import pretraining, text_training, train
from pe_jax.trainer.training import checkpointing, pytrees, sharding, workdir
from pe_jax.trainer.training.checkpointing import (
    newest_params,
    restore_newest,
    saved_steps,
)
from pe_jax.trainer.training.metrics import MetricsWriter, read_metrics
from pe_jax.trainer.training.pytrees import checksum
from pe_jax.trainer.training.step import TrainState

# A test fails by what its threads and tasks raise where nobody catches it.
# From Python 3.13 on, asyncio reports that Orbax's threads end after their loop; Orbax's reads of
# the other arrays, which the first damaged one cancels, may raise when they are collected.
_UNRAISABLE = "pytest.PytestUnraisableExceptionWarning"
LEFT_BEHIND = pytest.mark.filterwarnings(
    f"error::{_UNRAISABLE}",
    rf"ignore:[\s\S]*Event loop is closed:{_UNRAISABLE}",
    rf"ignore:Exception ignored in. <coroutine object _read_array:{_UNRAISABLE}",
)


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Exempt what earlier modules left from the collections below: each would take seconds."""
    gc.collect()
    gc.freeze()


def same(one, other):
    """Whether two runs end at one step with the same parameters, bit for bit."""
    (step, params), (other_step, others) = newest_params(one), newest_params(other)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)
    return step == other_step and all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twelve uninterrupted steps, every fourth saved; with dropout."""
    folder = tmp_path_factory.mktemp("straight")
    changes = {
        "model.hidden_size": 64,
        "model.intermediate_size": 128,  # Most of the bytes are weights.
        "model.attention_dropout_rate": 0.0,  # Dropout of the hidden states remains.
        "stage2.steps": 0,
        "checkpoint_every": 4,
    }
    config = tiny_run.config(folder, **changes)
    pretraining.run(config, folder / "run")
    return config, folder / "run"


# --- killed and stopped ---------------------------------------------------------------------------

LONG = {
    "stage1.steps": 120, "stage2.steps": 0, "checkpoint_every": 10, "keep_checkpoints": 3,
    **tiny_run.NO_DROPOUT,
}  # fmt: skip


KILLED = [(signal.SIGKILL, -signal.SIGKILL)]
STOPPED = [*KILLED, (signal.SIGTERM, 75)]


@pytest.mark.parametrize(
    "signals",
    [KILLED, pytest.param(STOPPED, marks=pytest.mark.slow)],
    ids=["killed", "stopped"],
)
def test_killed_and_stopped(tmp_path, signals):
    """Killed at a random moment, also while saving; then stopped by a scheduler's signal."""
    straight = tiny_run.config(
        tmp_path, **{**LONG, "checkpoint_every": 0}
    )  # Saved at its end.
    pretraining.run(straight, tmp_path / "straight")
    rng = random.Random(time.time_ns())
    for how, status in signals:
        run = tiny_run.command(tmp_path, tmp_path / "killed", LONG)
        printed = next(line for line in run.stderr if line.startswith("step"))
        assert "120/120" not in printed, "The run was over before it could be killed."
        time.sleep(rng.uniform(0, 0.4))
        run.send_signal(how)
        rest = run.communicate(timeout=120)[1]
        assert run.returncode == status
        saved = re.search(
            r"Stopped and saved at step \d+\. The same command resumes it", rest
        )
        assert bool(saved) == (how == signal.SIGTERM)
    pretraining.run(tiny_run.config(tmp_path, **LONG), tmp_path / "killed")
    assert same(tmp_path / "killed", tmp_path / "straight")
    lines = [
        (tmp_path / r / "metrics.jsonl").read_text() for r in ("killed", "straight")
    ]
    losses = [
        [json.loads(li).get("held_out/masked_lm_loss") for li in t.split("\n")[:-1]]
        for t in lines
    ]
    assert losses[0][-1] == losses[1][-1] is not None
    left = {path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()}
    assert left == {"100", "110", "120"}  # Nothing half-written remains.


@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGTERM, 75, marks=pytest.mark.slow), (signal.SIGINT, 130)],
)
def test_told_to_stop(straight, tmp_path, number, status):
    """The signal arrives during a step; afterwards the previous handlers are restored."""
    config, done = straight
    before = signal.getsignal(number)
    step = train.Program.train_step
    steps = itertools.count(1)

    def telling(self, stage):
        compiled = step(self, stage)

        def run(state, batch):
            if next(steps) == 6:
                os.kill(os.getpid(), number)
            return compiled(state, batch)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Program, "train_step", telling)
        with pytest.raises(Interrupted, match="Stopped and saved at step 6") as stopped:
            pretraining.run(config, tmp_path / "run")
    assert stopped.value.code == status
    assert saved_steps(tmp_path / "run") == [4, 6]
    assert signal.getsignal(number) == before
    pretraining.run(config, tmp_path / "run")
    assert same(tmp_path / "run", done)
    # A line of the log covers the same steps, also where the run was stopped between two lines.
    left, right = (
        [*map(_numbers, read_metrics(run))] for run in (tmp_path / "run", done)
    )
    assert left == right and [line["step"] for line in left][:2] == [4, 8]


def _numbers(line):
    """A line of the log without what depends on the time that steps take."""
    return {
        k: v for k, v in line.items() if not k.endswith(("_per_second", "data_wait"))
    }


@pytest.mark.slow
def test_a_profile_of_some_steps(straight, tmp_path, capsys):
    """The trace changes nothing of the run, which resumes with the same command afterwards."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / "12")
    with pytest.raises(
        ValueError, match=r"--profile=13-14 is out of range: the run has 12 steps"
    ):
        pretraining.run(config, folder, range(13, 15))
    pretraining.run(config, folder, range(10, 12))
    assert list((folder / "profile").rglob("*.xplane.pb"))
    assert (
        f"Profile of steps up to 11 in {folder / 'profile'}" in capsys.readouterr().err
    )
    assert same(folder, done)
    pretraining.run(config, folder, range(10, 12))
    assert (
        "--profile=10-11: 12 steps are done, so none is traced"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.slow
def test_a_run_resumes_with_other_workers(straight, tmp_path, monkeypatch, cores):
    """As many as the config says, or as a smaller machine has cores."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / "12")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.
    pretraining.run(changed(config, {"data.workers": 2}), folder)
    assert same(folder, done)


def test_a_run_resumes_with_more_steps_and_moved_text(straight, tmp_path, capsys):
    """What changed is said in a line; a stage that is over keeps its steps."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    moved = shutil.copy(config.data.source, tmp_path / "moved.jsonl")
    more = {"stage1.steps": 14, "data.source": str(moved), "keep_best": 1}
    pretraining.run(changed(config, more), folder)
    printed = capsys.readouterr().err
    assert (
        f"Changed   data.source: {config.data.source!r} there, {str(moved)!r} now"
        in printed
    )
    assert "Changed   stage1.steps: 12 there, 14 now" in printed
    assert "The learning rate follows the schedule of 14 steps from now on." in printed
    assert saved_steps(folder) == [4, 8, 12, 14]
    with pytest.raises(
        ValueError, match=r"config: its stages now end after steps \[12\], but those of"
    ):
        pretraining.run(changed(config, {**more, "stage1.steps": 12}), folder)
    train._check_steps([14, 4], [16, 6], 14, folder)  # The second stage has not begun.
    with pytest.raises(
        ValueError,
        match=r"after steps \[16, 20\], but those .* \[12, 20\], and 15 steps are",
    ):
        train._check_steps([12, 8], [16, 4], 15, folder)


def test_a_text_that_was_replaced(straight, tmp_path):
    """It is noticed by its digest, under the same name and under another."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    other = str(tiny_run.write_books(tmp_path, seed=1))
    with pytest.raises(
        ValueError, match=r"config.data.source is not what the run in .* digest was"
    ):
        pretraining.run(changed(config, {"data.source": other}), folder)
    with pytest.raises(
        ValueError, match=r"holds a run .*\n  data.validation: '' there"
    ):
        pretraining.run(changed(config, {"data.validation": other}), folder)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    with pytest.raises(
        ValueError, match=r"config.data.vocab=.* is not the tokenizer of the run in"
    ):
        train._check_vocabulary({"data.vocab": ("old.txt", str(vocab))}, "{}", folder)


@pytest.mark.slow
def test_the_start_of_a_run_may_move(straight, tmp_path, capsys):
    """A run that has begun needs it no more; another model is refused."""
    config, done = straight
    first, moved = shutil.copytree(done, tmp_path / "first"), tmp_path / "moved"
    folder, config = tmp_path / "run", changed(config, {"init": str(first)})
    pretraining.run(config, folder)
    shutil.copytree(folder, tmp_path / "whole")
    shutil.rmtree(folder / "checkpoints" / "12")
    first.rename(moved)
    pretraining.run(config, folder)
    assert f"config.init={first} cannot be read" in capsys.readouterr().err
    assert same(folder, tmp_path / "whole")
    pretraining.run(changed(config, {"init": str(moved)}), folder)
    assert f"init: {str(first)!r} there, {str(moved)!r} now" in capsys.readouterr().err
    shutil.rmtree(moved / "checkpoints" / "12")
    shutil.copytree(moved, first)
    with pytest.raises(
        ValueError, match=r"config.init=.*first is not the model that the run in"
    ):
        pretraining.run(config, folder)


def test_the_best_checkpoint_is_kept(tmp_path):
    """By the loss that was saved with it, also after a restart; the newest stay as they would."""

    def save(steps, losses):
        with contextlib.closing(
            checkpointing.Checkpoints(tmp_path, keep=1, keep_best=1)
        ) as saver:
            for step, loss in zip(steps, losses, strict=True):
                params = {"a": jnp.full(2, step, jnp.float32)}
                saver.save(
                    TrainState(jnp.int32(step), params, (), jax.random.key(0)), {}, loss
                )
        return saved_steps(tmp_path)

    assert save([1, 2, 3], [2.0, 1.0, 3.0]) == [2, 3]
    assert save([4, 5], [None, 1.5]) == [2, 5]
    assert save([6], [0.5]) == [6]


def test_two_runs_in_one_folder(straight, tmp_path):
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    with (
        workdir.lock_workdir(folder),
        pytest.raises(
            ValueError,
            match=r"Another run is writing in .*\(fuser .*lock names its process\)",
        ),
    ):
        pretraining.run(config, folder)
    pretraining.run(config, folder)


@pytest.mark.parametrize("name", ["[a]", "back\\slash", "sta*r", "which?"])
def test_a_folder_whose_checkpoints_could_not_be_read(straight, tmp_path, name):
    with pytest.raises(
        ValueError, match=r"--workdir is .* Orbax cannot read checkpoints"
    ):
        pretraining.run(straight[0], tmp_path / name / "run")
    assert not (tmp_path / name).exists()


def test_the_first_checkpoint_is_read_back(straight, tmp_path, monkeypatch, capsys):
    """The run ends at once, not after training for days."""
    config, done = straight
    with monkeypatch.context() as patch:
        patch.setattr(workdir, "_WILDCARDS", frozenset())
        with pytest.raises(
            OSError, match="checkpoint of step 4 was written to .*cannot be read"
        ):
            pretraining.run(config, tmp_path / "[a]")
    pretraining.run(config, tmp_path / "run")
    assert capsys.readouterr().err.count("Saved step 4, and read it back.") == 1
    assert same(tmp_path / "run", done)


def test_a_lock_that_is_a_link(tmp_path):
    """In a folder that others can write: nothing is written to its target."""
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("lock", ".cached.lock", ".config.json.partial"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic links: .*lock"):
        workdir.lock_workdir(tmp_path).__enter__()
    with pytest.raises(OSError, match=r"symbolic links: .*\.cached\.lock"):
        exclusive(tmp_path / "cached").__enter__()
    write_text(tmp_path / "config.json", "{}")
    assert (
        target.read_text() == "precious"
        and (tmp_path / "config.json").read_text() == "{}"
    )


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """A run goes on unchecked; a cache would be written by two processes at once."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with workdir.lock_workdir(tmp_path / "run") as check_folder:
        check_folder()
    with pytest.raises(
        OSError, match="no locks.*Set PE_JAX_CACHE to use another folder"
    ):
        make_once(tmp_path / "cached", lambda folder: pytest.fail("made"))


def remove_lock(folder):
    (folder / "lock").unlink()


def remove_folder(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()


@pytest.mark.parametrize("remove", [remove_lock, remove_folder])
def test_a_removed_lock(tmp_path, remove):
    """The run notices before it writes again."""
    folder = tmp_path / "run"
    with workdir.lock_workdir(folder) as check_folder:
        check_folder()
        remove(folder)
        with pytest.raises(
            OSError, match=r"run.* was removed or replaced while this run was writ"
        ):
            check_folder()
    with workdir.lock_workdir(folder) as check_folder:
        check_folder()


def test_a_lock_removed_under_a_run(straight, tmp_path):
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    for step in (8, 12):
        shutil.rmtree(folder / "checkpoints" / str(step))
    lines = (folder / "metrics.jsonl").read_text().splitlines()[:1]
    with pytest.MonkeyPatch.context() as patch:
        write = workdir.write_config
        patch.setattr(
            workdir,
            "write_config",
            lambda *run: (write(*run), (folder / "lock").unlink()),
        )
        with pytest.raises(
            OSError, match="Nothing more is saved. The same command resumes"
        ):
            pretraining.run(config, folder)
    assert saved_steps(folder) == [4]
    assert (folder / "metrics.jsonl").read_text().splitlines() == lines


# --- damaged checkpoints --------------------------------------------------------------------------


def files(folder, pattern):
    return [path for path in sorted(folder.rglob(pattern)) if path.is_file()]


def largest(folder):
    return max(files(folder, "*"), key=lambda path: path.stat().st_size)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    """One bit in the middle of a file changes."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def other_metrics(checkpoint):
    path = checkpoint / "facts" / "data.json"
    facts = json.loads(path.read_text())
    facts["totals"]["masked_lm_loss"] = [1.0, 2.0]
    path.write_text(json.dumps(facts))


def empty(checkpoint):
    for path in files(checkpoint, "*"):
        os.truncate(path, 0)


DAMAGES = {
    "cut": lambda checkpoint: cut(largest(checkpoint)),
    "a bit": lambda checkpoint: flip(largest(checkpoint)),
    "gone": lambda checkpoint: largest(checkpoint).unlink(),
    "empty": empty,
    "no facts": lambda checkpoint: shutil.rmtree(checkpoint / "facts"),
    "facts cut": lambda checkpoint: cut(checkpoint / "facts" / "data.json"),
    "other metrics": other_metrics,
}


@pytest.fixture(scope="module")
def fresh(straight):
    """A state as the run's own, to restore to."""
    config, done = straight
    resolved = text_training.resolve(config)
    return pretraining.build(resolved, done / "tokenizer.json").program.init()


@LEFT_BEHIND
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint(straight, fresh, tmp_path, capsys, caplog, damage):
    """It is noticed, the one before is restored, and it is put aside as it is."""
    gc.collect()  # What tests before it left behind is logged when it is collected.
    caplog.clear()
    folder = shutil.copytree(straight[1], tmp_path / "run")
    damage(folder / "checkpoints" / "12")
    before = {
        path.name: path.read_bytes()
        for path in files(folder / "checkpoints" / "12", "*")
    }
    resolved = text_training.resolve(straight[0])
    tokenizer = (folder / "tokenizer.json").read_text()
    run = workdir.run_checksum(resolved, tokenizer)
    restored, _ = restore_newest(folder, fresh, run)
    assert saved_steps(folder) == [4, 8]
    assert restored.step == 8
    printed = capsys.readouterr().err
    assert "The checkpoint of step 12 cannot be read (" in printed
    assert "Using the earlier checkpoint of step 8." in printed
    (kept,) = (folder / "damaged").iterdir()
    assert {path.name: path.read_bytes() for path in files(kept, "*")} == before
    gc.collect()
    assert not [
        r for r in caplog.records if r.exc_info
    ]  # Orbax's tasks have nothing to add.


def test_a_run_resumes_before_a_damaged_checkpoint(straight, tmp_path, capsys):
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    flip(largest(folder / "checkpoints" / "12"))
    pretraining.run(config, folder)
    assert "Resuming from step 8." in capsys.readouterr().err
    assert same(folder, done)
    assert saved_steps(folder) == [4, 8, 12]


def test_readers_pass_over_a_damaged_checkpoint(straight, tmp_path, capsys):
    folder = shutil.copytree(straight[1], tmp_path / "run")
    empty(folder / "checkpoints" / "12")
    assert newest_params(folder)[0] == 8
    assert "The checkpoint of step 12 cannot be read" in capsys.readouterr().err
    assert saved_steps(folder) == [4, 8, 12]  # Reading changes nothing.


def test_no_checkpoint_can_be_read(straight, tmp_path):
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    for checkpoint in (folder / "checkpoints").iterdir():
        empty(checkpoint)
    with pytest.raises(
        ValueError, match=r"None of the checkpoints in .*\n  step 12: .*\n  step 8"
    ):
        pretraining.run(config, folder)
    assert saved_steps(folder) == [4, 8, 12]
    with pytest.raises(ValueError, match="None of the checkpoints"):
        newest_params(folder)


@pytest.mark.parametrize("small", [0, 2**16])  # By a program, and without one.
def test_checksums(small, monkeypatch):
    monkeypatch.setattr(pytrees, "_SMALL", small)
    rng = np.random.default_rng(0)
    tree = {
        "a": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32),
        "b": jax.random.key(3),
    }
    first = checksum(tree)
    assert first == checksum(tree) and len(first) == 16
    a = np.asarray(tree["a"]).copy()
    a[1, 2] = np.nextafter(a[1, 2], np.float32(9))
    assert checksum({**tree, "a": jnp.asarray(a)}) != first
    assert checksum({**tree, "a": tree["a"][::-1]}) != first
    assert checksum({**tree, "b": jax.random.key(4)}) != first
    # Changes whose weighted sums are 0 modulo 2³²: signs, and high bits.
    for bits in (0x80000000, 0xC0000000):
        words = np.asarray(tree["a"]).view(np.uint32).copy()
        words[0, :2] ^= np.uint32(bits)
        assert checksum({**tree, "a": jnp.asarray(words.view(np.float32))}) != first
    assert checksum([-tree["a"], -tree["a"]]) != checksum([tree["a"], tree["a"]])
    zeros = {"a": jnp.zeros(3), "b": jnp.ones(3)}
    assert checksum(zeros) != checksum({"a": jnp.ones(3), "b": jnp.zeros(3)})
    with pytest.raises(TypeError, match="bfloat16"):
        checksum(jnp.zeros(3, jnp.bfloat16))


def test_small_leaves_have_the_checksums_of_programs(monkeypatch):
    """On any number of devices, floats and integers."""
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    x[2, 1] = np.inf
    mesh = sharding.data_mesh()
    tree = {
        "a": jax.device_put(x, sharding.by_rows(mesh)),
        "b": jax.device_put(x[:, 0], sharding.replicated(mesh)),
        "c": jnp.arange(-3, 4),
        "d": jnp.float32(2.5),
    }
    small = pytrees.examine_leaves(tree)
    monkeypatch.setattr(pytrees, "_SMALL", 0)
    assert small == pytrees.examine_leaves(tree) and small[1] == ["a"]


def nuls(path):
    """What some file systems leave after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


def a_line_of_nuls(path):
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "\0" * (len(second) - 1) + "\n", *rest]))


def another_word(path):
    path.write_text(path.read_text().replace('"whale"', '"trout"'))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            "config.json",
            nuls,
            r"config\.json is damaged \(.*\)\. Delete it: the command that",
        ),
        ("tokenizer.json", nuls, r"cannot read .*tokenizer\.json"),
        (
            "tokenizer.json",
            another_word,
            r"(?s)None of the chec.*with another config or tokenizer",
        ),
        (
            "metrics.jsonl",
            a_line_of_nuls,
            r"Line 2 of .*metrics\.jsonl is damaged: .*Delete the line",
        ),
    ],
)
def test_a_damaged_file_of_a_run(straight, tmp_path, name, damage, message):
    """The file is named, with the way out; nothing is changed."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    damage(folder / name)
    before = (folder / name).read_bytes()
    with pytest.raises(ValueError, match=message):
        pretraining.run(config, folder)
    assert (folder / name).read_bytes() == before
    assert saved_steps(folder) == [4, 8, 12]


def test_a_run_that_is_older_than_a_key(straight, tmp_path):
    """The key has its default; with another value it is another run."""
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    values = workdir.saved_values(folder)
    del values["parallel"], values["stage1"]["accumulation"], values["optimizer"]["b2"]
    (folder / "config.json").write_text(json.dumps(values))
    shutil.rmtree(folder / "checkpoints" / "12")
    with pytest.raises(
        ValueError, match="another config:\n  optimizer.b2: None there, 0.5 now"
    ):
        pretraining.run(changed(config, {"optimizer.b2": 0.5}), folder)
    pretraining.run(config, folder)
    assert same(folder, done)
    read = [workdir.load_config(each, PretrainingConfig) for each in (folder, done)]
    assert read[0] == read[1]
    assert read[0].as_dict() == read[1].as_dict()


def test_the_checksum_of_a_run():
    """Steps, layouts and where inputs are leave it, from defaults on; other values do not."""

    def checksum(changes):
        config = changed(PretrainingConfig(), changes)
        resolved = workdir.ResolvedConfig(config, config.model.resolve())
        return workdir.run_checksum(resolved, "{}")

    same_run = {"parallel": "fsdp"}, {"data.source": "a.txt"}, {"stage1.steps": 7}
    other_run = (
        {"parallel": "pmap"},
        {"data.validation": "a.txt"},
        {"init": "W"},
        {"seed": 9},
    )
    assert {checksum(changes) for changes in same_run} == {checksum({})}
    assert len({checksum(changes) for changes in ({}, *other_run)}) == 5


def test_a_checkpoint_of_another_run(straight, tmp_path, capsys):
    config, done = straight
    other = changed(config, {"seed": 9})
    folder = tmp_path / "run"
    shutil.copytree(done / "checkpoints", folder / "checkpoints")
    with pytest.raises(ValueError, match="of a run with another config or tokenizer"):
        pretraining.run(other, folder)
    assert saved_steps(folder) == [4, 8, 12]


# --- a full disk, a diverging loss ----------------------------------------------------------------


@LEFT_BEHIND
def test_a_full_disk(straight, tmp_path, caplog):
    config, done = straight
    folder = shutil.copytree(done, tmp_path / "run")
    for step in (8, 12):
        shutil.rmtree(folder / "checkpoints" / str(step))
    with (
        files_of_at_most(10_000),
        pytest.raises(
            OSError, match=r"not written to .*The newest complete one is of step 4"
        ),
    ):
        pretraining.run(config, folder)
    gc.collect()
    assert (
        not caplog.records
    )  # The error alone, without what Orbax's threads have to say.
    assert saved_steps(folder) == [4]
    pretraining.run(config, folder)
    assert same(folder, done)


@pytest.mark.parametrize(
    ("file", "scalars"),
    [
        ("tensorboard/events", {"a": 1.0}),
        ("metrics.jsonl", dict.fromkeys("abcd", 1e-99 / 3)),
    ],
    ids=["events", "lines"],
)
def test_a_disk_that_is_full_between_checkpoints(tmp_path, file, scalars):
    """The write fails where the loop sees it, in the file that is longer."""
    writer = MetricsWriter(tmp_path, 0)

    def write():
        for step in range(1, 1_000):
            writer.write(step, scalars)

    with files_of_at_most(20_000):
        with pytest.raises(
            OSError, match=rf"{file}\S* was not written: File too large\. Free"
        ):
            write()
        with contextlib.suppress(OSError):
            writer.close()


def test_events_do_not_wait_for_the_clock(tmp_path, monkeypatch):
    """A clock that is set back stops nothing."""
    with contextlib.closing(MetricsWriter(tmp_path, 0)) as writer:
        monkeypatch.setattr(time, "time", lambda: 1.0)
        for step in range(1, 100):
            writer.write(step, {"loss": 1.0})
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert ".tfevents." in file.name and len(read_metrics(tmp_path)) == 99
    events = file.read_bytes()
    assert events.count(b"loss") == 99 and b"brain.Event:2" in events


def test_a_full_disk_before_the_first_checkpoint(straight, tmp_path):
    with (
        files_of_at_most(10_000),
        pytest.raises(
            OSError, match=r"no complete one yet; the same command starts again\.$"
        ),
    ):
        pretraining.run(straight[0], tmp_path / "run")


def test_a_loss_that_explodes(straight, tmp_path):
    config, _ = straight
    rate = {"optimizer.learning_rate": 1e9, "optimizer.warmup": 0.5}
    config = changed(config, {**rate, "checkpoint_every": 1, **tiny_run.NO_DROPOUT})
    folder = tmp_path / "run"
    with pytest.raises(
        FloatingPointError, match=r"Step (\d+) gave .*loss (nan|inf)"
    ) as failed:
        pretraining.run(config, folder)
    step = int(re.search(r"Step (\d+)", str(failed.value))[1])
    assert saved_steps(folder)[-1] == step - 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(newest_params(folder)[1]))
    run = pretraining.build(text_training.resolve(config), folder / "tokenizer.json")
    batches = iter(run.stages[0].batches(0))
    for _ in range(step):
        batch = next(batches)
    with np.load(folder / "failed" / f"step_{step}_host_0.npz") as kept:
        assert all(np.array_equal(kept[name], batch[name]) for name in batch)


def test_weights_and_biases(tmp_path, monkeypatch):
    """Only with a project: the same scalars, and the same run after a restart."""
    fake = unittest.mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "config.json").write_text('{"seed": 3}')
    with contextlib.closing(MetricsWriter(tmp_path, 0)) as writer:
        writer.write(1, {"loss": 2.0})
    assert not fake.mock_calls
    monkeypatch.setenv("WANDB_PROJECT", "positions")
    for _ in range(2):
        with contextlib.closing(MetricsWriter(tmp_path, 0)) as writer:
            writer.write(1, {"loss": 2.0})
    first, second = (call.kwargs for call in fake.init.call_args_list)
    assert (
        first == second
        and first["config"] == {"seed": 3}
        and first["resume"] == "allow"
    )
    fake.init().log.assert_called_with({"loss": 2.0}, step=1)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ValueError, match="WANDB_PROJECT is set, but wandb is not installed"
    ):
        MetricsWriter(tmp_path, 0)


def test_a_line_of_metrics_is_appended(tmp_path, monkeypatch):
    """Its cost does not grow with the file; half a line, left by a kill, is dropped."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), fsync(file))
    )
    with contextlib.closing(MetricsWriter(tmp_path, 0)) as writer:
        synced.clear()
        writer.write(1, {"loss": 1.0})
        inode = (tmp_path / "metrics.jsonl").stat().st_ino
        writer.write(2, {"loss": 0.5})
        assert (tmp_path / "metrics.jsonl").stat().st_ino == inode
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
        assert not synced  # A disk may take milliseconds.
        writer.sync()
        assert inode in synced
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    with contextlib.closing(MetricsWriter(tmp_path, 2)) as writer:
        writer.write(3, {"loss": 0.25})
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 0.5, 0.25]


# --- object stores --------------------------------------------------------------------------------


def test_a_run_folder_in_a_bucket(tmp_path):
    """Config, metrics, tokenizer and figures; checkpoints are left to Orbax."""
    inside = lambda path: tmp_path / str(path).removeprefix("gs://")
    one = lambda original, path, *args, **kwargs: original(
        inside(path), *args, **kwargs
    )
    two = lambda original, path, to: original(inside(path), inside(to))
    functions = dict.fromkeys(
        ["exists", "isdir", "makedirs", "mkdir", "open", "listdir"], one
    )
    with testing.mock_epath(**functions, replace=two, rename=two):
        folder = to_path("gs://bucket/run")
        config = tiny_run.config(tmp_path)
        with workdir.lock_workdir(folder):
            workdir.write_config(folder, text_training.resolve(config))
        saved = workdir.load_config(folder, PretrainingConfig)
        assert saved.config.stage1.steps == 12
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tensorboardX.RecordWriter", unittest.mock.MagicMock())
            for start in (0, 1):  # The second start drops what came after its step.
                with contextlib.closing(MetricsWriter(folder, start)) as writer:
                    uploads = os.stat(inside(folder / "metrics.jsonl")).st_ino
                    for step in (1, 2):
                        writer.write(start + step, {"loss": 1.0})
                    assert os.stat(inside(folder / "metrics.jsonl")).st_ino == uploads
        tokenizer = data.train_tokenizer(["one two"], 20)
        write_text(folder / "tokenizer.json", tokenizer.to_str())
        assert (
            data.load_tokenizer(folder / "tokenizer.json").to_str()
            == tokenizer.to_str()
        )
        style.save(style.new(1, 1), folder / "report" / "figure.png", "svg")
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    names = ("config.json", "metrics.jsonl", "tokenizer.json", "report/figure.png")
    assert found >= {f"bucket/run/{name}" for name in (*names, "report/figure.svg")}
    assert not any("partial" in name for name in found)
    lines = (tmp_path / "bucket" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_paths():
    assert to_path("~/x") == Path.home() / "x"
    assert str(to_path("gs://bucket/x") / "y") == "gs://bucket/x/y"
