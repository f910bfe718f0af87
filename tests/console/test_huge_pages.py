"""Commands start again with huge pages where Linux gives them on request, and only there."""

import os
import signal
import subprocess
import sys

import pytest

from pe_jax.console import huge_pages


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Arguments and tunables of a process that `python train.py --help` was replaced with."""
    calls = []
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_SETTING", setting)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "utf8", "train.py", "--help"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, signals: None)
    monkeypatch.setattr(
        os, "execv", lambda path, args: calls.append((path, args, os.environ["GLIBC_TUNABLES"]))
    )
    return calls


def test_a_command_starts_again(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    huge_pages.use()
    huge_pages.use()
    arguments = [sys.executable, "-X", "utf8", "train.py", "--help"]
    tunables = "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    assert started == [(sys.executable, arguments, tunables)]


@pytest.mark.parametrize("setting", ["[always] madvise never", "always madvise [never]", None])
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


def test_a_real_process_starts_again_once(tmp_path):
    (tmp_path / "enabled").write_text("[madvise]")
    script = tmp_path / "command.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "from pe_jax.console import huge_pages, stopping\n"
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
        [sys.executable, str(script), "a b", "--c"], env=env, capture_output=True, text=True
    )
    arguments = "glibc.malloc.hugetlb=1 ['a b', '--c']"
    lines = ["started", "started", arguments, "a signal waits for its handler"]
    assert run.stdout.splitlines() == lines and run.returncode == 75, run.stderr
