"""Commands start again with huge pages where Linux gives them on request, and only there."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pe_jax.trainer.console import huge_pages

ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Arguments and tunables of a process that `python train.py --help` was replaced with."""
    calls = []
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huge_pages, "_SETTING", setting)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "-X", "utf8", "train.py", "--help"]
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, signals: None)

    def start(path, arguments, environment):
        monkeypatch.setenv(
            huge_pages._STARTED_AGAIN, environment[huge_pages._STARTED_AGAIN]
        )
        calls.append((path, arguments, environment["GLIBC_TUNABLES"]))

    monkeypatch.setattr(os, "execve", start)
    return calls


def test_a_command_starts_again(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    huge_pages.use()
    huge_pages.use()
    arguments = [sys.executable, "-X", "utf8", "train.py", "--help"]
    tunables = "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    assert started == [(sys.executable, arguments, tunables)]


@pytest.mark.parametrize(
    "setting", ["[always] madvise never", "always madvise [never]", None]
)
def test_not_where_linux_decides(started, setting):
    huge_pages._SETTING.unlink()
    if setting:
        huge_pages._SETTING.write_text(setting)
    huge_pages.use()
    assert not started


def test_not_in_a_debugger_a_notebook_or_against_the_user(started, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "gettrace", lambda: print)
        huge_pages.use()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher"])
        huge_pages.use()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    huge_pages.use()
    assert not started


@pytest.mark.parametrize(
    "options",
    [["-c"], ["-m"], ["-Bm"], ["-mcProfile"], ["launcher.py"], ["-m", "cProfile"]],
)
def test_not_with_a_launcher(started, monkeypatch, options):
    monkeypatch.setattr(sys, "orig_argv", ["python", *options, "train.py", "--help"])
    huge_pages.use()
    assert not started


@pytest.mark.parametrize(
    "options", [["-u"], ["-BI"], ["-Werror"], ["-X", "utf8", "-W", "error"]]
)
def test_options_of_python_are_kept(started, monkeypatch, options):
    monkeypatch.setattr(sys, "orig_argv", ["python", *options, "train.py", "--help"])
    huge_pages.use()
    assert started[0][1] == [sys.executable, *options, "train.py", "--help"]


@pytest.mark.parametrize("executable", ["", None, "/bin/sh", "/nowhere/python"])
def test_not_with_another_interpreter(started, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    huge_pages.use()
    assert not started


def test_not_a_script_that_has_gone_elsewhere(started, monkeypatch, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/train.py").touch()  # Another file of the same relative path.
    monkeypatch.chdir(tmp_path / "folder")
    huge_pages.use()
    assert not started


def test_a_process_that_cannot_start_again_goes_on(started, monkeypatch):
    def fail(*args):
        raise OSError("Argument list too long")

    monkeypatch.setattr(os, "execve", fail)
    huge_pages.use()
    assert "GLIBC_TUNABLES" not in os.environ or not os.environ["GLIBC_TUNABLES"]


# How a shell runs the script m.py, or the same from elsewhere.
COMMANDS = {
    "a file": "{python} m.py a",
    "standard input": "{python} - a < m.py",
    "no arguments": "{python} < m.py",
    "a pipe": "cat m.py | {python} - a",
    "a pipe as a file": "cat m.py | {python} /dev/stdin a",
    "process substitution": "{python} <(cat m.py) a",
    "a program": '{python} -c "$(cat m.py)" a',
    "a module": "{python} -m m a",
    "an archive": "{python} -m zipfile -c m.pyz __main__.py && {python} m.pyz a",
    "another name": "exec -a trainer {python} m.py a",
    "the name of another program": "PATH=/usr/bin:/bin exec -a sh {python} m.py a",
    "a deleted folder": 'm="$PWD/m.py"; mkdir gone; cd gone; rmdir ../gone; {python} "$m" a',
}
STARTED_AGAIN = {"a file", "a deleted folder"}


@pytest.mark.parametrize("how", COMMANDS)
def test_a_real_command_runs_once(tmp_path, how):
    """It does all that it does, whether it was started again or not."""
    (tmp_path / "enabled").write_text("[madvise]")
    script = f"""import os, pathlib
from pe_jax.trainer.console import huge_pages
huge_pages._SETTING = pathlib.Path({str(tmp_path / "enabled")!r})
huge_pages.use()
print("ran", "GLIBC_TUNABLES" in os.environ)
"""
    for name in ("m.py", "__main__.py"):
        (tmp_path / name).write_text(script)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("GLIBC_TUNABLES", None)
    line = COMMANDS[how].format(python=shlex.quote(sys.executable))
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"ran {how in STARTED_AGAIN}\n"), (
        done.stderr
    )


def test_a_tunable_that_is_removed_is_no_endless_loop(tmp_path):
    """The C library removes it from the environment of a privileged process."""
    (tmp_path / "enabled").write_text("[madvise]")
    (tmp_path / "m.py").write_text(
        "import os, pathlib, sys\n"
        "os.environ.pop('GLIBC_TUNABLES', None)\n"
        "from pe_jax.trainer.console import huge_pages\n"
        f"huge_pages._SETTING = pathlib.Path({str(tmp_path / 'enabled')!r})\n"
        "print('started', flush=True)\n"
        "huge_pages.use()\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "m.py"],
        env=variables,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"started\n" * 2)


def test_a_real_process_starts_again_once(tmp_path):
    (tmp_path / "enabled").write_text("[madvise]")
    script = tmp_path / "command.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "from pe_jax.trainer.console import huge_pages, stopping\n"
        f"huge_pages._SETTING = pathlib.Path({str(tmp_path / 'enabled')!r})\n"
        "print('started', flush=True)\n"
        "if 'GLIBC_TUNABLES' in os.environ:\n"
        "    print(os.environ['GLIBC_TUNABLES'], sys.argv[1:], flush=True)\n"
        "    os.kill(os.getpid(), 15)\n"
        "    print('a signal waits for its handler', flush=True)\n"
        "stopping.catch()\n"
        "huge_pages.use()\n"
        "print('never')\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    run = subprocess.run(
        [sys.executable, str(script), "a b", "--c"],
        env=env,
        capture_output=True,
        text=True,
    )
    arguments = "glibc.malloc.hugetlb=1 ['a b', '--c']"
    lines = ["started", "started", arguments, "a signal waits for its handler"]
    assert run.stdout.splitlines() == lines and run.returncode == 75, run.stderr
