"""SIGTERM and Ctrl-C at any moment of a command, not only while it trains."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import commands
import orbax.checkpoint as ocp
import pytest
import tiny

from pe_jax.console import stopping
from pe_jax.errors import Interrupted
from pe_jax.tasks.pretraining import pretrain
from pe_jax.training import loop, workdir
from pe_jax.training.checkpointing import saved_steps

SHORT = {
    "stage1.steps": 4, "stage2.steps": 0, "checkpoint_every": 0, "eval_every": 0, **tiny.NO_DROPOUT
}  # fmt: skip


def command(folder):
    """The arguments of a run of four steps."""
    file = folder / "config.py"
    file.write_text(
        "import pathlib, tiny\ndef get_config():\n"
        f"    return tiny.config(pathlib.Path({str(folder)!r}), **{SHORT})\n"
    )
    return "train.py", f"--config={file}", f"--workdir={folder / 'run'}"


def told(patch, where, name, number):
    """A signal comes when `where.name` is called for the first time."""
    original, calls = getattr(where, name), itertools.count()

    def run(*args, **kwargs):
        if next(calls) == 0:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    patch.setattr(where, name, run)


def stop(folder, where, name, number, status):
    """Starts or resumes the run, which a signal ends; returns the steps that are saved."""
    before = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        told(patch, where, name, number)
        found, _, printed = commands.call(*command(folder))
    assert found == status, printed
    assert "Stopped" in printed and "The same command" in printed
    assert signal.getsignal(number) == before
    run = folder / "run"
    assert not (run / "report" / "report.md").exists()
    return saved_steps(run) if (run / "checkpoints").exists() else []


def ends(folder):
    """The same command ends the run, its report included."""
    status, _, printed = commands.call(*command(folder))
    assert status == 0, printed
    assert (folder / "run" / "report" / "report.md").exists()
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert "held_out/masked_lm_loss" in json.loads(lines[-1])
    return saved_steps(folder / "run")


def test_signals_all_the_way(tmp_path):
    """Each start is stopped later than the one before."""
    ctrl_c, term = (signal.SIGINT, 130), (signal.SIGTERM, 75)
    assert stop(tmp_path, pretrain, "load_text", *term) == []
    assert stop(tmp_path, workdir, "claim", *ctrl_c) == []
    assert stop(tmp_path, loop._Meter, "count", *term) == [1]
    assert stop(tmp_path, loop, "_check_held_out", *term) == [1, 4]
    assert ends(tmp_path) == [1, 4]


def test_a_signal_while_the_last_checkpoint_is_written(tmp_path):
    found = stop(tmp_path, ocp.CheckpointManager, "wait_until_finished", signal.SIGTERM, 75)
    assert found == [4] == ends(tmp_path)


def test_a_signal_while_it_imports():
    """The first seconds of a command are imports."""
    code = (
        "import os, runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'flax':\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['train.py', '--config=quickstart']\n"
        "runpy.run_path('train.py', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent)
    assert done.returncode == 75


def test_signals_wait():
    """Contexts within one another: what came is raised at the end of the outermost."""
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def wait():
        with stopping.deferred() as asked:
            with stopping.deferred():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append(asked())
            reached.append("behind")

    with pytest.raises(Interrupted) as stopped:
        wait()
    assert reached == [75, "behind"] and stopped.value.code == 75
    assert signal.getsignal(signal.SIGTERM) == before
    with stopping.deferred() as asked:
        assert asked() == 0  # What came before is over.


def test_an_exception_that_is_lost(monkeypatch):
    """Python drops what a destructor raises: the end of the command still knows of the signal."""

    class Destroyed:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    stopping.catch()
    Destroyed()
    assert lost == [Interrupted]
    with pytest.raises(Interrupted):
        stopping.end()
    stopping.end()
