"""What is checked, and built, on the user's machine before a TPU is asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent

# The Python that has pe_jax with the extras train and tpu.
PYTHON = os.environ.get("PYTHON", sys.executable)

# Extras of pe_jax on a host of a TPU.
EXTRAS = "train,tpu,gcs"


class Environment(NamedTuple):
    """Versions of the local environment, which the hosts get as well.

    Attributes:
      python: such as 3.12.
      constraints: a line `name==version` for each package but pe_jax.
    """

    python: str
    constraints: str


_LIST_VERSIONS = """
import importlib.metadata, sys
print("%d.%d" % sys.version_info[:2])
for found in importlib.metadata.distributions():
    print(found.metadata["Name"] + "==" + found.version)
"""

_NOT_CONSTRAINED = ("pe_jax", "pe-jax", "pip", "setuptools", "wheel", "uv")


def fail(message: str) -> NoReturn:
    """End the command with an error of one line and status 1."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(1)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def read_environment() -> Environment:
    """Return the versions of `PYTHON`, with which configs are checked and memory is estimated."""
    command = [PYTHON, "-c", _LIST_VERSIONS]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if listed.returncode:
        fail(f"{PYTHON} cannot list its packages. Set PYTHON to that of your .venv.")
    python, *packages = listed.stdout.split()
    kept = [name for name in packages if name.split("==")[0] not in _NOT_CONSTRAINED]
    return Environment(python, "".join(f"{line}\n" for line in sorted(kept)))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, with `constraints.txt` beside it; return its path."""
    command = [PYTHON, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    built = subprocess.run([*command, f"--wheel-dir={folder}", str(ROOT)], check=False)
    wheels = sorted(folder.glob("pe_jax-*.whl"))
    if built.returncode or len(wheels) != 1:
        fail(
            f"the wheel of {ROOT} was not built: {folder} has {len(wheels)} of them. Fix what "
            "pip says above, and use an empty folder."
        )
    (folder / "constraints.txt").write_text(read_environment().constraints)
    return wheels[0]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a script, and after `--` the flags of `pe-jax train`."""
    own = list(arguments)
    if "--" not in own:
        return own, []
    split = own.index("--")
    return own[:split], own[split + 1 :]


def check(
    flags: Sequence[str], folders: Sequence[str], topology: str, skipped: Sequence[str]
) -> None:
    """Check a run before a TPU is asked for; ends the command for a fault.

    Args:
      flags: for `pe-jax train`.
      folders: of buckets, which are copied to the hosts.
      topology: to compile for, such as v5e:4x4 or 2xv5e:4x4.
      skipped: "data" or "memory", for these checks.
    """
    workdir = check_flags(flags)
    check_copies(folders)
    check_buckets(workdir, folders)
    if "data" not in skipped:
        check_run(flags, workdir)
    if "memory" not in skipped:
        check_memory(flags, topology)


def check_ssh_agent() -> None:
    """Check that gcloud's key is in the agent: without, it copies nothing to several hosts."""
    listed = subprocess.run(
        ["ssh-add", "-l"], capture_output=True, text=True, check=False
    )
    key = Path("~/.ssh/google_compute_engine").expanduser()
    if listed.returncode != 0 or not key.exists():
        return  # No agent, or an empty one: gcloud goes on without it.
    read = ["ssh-keygen", "-lf", str(key)]
    shown = subprocess.run(read, capture_output=True, text=True, check=False).stdout
    if shown.split()[1:2] and shown.split()[1] not in listed.stdout:
        fail(
            "the ssh agent has other keys than that of gcloud, which several hosts need: "
            f"ssh-add {key}"
        )


def check_flags(flags: Sequence[str]) -> str:
    """Check the flags for `pe-jax train` as far as their names go; return the workdir.

    A slice is deleted at the end, and with it the disks of its hosts: the run is in a bucket.
    """
    names = [re.match(r"--?(no)?([\w.]+)", flag) for flag in flags]
    given = {name[2] for name in names if name}
    if "config" not in given:
        fail("--config is required after --, such as -- --config=pretrain_base.")
    reserved = sorted(given & {"coordinator", "hosts", "host", "check"})
    if reserved:
        fail(f"--{reserved[0]} is set by this script. Remove it.")
    workdirs = [flag for flag in flags if re.match("--?workdir=", flag)]
    if len(workdirs) != 1 or "=gs://" not in workdirs[0]:
        fail(
            "--workdir=gs://BUCKET/FOLDER is required after --: disks are deleted with the slice. "
            f"Got {workdirs[0] if workdirs else 'none'}."
        )
    return workdirs[0].partition("=")[2].rstrip("/")


def check_copies(folders: Sequence[str]) -> None:
    """Check that each folder to copy is in a bucket, and has a name that no other one has."""
    seen: set[str] = set()
    for folder in folders:
        name = folder.rstrip("/").rpartition("/")[2]
        if not re.fullmatch(r"gs://[^/]+/.*[^/]/?", folder):
            fail(f"--copy must be a folder gs://BUCKET/FOLDER, got {folder}.")
        if name in seen:
            fail(f"--copy has two folders named {name}: hosts have one place for both.")
        seen.add(name)


def check_buckets(workdir: str, folders: Sequence[str]) -> None:
    """Check that the bucket of the run can be read, and that there is something to copy."""
    bucket = "/".join(workdir.split("/")[:3])
    described = ["gcloud", "storage", "buckets", "describe", bucket]
    if _quiet(described) != 0:
        fail(f"--workdir={workdir}: {' '.join(described)} fails, see above.")
    for folder in folders:
        listed = ["gcloud", "storage", "ls", f"{folder.rstrip('/')}/"]
        if _quiet(listed) != 0:
            fail(f"--copy={folder}: {' '.join(listed)} fails, see above.")


def check_run(flags: Sequence[str], workdir: str) -> None:
    """Check config, model, text and an existing run by `train.py --check`, from this folder.

    Paths in the flags lead to the same files here as in the home folder of a host. The config of a
    run in the bucket is copied, so that Python needs no access to buckets on this machine.
    """
    say("Checking config and data on this machine.")
    with tempfile.TemporaryDirectory() as folder:
        copied = ["gcloud", "storage", "cp", f"{workdir}/config.json", f"{folder}/"]
        there = ["gcloud", "storage", "ls", f"{workdir}/config.json"]
        listed = subprocess.run(there, capture_output=True, check=False)
        if listed.returncode == 0 and _quiet(copied) != 0:
            fail(f"{' '.join(copied)} fails, see above.")
        others = [flag for flag in flags if not re.match("--?(workdir|profile)=", flag)]
        command = [PYTHON, str(ROOT / "train.py"), *others, f"--workdir={folder}"]
        if _on_cpu([*command, "--check"]) != 0:
            fail(
                "the run would fail for the reason above, so no TPU was asked for. If its data is "
                "not on this machine, --skip=data."
            )


def check_memory(flags: Sequence[str], topology: str) -> None:
    """Check that the steps of all stages fit, by compiling them: `benchmarks/compile_for.py`."""
    say(f"Compiling for {topology} on this machine, to see if it fits: minutes.")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "estimate.json"
        configs = [flag for flag in flags if re.match(r"--?(no)?config[.=]", flag)]
        command = [PYTHON, str(ROOT / "benchmarks" / "compile_for.py"), *configs]
        if _on_cpu([*command, f"--topology={topology}", f"--out={out}"]) != 0:
            fail(
                "the step was not compiled, see above, so no TPU was asked for. It needs "
                "pip install '.[train,tpu]'; to go on without, --skip=memory."
            )
        stages = json.loads(out.read_text())
    if not all(stage["fits"] for stage in stages):
        fail(
            f"a step does not fit into the memory of {topology}, see above, so no TPU was asked "
            "for. Raise the stage's accumulation, or use more chips."
        )


def _quiet(command: Sequence[str]) -> int:
    """Run a command whose output does not matter unless it fails; return its status."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        say(done.stdout.rstrip())
    return done.returncode


def _on_cpu(command: Sequence[str]) -> int:
    """Run a Python program on the CPU; its report goes to standard error."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        command, stdout=sys.stderr, env=environment, check=False
    ).returncode
