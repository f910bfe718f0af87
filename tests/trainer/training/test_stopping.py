"""SIGTERM and Ctrl-C at any moment of a command, not only while it trains."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from helpers import commands, tiny_run

from pe_jax.common.errors import Interrupted
from pe_jax.trainer.console import stopping
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.training import loop, workdir
from pe_jax.trainer.training.checkpointing import saved_steps

SHORT = {
    "stage1.steps": 4, "stage2.steps": 0, "checkpoint_every": 0, "eval_every": 0,
    **tiny_run.NO_DROPOUT, "model.position": "none",  # Without positions to report on.
}  # fmt: skip


def command(folder):
    """The arguments of a run of four steps."""
    file = folder / "config.py"
    file.write_text(
        "import pathlib\nfrom helpers import tiny_run\ndef get_config():\n"
        f"    return tiny_run.config_dict(pathlib.Path({str(folder)!r}), **{SHORT})\n"
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


def left(status):
    """This process does not end: it has other tests to run."""
    raise Interrupted(stopping._MESSAGE, status)


def stop(folder, where, name, number, status):
    """Starts or resumes the run, which a signal ends; returns the steps that are saved."""
    before = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        told(patch, where, name, number)
        patch.setattr(stopping, "leave", left)
        found, _, printed = commands.call(*command(folder))
    assert found == status, printed
    assert "Stopped" in printed and "The same command" in printed
    assert signal.getsignal(number) == before
    run = folder / "run"
    assert not (run / "report" / "report.md").exists()
    return saved_steps(run) if (run / "checkpoints").exists() else []


def ends(folder, *, is_resumed=True, is_finished=False):
    """The same command ends the run, its report included; another one says that it has ended."""
    status, _, printed = commands.call(*command(folder))
    assert status == 0, printed
    message = "The run has finished: all 4 steps are done, so nothing is trained. Its report is "
    assert (message in printed) == is_finished and ("Resuming" in printed) == is_resumed
    assert (folder / "run" / "report" / "report.md").exists()
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert "held_out/masked_lm_loss" in json.loads(lines[-1])
    return saved_steps(folder / "run")


def test_signals_all_the_way(tmp_path):
    """Each start is stopped later than the one before."""
    ctrl_c, term = (signal.SIGINT, 130), (signal.SIGTERM, 75)
    assert stop(tmp_path, text_training, "load_text", *term) == []
    assert stop(tmp_path, workdir, "write_config", *ctrl_c) == []
    assert stop(tmp_path, loop.Meter, "count", *term) == [1]
    assert stop(tmp_path, loop, "_check_held_out", *term) == [1, 4]
    assert ends(tmp_path, is_resumed=False, is_finished=True) == [1, 4]


def test_a_signal_while_the_last_checkpoint_is_written(tmp_path):
    found = stop(
        tmp_path, ocp.CheckpointManager, "wait_until_finished", signal.SIGTERM, 75
    )
    assert found == [4] == ends(tmp_path, is_resumed=False, is_finished=True)


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
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    assert done.returncode == 75


WORKERS = """
import multiprocessing
import grain
from absl import flags
from pe_jax.trainer.data.workers import in_workers

if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    batches = iter(in_workers(grain.MapDataset.range(9).repeat().to_iter_dataset(), 2))
    next(batches)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    while True:
        next(batches)
"""


def test_workers_end_with_a_run_that_is_killed(tmp_path):
    (tmp_path / "run.py").write_text(WORKERS)
    run = subprocess.Popen(
        [sys.executable, tmp_path / "run.py"],
        env={**os.environ, "PYTHONPATH": str(tiny_run.ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    started = [Path("/proc") / number for number in run.stdout.readline().split()]
    assert len(started) == min(2, len(os.sched_getaffinity(0))) and all(
        map(_runs, started)
    )
    run.kill()
    run.wait()
    until = time.monotonic() + 10
    while any(map(_runs, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, started))


def _runs(process):
    """Whether it runs; one that nobody has waited for is a zombie, Z."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# A command whose main thread is in a compiler, where Python runs no handlers.
COMPILING = """
import contextlib, hashlib, sys
from pe_jax.trainer.console import stopping

stopping.catch()
with stopping.deferred() if sys.argv[1] == "training" else contextlib.nullcontext() as requested:
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha512", b"", b"", int(sys.argv[2]))
    print("compiled", flush=True)
"""


def compiling(where, rounds=1_500_000):
    """Start a process that does not return to Python for about as many microseconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILING, where, str(rounds)],
        cwd=tiny_run.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "compiling\n"
    return process


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)]
)
def test_a_signal_is_answered_at_once(number, status):
    """While a program compiles. A signal that comes twice, as that of `timeout`, is one."""
    process = compiling("training")
    process.send_signal(number)
    process.send_signal(number)
    assert process.stderr.readline().startswith(
        "Stopping after the current step and a save."
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, "compiled\n", "")

    process = compiling("elsewhere")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert err == "Stopped. The same command starts again from what is saved.\n"


def test_a_second_signal_ends_a_command_at_once():
    process = compiling("training", rounds=30_000_000)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("Stopping")
    time.sleep(stopping._TWICE)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "Stopped. The same command starts again from what is saved.\n"


def test_signals_of_a_forked_process_are_its_own():
    """Ctrl-C goes to all processes of a terminal: what a worker gets is no second signal."""
    code = (
        "import os, signal, sys, time\nfrom pe_jax.trainer.console import stopping\n"
        "stopping.catch()\n"
        "with stopping.deferred():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.signal(signal.SIGINT, lambda *args: os._exit(7))\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "    time.sleep(0.5)\n"
        "    print('goes on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tiny_run.ROOT,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"goes on\n", b"")


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_command_ignores_a_terminal_that_is_closed(before):
    """nohup ignores it before. Where no command runs any more, all is as it was."""
    code = (
        "import signal\nfrom pe_jax.trainer.console import stopping\n"
        f"signal.signal(signal.SIGHUP, signal.{before.name})\nstopping.catch()\n"
        "print(signal.getsignal(signal.SIGHUP).name)\nstopping.end()\n"
        "print(signal.getsignal(signal.SIGHUP).name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tiny_run.ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["SIG_IGN", before.name], done.stderr


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


@pytest.mark.parametrize(
    "where", ["a destructor", "a callback", "an import", "the end"]
)
def test_signals_where_exceptions_are_lost(where):
    """Python drops what a destructor raises, and extension modules may not bear it."""
    told = "os.kill(os.getpid(), signal.SIGTERM)"
    code = {
        "a destructor": f"class A:\n    def __del__(self):\n        {told}\nA()",
        "a callback": f"gc.callbacks.append(lambda *args: {told})\ngc.collect()",
        "an import": f"try:\n    {told}\nexcept BaseException:\n    pass",
        "the end": f"stopping.done()\n{told}\nsys.exit(3)",
    }[where]
    start = (
        "import gc, os, signal, sys\nfrom pe_jax.trainer.console import stopping\n"
        "stopping.catch()\n"
    )
    script = f"{start}{code}\nprint('went on')"
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, cwd=tiny_run.ROOT, capture_output=True, text=True)
    assert done.returncode == (3 if where == "the end" else 75), done.stderr
    assert done.stdout == ""
