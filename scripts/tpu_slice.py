#!/usr/bin/env python3
"""Train on a Cloud TPU slice from this checkout, until the run has finished (docs/tpu.md).

    python scripts/tpu_slice.py check NAME --zone=ZONE --type=v5litepod-16 -- --config=... --workdir=gs://...
    python scripts/tpu_slice.py run   NAME --zone=ZONE --type=v5litepod-16 -- --config=... --workdir=gs://...
    python scripts/tpu_slice.py stop  NAME --zone=ZONE
    python scripts/tpu_slice.py delete NAME --zone=ZONE

`run` checks the run on this machine, asks for the slice, installs the checkout on its hosts and
trains; it resumes when the slice is lost. `stop` saves, ends the training and deletes the slice;
`delete` deletes it at once. Flags after `--` go to `pe-jax train`. No failure deletes a slice that
works: it stays, and is billed, until the run has finished or `stop` or `delete` is called.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import tpu_check
from tpu_check import EXTRAS, fail, say
from tpu_topologies import shape_of_type

# --- exit statuses -------------------------------------------------------------------------------

STOPPED = 76  # By the command `stop`; of the commands that run on a host.
PROGRAM_ERROR = 77  # The training ended by an error that it would meet again.

# Statuses of `pe-jax train` after which the same command resumes.
RESUMABLE = {
    69: "lost another host",
    75: "saved after SIGTERM, as before a preemption or maintenance",
    134: "was aborted by JAX, which lost another host",
    137: "was killed, perhaps for its memory",
    139: "crashed",
    143: "was ended by SIGTERM before it trained",
}
LOST_CONNECTION = 255  # Of ssh and scp.

# --- limits --------------------------------------------------------------------------------------

# Failures of each phase until `run` gives up; all counts start again after training that lasted
# for --progress seconds. A spot slice may be taken away often, and a network be down for long.
LIMITS = {"create": 20, "look": 20, "connect": 5, "install": 5, "copy": 5, "train": 5}
LONGEST_PAUSE = 20  # Times --pause.
LOOKS_UNTIL_SURE = 3  # In a row, until a node counts as lost or a request as deleted.
LOOKS_UNTIL_BROKEN = 120  # A node that is repaired for longer ends `run`.

# --- states --------------------------------------------------------------------------------------

GONE = ("FAILED", "SUSPENDED")  # The request has no slice, and will not have one.
LOST_NODE = ("PREEMPTED", "TERMINATED", "NONE")

# Errors of `create` that come again.
PERMANENT = re.compile(
    r"PERMISSION_DENIED|INVALID_ARGUMENT|unrecognized arguments|argument --|active account",
    re.IGNORECASE,
)

# --- commands on a host --------------------------------------------------------------------------

PROCESS = "/dev/shm/pe_jax.pid"
STOP_MARK = "/dev/shm/pe_jax.stop"

# A process number may be another program's by now. One that does not end in ten minutes hangs, as
# where another host was lost; checkpoints are written in one go.
END_TRAINING = (
    f'if {{ pid=$(cat {PROCESS}) && grep -qz pe-jax "/proc/$pid/cmdline"; }} 2>/dev/null; '
    'then kill -TERM "$pid"; timeout 600 tail -s 0.2 --pid="$pid" -f /dev/null '
    '|| kill -KILL "$pid"; fi'
)
STOP_IF_ASKED = f"if [ -e {STOP_MARK} ]; then exit {STOPPED}; fi"


def train_command(flags: Sequence[str]) -> str:
    """Return the line of bash that trains on a host, and ends with one of the statuses above.

    gcloud connects again where a connection breaks, and starts the command again: a training that
    still runs is ended first, which saves.
    """
    resumable = "|".join(str(status) for status in (0, *RESUMABLE))
    return "; ".join(
        [
            STOP_IF_ASKED,
            END_TRAINING,
            f"pe_jax/bin/pe-jax train {shlex.join(flags)} --coordinator=auto & "
            f"echo $! > {PROCESS}",
            "wait $!",
            "status=$?",
            f"case $status in {resumable}) ;; *) "
            'echo "pe-jax ended with status $status." >&2; '
            f"status={PROGRAM_ERROR};; esac",
            f"if [ $status != 0 ] && [ -e {STOP_MARK} ]; then status={STOPPED}; fi",
            "exit $status",
        ]
    )


def install_command(wheel: str, python: str) -> str:
    """Return the line of bash that installs the wheel, with the versions of the local environment.

    uv brings a Python of its own. Newer images forbid pip to install for the user by default.
    """
    return (
        "export PIP_BREAK_SYSTEM_PACKAGES=1; python3 -m pip install --quiet --user uv && "
        f"~/.local/bin/uv venv --quiet --allow-existing --python={python} pe_jax && "
        "~/.local/bin/uv pip install --quiet --reinstall-package=pe_jax "
        "--python=pe_jax/bin/python --constraint=constraints.txt "
        f"'./{wheel}[{EXTRAS}]'"
    )


def copy_command(folder: str) -> str:
    """Return the line of bash that copies a folder of a bucket into the home folder."""
    source = folder.rstrip("/")
    target = shlex.quote(source.rpartition("/")[2])
    return (
        f"mkdir -p {target} && gcloud storage rsync -r {shlex.quote(source)} {target}"
    )


class Failure(NamedTuple):
    """A phase that ended with another status than 0, after some seconds."""

    phase: str
    status: int
    seconds: float

    def reason(self) -> str:
        if self.status == LOST_CONNECTION:
            return "the connection was lost (255)"
        if self.phase == "train" and self.status in RESUMABLE:
            return f"it {RESUMABLE[self.status]} ({self.status})"
        return f"it failed, see above ({self.status})"


Phases = Mapping[str, Callable[[Sequence[str]], int]]


def first_failure(phases: Phases, nodes: Sequence[str]) -> Failure | None:
    """Go through the phases, which return statuses, to the first that fails; return that."""
    for name, phase in phases.items():
        start = time.monotonic()
        status = phase(nodes)
        if status:
            return Failure(name, status, time.monotonic() - start)
    return None


# --- the slice -----------------------------------------------------------------------------------


class Failed(Exception):
    """`run` or `stop` cannot go on; the slice stays as it is."""


class Ended(Exception):
    """The slice was stopped or deleted by another command."""


class Slice:
    """A queued resource with its nodes, one for each slice; see the flags for `options`."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.name: str = options.name
        self.failures: Counter[str] = Counter()
        self.requested = False  # There is a request, which nobody else should delete.
        self.reached = False  # All hosts were reached once.
        self._last_message = ""

    # gcloud

    def queued(self, command: str, *arguments: str) -> list[str]:
        service = ["gcloud", "compute", "tpus", "queued-resources", command, self.name]
        return [*service, f"--zone={self.options.zone}", *arguments]

    def on_nodes(self, nodes: Sequence[str], command: str, *arguments: str) -> int:
        """Run `tpu-vm COMMAND` for all hosts of all nodes at once.

        Args:
          command: "ssh" or "scp"; {node} in the arguments is the node's name.

        Returns:
          0 if all ended with 0; else the status that says most.
        """
        release = ["alpha"] if self.options.addresses == "iap" else []
        route = {"external": [], "internal": ["--internal-ip"]}
        route["iap"] = ["--tunnel-through-iap"]
        running = []
        try:
            for node in nodes:
                own = [argument.replace("{node}", node) for argument in arguments]
                line = ["gcloud", *release, "compute", "tpus", "tpu-vm", command, *own]
                line += [f"--zone={self.options.zone}", "--worker=all"]
                line += route[self.options.addresses]
                running.append(subprocess.Popen(line))
            statuses = [process.wait() for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
        for status in (STOPPED, PROGRAM_ERROR):
            if status in statuses:
                return status
        return next((status for status in statuses if status), 0)

    def on_hosts(self, nodes: Sequence[str], command: str) -> int:
        """Run a line of bash on all hosts; return as `on_nodes`."""
        return self.on_nodes(nodes, "ssh", "{node}", f"--command={command}")

    # states

    def look(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return what `describe` prints, None if there is nothing of the name.

        Any other failure says nothing about the state, and is tried again.
        """
        while True:
            found = subprocess.run(
                [*command, "--format=json"], capture_output=True, text=True, check=False
            )
            if found.returncode == 0:
                self.failures["look"] = 0
                described: dict[str, Any] = json.loads(found.stdout)
                return described
            if re.search("not[_ ]found", found.stderr, re.IGNORECASE):
                return None
            self.count("look", f"the state is unknown: {found.stderr.strip()}")

    def request_state(self) -> tuple[str, list[str], str]:
        """Return the state of the request, NONE if there is none, its nodes, and the reason."""
        described = self.look(self.queued("describe"))
        if described is None:
            return "NONE", [], ""
        state = described.get("state", {})
        reason = state.get("failedData", {}).get("error", {}).get("message", "")
        reason = reason or state.get("stateInitiator", "")
        specs = described.get("tpu", {}).get("nodeSpec", [])
        nodes = [spec["nodeId"] for spec in specs if spec.get("nodeId")]
        return state.get("state", "STATE_UNSPECIFIED"), nodes, reason

    def node_states(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the states of the nodes, NONE for one that is gone, by name."""
        states = {}
        for node in nodes:
            zone = f"--zone={self.options.zone}"
            command = ["gcloud", "compute", "tpus", "tpu-vm", "describe", node, zone]
            described = self.look(command)
            state = described.get("state", "UNKNOWN") if described else "NONE"
            states[node] = state
        return states

    # waiting

    def tell(self, message: str) -> None:
        """Print a message that is not the last one again."""
        if message != self._last_message:
            say(f"{self.name}: {message}")
        self._last_message = message

    def count(self, phase: str, why: str) -> None:
        """Count a failure of a phase and pause; longer, the more there were in a row.

        Raises:
          Failed: after as many as `LIMITS` has.
        """
        self.failures[phase] += 1
        failures, limit = self.failures[phase], LIMITS[phase]
        if failures >= limit:
            raise Failed(f"{phase} failed {failures} times: {why}")
        seconds = self.options.pause * min(2 ** (failures - 1), LONGEST_PAUSE)
        say(
            f"{self.name}: {phase}: {why}. Try {failures + 1} of {limit} in {seconds} s."
        )
        time.sleep(seconds)

    def acquire(self) -> list[str]:
        """Return the nodes of the slice once all are usable; asks for it if it is not there.

        Raises:
          Failed: if it is not granted, or a node stays broken.
          Ended: if another command has deleted the request.
        """
        looks: Counter[str] = Counter()
        while True:
            state, nodes, why = self.request_state()
            states = self.node_states(nodes) if state == "ACTIVE" else {}
            if states and set(states.values()) == {"READY"}:
                self.requested = True
                self.tell("ready")
                return nodes
            if state in GONE:
                self.give_up(f"the request is {state} ({why or 'no reason given'})")
                self.count("create", f"the request was {state}")
                continue
            if state == "NONE" and not self.requested:
                self.create()
                continue
            kind = self.kind_of_wait(state, states)
            looks = Counter({kind: looks[kind] + 1})
            shown = ", ".join(f"{node} is {each}" for node, each in states.items())
            if looks["deleted"] >= LOOKS_UNTIL_SURE:
                raise Ended(f"another command has deleted the request ({state})")
            if looks["lost"] >= LOOKS_UNTIL_SURE:
                self.give_up(shown)
                continue
            if looks["broken"] >= LOOKS_UNTIL_BROKEN:
                raise Failed(f"it does not become usable: {shown}")
            self.tell(f"{shown or state}: waiting")
            time.sleep(self.options.pause)

    def kind_of_wait(self, state: str, states: dict[str, str]) -> str:
        """Return why a slice is waited for: it was deleted or lost, is broken, or in the queue."""
        if state in ("NONE", "DELETING"):
            return "deleted" if self.requested else "queue"
        if state != "SUSPENDING":
            self.requested = True
        if any(each in LOST_NODE for each in states.values()):
            return "lost"
        return "broken" if state == "ACTIVE" else "queue"

    def give_up(self, why: str) -> None:
        """Delete a request whose slice is gone, so that it can be asked for again."""
        say(f"{self.name}: {why}. Asking for another slice, to resume.")
        self.requested = False
        self.delete()

    # phases

    def create(self) -> None:
        """Ask for the slice.

        Raises:
          Failed: if Google Cloud refuses the request for a reason that stays.
        """
        asked = subprocess.run(
            self.queued("create", *self.create_arguments()),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        sys.stderr.write(asked.stderr)
        why = asked.stderr.strip().rpartition("\n")[2] or f"status {asked.returncode}"
        if asked.returncode == 0 or "ALREADY_EXISTS" in asked.stderr:
            self.requested = True
        elif asked.returncode == 2 or PERMANENT.search(asked.stderr):
            raise Failed(f"create: {why}")
        else:
            self.count("create", why)

    def create_arguments(self) -> list[str]:
        options = self.options
        runtime = options.runtime or shape_of_type(options.type).runtime
        arguments = [
            f"--accelerator-type={options.type}",
            f"--runtime-version={runtime}",
        ]
        if options.slices == 1:
            arguments.append(f"--node-id={self.name}")
        else:
            arguments.append(f"--node-count={options.slices}")
        if options.capacity == "spot":
            arguments.append("--spot")
        if options.capacity == "reserved" and options.reservation_project:
            project = options.reservation_project
            arguments.append(f"--reservation-host-project={project}")
        elif options.capacity == "reserved":
            arguments.append("--reserved")
        if options.addresses != "external":
            arguments.append("--internal-ips")
        for flag in ("network", "subnetwork", "service_account"):
            value = getattr(options, flag)
            if value:
                arguments.append(f"--{flag.replace('_', '-')}={value}")
        return arguments

    def connect(self, nodes: Sequence[str]) -> int:
        """Reach all hosts and end what trains there; the first time, also forget a `stop`."""
        before = STOP_IF_ASKED if self.reached else f"rm -f {STOP_MARK}"
        status = self.on_hosts(nodes, f"{before}; {END_TRAINING}")
        self.reached = self.reached or status == 0
        return status

    def install(self, wheel: Path, python: str, nodes: Sequence[str]) -> int:
        """Install the wheel on all hosts; `constraints.txt` is beside it."""
        files = [str(wheel), str(wheel.parent / "constraints.txt")]
        status = self.on_nodes(nodes, "scp", *files, "{node}:")
        return status or self.on_hosts(nodes, install_command(wheel.name, python))

    def copy(self, nodes: Sequence[str]) -> int:
        """Copy the folders of --copy to all hosts."""
        for folder in self.options.copy:
            status = self.on_hosts(nodes, copy_command(folder))
            if status:
                return status
        return 0

    def train(self, flags: Sequence[str], wheel: Path, python: str) -> None:
        """Go through the phases, again after a failure, until the run has finished.

        Raises:
          Failed: if a phase fails too often, or the training by its own error.
          Ended: if another command has ended it.
        """
        phases: Phases = {
            "connect": self.connect,
            "install": functools.partial(self.install, wheel, python),
            "copy": self.copy,
            "train": lambda nodes: self.on_hosts(nodes, train_command(flags)),
        }
        while failure := first_failure(phases, self.acquire()):
            if failure.status == STOPPED:
                raise Ended("stopped by another command, and saved")
            if failure.status == PROGRAM_ERROR:
                raise Failed(
                    "the training ended by the error above, which would come again"
                )
            if failure.phase == "train" and failure.seconds >= self.options.progress:
                self.failures.clear()
            self.count(failure.phase, failure.reason())

    def delete(self) -> None:
        """Delete the request and its nodes.

        Raises:
          Failed: if that fails several times.
        """
        command = self.queued("delete", "--force", "--quiet")
        for attempt in range(LIMITS["connect"]):
            time.sleep(self.options.pause if attempt else 0)
            if subprocess.run(command, check=False).returncode == 0:
                return
            if self.request_state()[0] == "NONE":
                return
        raise Failed(f"it was not deleted: {shlex.join(command)}")


# --- commands ------------------------------------------------------------------------------------


def check(options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Check all that can be known before the slice exists; ends the command for a fault."""
    shape = shape_of_type(options.type)
    if shape.hosts * options.slices > 1:
        tpu_check.check_ssh_agent()
    topology = shape.several(options.slices)
    tpu_check.check(flags, options.copy, topology, options.skip)


def run(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Train until the run has finished, then delete the slice; return the exit status."""
    tpu = Slice(options)
    try:
        state = tpu.request_state()[0]
        if state not in ("NONE", "DELETING", *GONE):
            say(f"{tpu.name} is {state}: it keeps its place, and is not compiled for.")
            options.skip = ["memory", *options.skip]
        check(options, flags)
        with tempfile.TemporaryDirectory() as folder:
            wheel = tpu_check.build_wheel(Path(folder))
            python = tpu_check.read_environment().python
            tpu.train(flags, wheel, python)
        if options.keep:
            say(f"{tpu.name} is kept, as --keep says, and billed. {_ways_out(tpu)}")
        else:
            tpu.delete()
        return 0
    except Ended as ended:
        say(f"{tpu.name}: {ended}. The same command resumes the run.")
        return 75
    except Failed as failed:
        say(f"error: {tpu.name}: {failed}")
        say(f"Nothing was deleted: {tpu.name} may be billed. {_ways_out(tpu)}")
        return 1
    except KeyboardInterrupt:
        say(
            f"Nothing was deleted: {tpu.name} may train, and be billed. {_ways_out(tpu)}"
        )
        return 130


def _ways_out(tpu: Slice) -> str:
    where = f"{tpu.name} --zone={tpu.options.zone}"
    return (
        "The same command goes on from here; to save and delete: python scripts/tpu_slice.py "
        f"stop {where}"
    )


def stop(options: argparse.Namespace) -> int:
    """Save, end the training, and delete the slice; return the exit status."""
    tpu = Slice(options)
    try:
        state, nodes, _ = tpu.request_state()
        if state == "NONE":
            say(f"{tpu.name}: there is no request of this name in {options.zone}.")
            return 0
        states = tpu.node_states(nodes) if state == "ACTIVE" else {}
        if states and set(states.values()) == {"READY"}:
            # All hosts know of it before one ends: `run` must not resume then.
            for command in (f"touch {STOP_MARK}", END_TRAINING):
                while status := tpu.on_hosts(nodes, command):
                    tpu.count("connect", f"the hosts were not reached ({status})")
        tpu.delete()
        return 0
    except Failed as failed:
        say(f"error: {tpu.name}: {failed}")
        where = f"{tpu.name} --zone={options.zone}"
        say(
            f"It may be billed. To delete it without saving: tpu_slice.py delete {where}"
        )
        return 1


def delete(options: argparse.Namespace) -> int:
    """Delete the slice as it is; return the exit status."""
    tpu = Slice(options)
    try:
        tpu.delete()
        return 0
    except Failed as failed:
        say(f"error: {failed}")
        return 1


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script and the flags after `--`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("command", choices=["check", "run", "stop", "delete"])
    add("name", help="of the request; with --slices=1 also of the node")
    add("--zone", required=True, help="such as us-west4-a")
    add("--type", default="", help="accelerator type, such as v5litepod-16")
    add("--runtime", default="", help="version of the image; default by --type")
    add("--slices", type=int, default=1, help="how many slices of --type")
    add("--capacity", choices=["spot", "on-demand", "reserved"], default="spot")
    add("--reservation-project", default="", help="owner of a shared reservation")
    add("--network", default="")
    add("--subnetwork", default="")
    add("--service-account", default="", help="email; it writes to --workdir")
    add(
        "--addresses",
        choices=["external", "internal", "iap"],
        default="external",
        help="internal: reached within the network; iap: through Identity-Aware Proxy",
    )
    add(
        "--copy",
        action="append",
        default=[],
        help="gs://BUCKET/DIR, into ~/DIR of each host",
    )
    add("--keep", action="store_true", help="do not delete the slice after success")
    add(
        "--skip",
        action="append",
        default=[],
        choices=["data", "memory"],
        help="a check",
    )
    add("--pause", type=int, default=30, help="seconds between two looks")
    add(
        "--progress",
        type=int,
        default=900,
        help="seconds of training that reset all counts",
    )
    own, flags = tpu_check.split_arguments(arguments)
    options = parser.parse_args(own)
    if options.slices < 1:
        parser.error(f"--slices must be at least 1, got {options.slices}.")
    if options.command in ("check", "run"):
        try:
            shape_of_type(options.type)
        except ValueError as error:
            parser.error(str(error))
    elif flags:
        parser.error(f"{options.command} takes no flags after --.")
    return options, flags


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    options, flags = parse(arguments)
    os.environ["CLOUDSDK_CORE_DISABLE_PROMPTS"] = "1"
    signal.signal(signal.SIGTERM, _interrupt)
    if options.command == "check":
        check(options, flags)
        return 0
    if options.command == "run":
        return run(options, flags)
    return stop(options) if options.command == "stop" else delete(options)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FileNotFoundError as error:
        fail(f"{error.filename} is not installed: docs/tpu.md lists what is needed.")
