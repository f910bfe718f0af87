"""Several hosts as one machine: each runs the same command and connects to the coordinator.

The coordinator is host 0, which notices when another is lost. All hosts stop after the same step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import flax
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

import pe_jax
from pe_jax.common.files import Json, is_remote
from pe_jax.common.schema import Config, values_of
from pe_jax.trainer.console import stopping
from pe_jax.trainer.console.terminal import log

_WAIT = 300  # Seconds, for all hosts to start.
# Seconds until a file of one host is there for all, on a network file system.
_VISIBLE = 5.0
# Seconds: one host may tokenize for days while another has a cache.
_LONGEST_WAIT = 7 * 24 * 3600
_LONGEST_REASON = 300  # Characters of an error of the runtime.

# In errors of the runtime, where a transfer between hosts fails.
_TRANSFER_ERRORS = re.compile(
    r"\b(gloo|nccl|rccl|DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|connection (closed|reset|refused)"
    r"|coordination service|heartbeat)\b",
    re.IGNORECASE,
)

# Every host passes the same barriers in the same order.
_barrier_numbers = itertools.count()


def connect(
    coordinator: str, hosts: int | None, host: int | None, lost_after: int
) -> None:
    """Join the other hosts; must come before any other use of the devices.

    Args:
      coordinator: host 0's address, `HOST:PORT`; with "auto" JAX finds all three on Cloud TPU pods,
        Slurm, Open MPI and Kubernetes.
      hosts, host: how many there are, and the index of this one.
      lost_after: seconds without a heartbeat until a host counts as lost, and the others end.

    Raises:
      ValueError: for invalid arguments, hosts with different numbers of devices, or if the hosts do
        not find one another.
    """
    _check(coordinator, hosts, host)
    # JAX ends a process whose others do not come by a stack dump, so this is said before.
    log(f"Waiting for the other hosts. JAX aborts if one does not come in {_WAIT} s.")
    try:
        jax.distributed.initialize(
            None if hosts is None else coordinator,
            hosts,
            host,
            coordinator_bind_address=None if hosts is None else coordinator,
            heartbeat_timeout_seconds=lost_after,
            initialization_timeout=_WAIT,
        )
    except (KeyError, RuntimeError, ValueError) as error:
        # Each scheduler of "auto" has its own.
        message = f"The hosts did not find one another: {error}"
        if hosts is None:
            message += " Give --coordinator=HOST:PORT of host 0, --hosts and --host."
        raise ValueError(message) from error
    # The runtime has put a handler in the place of ours.
    stopping.release(signal.SIGTERM)
    check_devices([device.process_index for device in jax.devices()])


def _check(coordinator: str, hosts: int | None, host: int | None) -> None:
    """Raise ValueError for arguments that `connect` does not accept."""
    auto = coordinator == "auto"
    if auto != (hosts is None) or auto != (host is None):
        raise ValueError(
            "--coordinator=auto finds the hosts; an address HOST:PORT needs --hosts and --host, "
            f"got coordinator={coordinator!r}, hosts={hosts}, host={host}."
        )
    # IPv6 in brackets.
    address = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{1,5})"
    match = re.fullmatch(address, coordinator)
    if not auto and not (match and 1 <= int(match[1]) <= 65535):
        raise ValueError(
            "--coordinator is 'auto' or HOST:PORT of host 0, with a port from 1 to 65535, such as "
            f"10.0.0.1:8476 or [::1]:8476; got {coordinator!r}."
        )
    if hosts is not None and hosts < 1:
        raise ValueError(f"--hosts must be at least 1, got {hosts}.")
    if hosts is not None and host is not None and not 0 <= host < hosts:
        raise ValueError(f"--host must be 0 to {hosts - 1}, got {host}.")


def check_devices(process_indices: Sequence[int]) -> None:
    """Check that hosts have equally many devices: arrays of all devices have equal parts.

    Args:
      process_indices: the host of each device.

    Raises:
      ValueError: if they do not.
    """
    counts = Counter(process_indices)
    if len(set(counts.values())) > 1:
        devices = ", ".join(
            f"host {host} has {counts[host]}" for host in sorted(counts)
        )
        raise ValueError(
            f"The hosts have different numbers of devices ({devices}). Use equal hosts, or limit "
            "each to the same number with JAX_LOCAL_DEVICE_IDS or CUDA_VISIBLE_DEVICES."
        )


def wait_for_all(purpose: str) -> None:
    """Wait until every host has called this, however long that takes; every host has to call it.

    This needs the coordinator alone. Collectives wait too, but some of them not long: see `link`.
    A host that is lost meanwhile ends the others as everywhere, after `lost_after`.
    """
    wait = ocp.multihost.get_barrier_sync_fn()
    wait(key=f"{purpose} {next(_barrier_numbers)}", timeout_ms=_LONGEST_WAIT * 1000)


def link(mesh: Mesh) -> None:
    """Connect the devices of all hosts along the axes of `mesh`; every host has to call it.

    The CPUs of several hosts exchange data by Gloo. Devices that exchange something for the first
    time wait for one another for 30 s only. One host may compile a training step for longer, while
    another finds it in its cache: JAX writes the cache of the first host alone. Devices that have
    exchanged something before wait for many minutes, so a program that takes no time to compile
    comes first, while the hosts are in step.
    """
    names = mesh.axis_names
    for count in range(1, len(names) + 1):
        for axes in itertools.combinations(names, count):
            _sum_over(mesh, axes)


def _sum_over(mesh: Mesh, axes: tuple[str, ...]) -> None:
    """Sum a number of each device over axes of the mesh."""

    def summed() -> jax.Array:
        # A sum of constants would need no transfer.
        return jax.lax.psum(jax.lax.axis_index(mesh.axis_names), axes)

    total = jax.shard_map(
        summed, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False
    )
    wait_for_all("link")
    jax.block_until_ready(jax.jit(total)())


def transfer_failure(error: Exception) -> str:
    """Return a message for an error that a lost host causes on another; empty for other errors."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return ""
    reason = " ".join(str(error).split())
    is_of_runtime = isinstance(error, RuntimeError | ValueError)  # Of jaxlib, both.
    if not is_of_runtime or not _TRANSFER_ERRORS.search(reason):
        return ""
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]} ..."
    return (
        "A transfer between the hosts failed: another host has ended, hangs or cannot be reached. "
        "See what the others print, and start the same command on all of them again, which "
        f"resumes the run. The runtime says: {reason}"
    )


# Where a host keeps its copy of the text, and how many processes read it, changes no result.
_OF_EACH_HOST = ("data.cache_dir", "data.workers")


def settings(config: Config) -> dict[str, str]:
    """Return the versions and the keys of a config that all hosts of a run must share."""
    versions = {
        module.__name__: module.__version__ for module in (pe_jax, jax, flax, optax)
    }
    keys = {
        f"config.{key}": repr(value)
        for key, value in values_of(config).items()
        if key not in _OF_EACH_HOST
    }
    return versions | keys


def agree(facts: Mapping[str, str]) -> None:
    """Compare what every host knows of the run, before it trains; every host has to call it.

    Raises:
      ValueError: on every host, if one has other `facts`; the message says which.
    """
    facts_by_host = _gather_facts(dict(facts))
    names = dict.fromkeys(name for facts in facts_by_host for name in facts)
    different = []
    for name in names:
        values = [facts.get(name, "none") for facts in facts_by_host]
        if len(set(values)) > 1:
            by_host = [f"host {n} has {value}" for n, value in enumerate(values)]
            different.append(f"{name}: {', '.join(by_host)}")
    if different:
        raise ValueError(
            f"The hosts have different settings ({'; '.join(different)}). Start all of them with "
            "the same command, files and versions."
        )


def check_shared(workdir: Path) -> None:
    """Check that all hosts write into the same folder; every host has to call it.

    The first host writes a file there, which the others look for. Equal paths can be different
    folders: a relative path, or local disks.

    Raises:
      ValueError: on every host, if one does not see the file.
    """
    token = _gather_facts({"token": secrets.token_hex(8)})[0]["token"]
    path = workdir / f".hosts-{token}"
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(token, encoding="utf-8")
    _gather_facts({})  # A barrier.
    deadline = time.monotonic() + _VISIBLE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    name = workdir if is_remote(workdir) else workdir.absolute()
    folder = f"{name} on {socket.gethostname()}"
    facts_by_host = _gather_facts({"folder": folder, "seen": path.exists()})
    if jax.process_index() == 0:
        path.unlink()
    blind = [n for n, facts in enumerate(facts_by_host) if not facts["seen"]]
    if blind:
        folders = [f"host {n} has {facts_by_host[n]['folder']}" for n in (0, *blind)]
        raise ValueError(
            f"--workdir is not the same folder on all hosts ({', '.join(folders)}). Give a path on "
            "a shared file system, or in a bucket."
        )


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], int]]:
    """Let SIGTERM or Ctrl-C to any host stop all of them after the same step.

    Yields:
      `stop_requested` of `Loop`: all hosts ask after every step, and get the same answer.
    """
    forwarded = False
    interrupt = stopping.EXIT_STATUS[signal.SIGINT]

    def stop_requested(step: int) -> int:
        nonlocal forwarded
        if stopping.requested() == interrupt and not forwarded:
            # The runtime catches SIGTERM alone, and agrees on a step for all to stop after.
            os.kill(os.getpid(), signal.SIGTERM)
            forwarded = True
        if not multihost_utils.reached_preemption_sync_point(step):
            return 0
        status = stopping.requested() or stopping.EXIT_STATUS[signal.SIGTERM]
        return int(multihost_utils.process_allgather(np.int32(status)).max())

    with stopping.deferred():
        yield stop_requested


def all_true(value: bool) -> bool:
    """Return whether `value` is True on all hosts, each of which calls this."""
    return bool(multihost_utils.process_allgather(np.int32(value)).all())


def _gather_facts(facts: Json) -> list[Json]:
    """Return the facts of every host, in their order. Collectives take arrays of one shape."""
    wait_for_all("facts")
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size, np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:size])) for row, size in zip(np.asarray(rows), sizes)]
