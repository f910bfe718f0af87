"""Several hosts as one machine: each runs the same command and connects to the coordinator.

The coordinator is host 0, which notices when another is lost. All hosts stop after the same step.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import re
import secrets
import select
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
from jax.experimental import multihost_utils

import pe_jax
from pe_jax.console import stopping
from pe_jax.console.terminal import say
from pe_jax.files import Json, is_remote
from pe_jax.schema import Config, values_of

_WAIT = 300  # Seconds, for all hosts to start.
_START = 60  # Seconds, for the runtime of hosts that are all there.
_SECOND = 1.0
_LONGEST_MESSAGE = 1_000  # Bytes.
_MOST_NAMES = 20  # Of missing hosts in a message.
_VISIBLE = 5.0  # Seconds until a file of one host is there for all, on a network file system.


def connect(coordinator: str, hosts: int | None, host: int | None, lost_after: int) -> None:
    """Joins the other hosts; must come before any other use of the devices.

    Args:
      coordinator: host 0's address, `HOST:PORT`; "auto" finds all three on Cloud TPU pods, Slurm,
        Open MPI and Kubernetes.
      hosts, host: how many there are, and the index of this one.
      lost_after: seconds without a heartbeat after which a host counts as lost. The others then end
        with an error.

    Raises:
      ValueError: if the address is none, comes without the two numbers, or they are out of range,
        the hosts were told different numbers of hosts, or they do not find one another.
    """
    auto = coordinator == "auto"
    if auto != (hosts is None) or auto != (host is None):
        raise ValueError(
            "--coordinator=auto finds the hosts; an address HOST:PORT needs --hosts and --host, "
            f"got coordinator={coordinator!r}, hosts={hosts}, host={host}."
        )
    if not auto and not _is_address(coordinator):
        raise ValueError(
            "--coordinator is 'auto' or HOST:PORT of host 0, with a port from 1 to 65535, such as "
            f"10.0.0.1:8476 or [::1]:8476; got {coordinator!r}."
        )
    if hosts is not None and hosts < 1:
        raise ValueError(f"There is at least one host, got --hosts={hosts}.")
    if hosts is not None and host is not None and not 0 <= host < hosts:
        raise ValueError(f"Hosts are numbered 0 to {hosts - 1}, got --host={host}.")
    try:
        if hosts is not None and host is not None:
            wait_for_hosts(coordinator, hosts, host, _WAIT)
        jax.distributed.initialize(
            coordinator_address=None if auto else coordinator,
            coordinator_bind_address=None if auto else coordinator,
            num_processes=hosts,
            process_id=host,
            local_device_ids=_gpus_of_a_node() if auto else None,
            heartbeat_timeout_seconds=lost_after,
            initialization_timeout=_WAIT if auto else _START,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"The hosts did not find one another: {error}") from error
    stopping.release(signal.SIGTERM)  # The runtime has put a handler in the place of ours.
    check_devices([device.process_index for device in jax.devices()])


def check_devices(process_indices: Sequence[int]) -> None:
    """Makes sure that hosts have equally many devices: arrays of all hosts have equal parts.

    Args:
      process_indices: the host of each device.

    Raises:
      ValueError: if one has more than another.
    """
    counts = Counter(process_indices)
    if len(set(counts.values())) > 1:
        devices = ", ".join(f"host {host} has {counts[host]}" for host in sorted(counts))
        raise ValueError(
            f"The hosts have different numbers of devices ({devices}). Start it on equal hosts, or "
            "limit each to as many with JAX_LOCAL_DEVICE_IDS or CUDA_VISIBLE_DEVICES."
        )


# Where a host keeps its copy of the text, and how many processes read it, changes no result.
_OF_EACH_HOST = ("data.cache_dir", "data.workers")


def settings(config: Config) -> dict[str, str]:
    """Return the versions and the keys of a config that all hosts of a run must share."""
    versions = {module.__name__: module.__version__ for module in (pe_jax, jax, flax, optax)}
    keys = {
        f"config.{key}": repr(value)
        for key, value in values_of(config).items()
        if key not in _OF_EACH_HOST
    }
    return versions | keys


def agree(facts: Mapping[str, str]) -> None:
    """Compares what every host knows of the run, before it trains; every host has to call it.

    Hosts that differ would each apply its own settings: the results would be those of no config.

    Args:
      facts: by name; texts that are to be the same.

    Raises:
      ValueError: on every host, if one has another text or name; it says which differ.
    """
    facts_by_host = _gather_facts(dict(facts))
    names = dict.fromkeys(name for facts in facts_by_host for name in facts)
    different = [
        f"{name}: {', '.join(f'host {n} has {value}' for n, value in enumerate(values))}"
        for name in names
        if len(set(values := [facts.get(name, "none") for facts in facts_by_host])) > 1
    ]
    if different:
        raise ValueError(
            f"The hosts do not have the same settings ({'; '.join(different)}). Start all with the "
            "same command, on the same files and versions."
        )


def check_shared(workdir: Path) -> None:
    """Makes sure that all hosts write into the same folder; every host has to call it.

    The first host writes a file there, which the others look for. Equal paths can be different
    folders: a relative path, or local disks.

    Raises:
      ValueError: on every host, if one does not see the file.
    """
    (token, *_) = (facts["token"] for facts in _gather_facts({"token": secrets.token_hex(8)}))
    path = workdir / f".hosts-{token}"
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(token, encoding="utf-8")
    _gather_facts({})  # A barrier.
    deadline = time.monotonic() + _VISIBLE
    while not (visible := path.exists()) and time.monotonic() < deadline:
        time.sleep(_SECOND / 5)
    name = str(workdir if is_remote(workdir) else workdir.absolute())
    facts_by_host = _gather_facts({"folder": f"{name} on {socket.gethostname()}", "seen": visible})
    if jax.process_index() == 0:
        path.unlink()
    if blind := [n for n, facts in enumerate(facts_by_host) if not facts["seen"]]:
        folders = ", ".join(f"host {n} has {facts_by_host[n]['folder']}" for n in (0, *blind))
        raise ValueError(
            f"--workdir is not the same folder on all hosts ({folders}). Give a path on a file "
            "system that they share, or in a bucket."
        )


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], int]]:
    """Lets SIGTERM or Ctrl-C to any host stop all of them after the same step.

    Yields:
      `stop_requested(step)`: 0, or the exit status if the run is to stop after `step`. All hosts
      ask after every step, and get the same answer.
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


def wait_for_hosts(address: str, hosts: int, host: int, seconds: float) -> None:
    """Returns once all hosts are there.

    JAX's runtime ends a process that waits in vain with a stack dump, does not say who is missing,
    and takes hosts that were given different numbers of hosts. So all report to host 0 first, on
    the port that its coordinator takes over afterwards. A host that leaves while others are missing
    is missing again, and may come back.

    Neither checks who reports: whoever reaches the port can join the run.

    Args:
      address: HOST:PORT of host 0.
      seconds: how long to wait.

    Raises:
      ValueError: if not all come in that time, with those that are missing; if two have the same
        index, or another number of hosts.
    """
    name, _, port = address.rpartition(":")
    host_0 = (name.strip("[]"), int(port))
    if host == 0:
        fault = _collect_reports(host_0, hosts, seconds)
    else:
        answer, reason = _report(host_0, hosts, host, time.monotonic() + seconds)
        fault = f"host 0 was not at {address} in {seconds:g} s ({reason})."
        fault = json.loads(answer) if answer else fault
    if fault:
        raise ValueError(fault)


def _collect_reports(address: tuple[str, int], hosts: int, seconds: float) -> str:
    """Waits on host 0 for the reports of all others, and answers each with what went wrong.

    Returns:
      What went wrong; empty if all hosts are there.
    """
    deadline, fault = time.monotonic() + seconds, ""
    by_host, rejected = dict[int, socket.socket](), list[socket.socket]()
    with contextlib.ExitStack() as stack:
        try:
            servers = [stack.enter_context(server) for server in _listen(*address)]
        except OSError as error:
            return f"{address[0]}, port {address[1]}, of --coordinator: {error.strerror}."
        while missing := sorted({*range(1, hosts)} - by_host.keys()):
            if time.monotonic() > deadline:
                names = ", ".join(map(str, missing[:_MOST_NAMES]))
                more = f" and {len(missing) - _MOST_NAMES} more" * (len(missing) > _MOST_NAMES)
                fault = f"{len(missing)} of {hosts} hosts did not come in {seconds:g} s: {names}"
                fault += f"{more}."
                break
            readable, _, _ = select.select([*servers, *by_host.values()], [], [], _SECOND)
            for index in [n for n, connection in by_host.items() if connection in readable]:
                by_host.pop(index).close()  # Hosts report once: this one has hung up.
                say(f"Host {index} has left: waiting for it to start again.")
            server = next((server for server in servers if server in readable), None)
            if server is None:
                continue
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # Not one of ours.
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_SECOND)
                report = json.loads(connection.recv(_LONGEST_MESSAGE))
                index, count = int(report["host"]), int(report["hosts"])
                if count != hosts:
                    fault = f"host 0 has --hosts={hosts}, host {index} has --hosts={count}."
                elif index in by_host or not 0 < index < hosts:
                    fault = f"two hosts have --host={index}."
                if fault:
                    rejected.append(connection)
                    break
                by_host[index] = connection
        for connection in (*by_host.values(), *rejected):
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(fault).encode())
                connection.recv(1)  # They hang up first: the port is free again at once.
    return fault


def _listen(name: str, port: int) -> list[socket.socket]:
    """Listens at the addresses of a name, and says that whoever reaches them can join.

    Raises:
      OSError: if this machine has none of them, or no other machine reaches them.
    """
    servers, faults = list[socket.socket](), list[OSError]()
    for family, _, _, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        both = name == "::" and socket.has_dualstack_ipv6()
        try:
            if ipaddress.ip_address(address[0]).is_loopback and _is_name_of_machine(name):
                raise OSError(
                    errno.EADDRNOTAVAIL,
                    f"{name} is {address[0]} here, which no other machine reaches: give an address "
                    "of the network to all hosts, or on a single machine localhost",
                )
            servers.append(socket.create_server(address, family=family, dualstack_ipv6=both))
        except OSError as error:
            faults.append(error)
    if not servers:
        raise faults[0]
    say(
        f"Waiting for the other hosts at {name}, port {port}. Nothing checks who joins: keep the "
        "port within a private network."
    )
    return servers


def _is_name_of_machine(name: str) -> bool:
    """False for an address, and for localhost."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name != "localhost"
    return False


def _report(server: tuple[str, int], hosts: int, host: int, deadline: float) -> tuple[bytes, str]:
    """Reports to host 0, and waits for its answer.

    Returns:
      The answer, empty if none came, and why none did.
    """
    reason = "nobody answers"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(server, _SECOND) as connection:
                connection.sendall(json.dumps({"host": host, "hosts": hosts}).encode())
                connection.settimeout(max(_SECOND, deadline - time.monotonic() + 2 * _SECOND))
                reason = "it waits for others"
                if answer := connection.recv(_LONGEST_MESSAGE):
                    return answer, ""
                reason = "it hung up"
        except TimeoutError:
            pass
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(_SECOND / 5)
    return b"", reason


def _is_address(text: str) -> bool:
    """True for HOST:PORT, the host a name, an IPv4 address or one of IPv6 in brackets."""
    match = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{1,5})", text)
    return match is not None and 1 <= int(match[1]) <= 65535


def _gpus_of_a_node() -> list[int] | None:
    """All of them, under Slurm with one process a node: JAX would take the first alone there, as
    if there were one process for each. None leaves it to JAX."""
    tasks, nodes, gpus = (
        os.environ.get(f"SLURM_{name}") for name in ("NTASKS", "STEP_NUM_NODES", "GPUS_ON_NODE")
    )
    if tasks is None or tasks != nodes or not gpus or "JAX_LOCAL_DEVICE_IDS" in os.environ:
        return None
    return list(range(int(gpus)))


def _gather_facts(facts: Json) -> list[Json]:
    """The facts of every host, in their order. Collectives take arrays of one shape."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size, np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:size])) for row, size in zip(np.asarray(rows), sizes)]
