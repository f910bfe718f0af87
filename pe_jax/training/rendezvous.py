"""Hosts that meet before a run: where the first one is, and who is missing.

Not `jax.distributed.initialize` alone: where a host is missing, it ends the others with a stack
dump that names none (jax 0.10 and 0.12).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import select
import socket
import time
from collections.abc import Sequence

from pe_jax.console.terminal import log
from pe_jax.files import parse_json

_SECOND = 1.0
_LONGEST_MESSAGE = 1_000  # Bytes.
_MOST_NAMES = 20  # Of missing hosts in a message.


def find_cluster(seconds: int) -> tuple[str, int, int, Sequence[int] | None]:
    """Return what the scheduler of a cluster tells this process about its run.

    Args:
      seconds: how long to wait until the name of the first host is known.

    Returns:
      HOST:PORT of host 0, the number of hosts, the index of this one, and the devices of this
      process (None: all that it sees).

    Raises:
      ValueError: if there is no scheduler that JAX knows, or it does not tell all of it.
    """
    by_hand = "Give --coordinator=HOST:PORT of host 0, --hosts and --host instead."
    try:
        # JAX has no public function for this. Its `initialize` does not say who is missing.
        from jax._src.clusters import ClusterEnv

        address, hosts, host, devices = ClusterEnv.auto_detect_unset_distributed_params(
            os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, _local_devices(), None, seconds
        )
    except Exception as error:  # Each scheduler raises its own.
        fault = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"--coordinator=auto cannot read the cluster's settings ({fault}). {by_hand}"
        ) from error
    if address is None or hosts is None or host is None:
        raise ValueError(
            "--coordinator=auto finds no cluster: this process was started by none of Cloud TPU, "
            "Slurm (srun), Open MPI (mpirun) and Kubernetes (with the Python package kubernetes). "
            + by_hand
        )
    return address, hosts, host, devices


def _local_devices() -> list[int] | None:
    """Return the devices of this process that JAX would not find; None leaves it to JAX.

    Under Slurm with one process a node these are all GPUs of the node: JAX would take the first.
    """
    if ids := os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return [int(number) for number in ids.split(",")]
    tasks, nodes, gpus = (
        os.environ.get(f"SLURM_{name}") for name in ("NTASKS", "STEP_NUM_NODES", "GPUS_ON_NODE")
    )
    return list(range(int(gpus))) if tasks is not None and tasks == nodes and gpus else None


def all_interfaces(address: str) -> str:
    """Return where host 0 of a cluster listens: at the port of `address`, as JAX does."""
    everywhere = "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"
    port = address.rpartition(":")[2]
    return os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"{everywhere}:{port}")


def _split(address: str) -> tuple[str, int]:
    name, _, port = address.rpartition(":")
    return name.strip("[]"), int(port)


def wait_for_hosts(
    address: str, hosts: int, host: int, seconds: float, listen_at: str | None = None
) -> None:
    """Return once all hosts are there.

    All report to host 0, on the port that JAX's coordinator takes over afterwards. A host that
    leaves while others are missing may come back. What is no report is ignored. Nothing checks who
    reports.

    Args:
      address: HOST:PORT of host 0.
      seconds: how long to wait.
      listen_at: ADDRESS:PORT at which host 0 listens; defaults to `address`.

    Raises:
      ValueError: if not all come in that time, with those that are missing; if two have the same
        index, or another number of hosts.
    """
    if hosts == 1:
        return
    if host == 0:
        fault = _collect_reports(_split(listen_at or address), hosts, seconds)
    else:
        fault = _report(address, hosts, host, seconds)
    if fault:
        raise ValueError(fault)


def _collect_reports(address: tuple[str, int], hosts: int, seconds: float) -> str:
    """Wait on host 0 for the reports of all others; answer each with what went wrong, and return
    it: empty if all hosts are there."""
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
                log(f"Host {index} has left: waiting for it to start again.")
            server = next((server for server in servers if server in readable), None)
            if server is None:
                continue
            with contextlib.suppress(OSError):
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_SECOND)
                match _message(connection):
                    case {"host": int(index), "hosts": int(count)} if 0 <= index < count:
                        pass
                    case _:  # Not one of ours.
                        connection.close()
                        continue
                if count != hosts:
                    fault = f"host 0 has --hosts={hosts}, host {index} has --hosts={count}."
                elif index in by_host or index == 0:
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
    """Listen at the addresses of a name, and say that whoever reaches them can join; OSError if
    this machine has none of them, or no other machine reaches them."""
    servers, errors = list[socket.socket](), list[OSError]()
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
            errors.append(error)
    if not servers:
        raise errors[0]
    log(
        f"Waiting for the other hosts at {name}, port {port}. Nothing checks who joins: keep the "
        "port within a private network."
    )
    return servers


def _is_name_of_machine(name: str) -> bool:
    """Return False for an address, and for localhost."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name != "localhost"
    return False


def _message(connection: socket.socket) -> object:
    """Return the JSON value that the other side sends; None if it sends something else."""
    try:
        return parse_json(connection.recv(_LONGEST_MESSAGE).decode())
    except ValueError:
        return None


def _report(address: str, hosts: int, host: int, seconds: float) -> str:
    """Report to host 0; return its answer, see `_collect_reports`, or that none came."""
    reason, deadline = "nobody answers", time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(_split(address), _SECOND) as connection:
                connection.sendall(json.dumps({"host": host, "hosts": hosts}).encode())
                connection.settimeout(max(_SECOND, deadline - time.monotonic() + 2 * _SECOND))
                reason = "it waits for others"
                if isinstance(answer := _message(connection), str):
                    return answer
                reason = "it hung up, or is another program"
        except TimeoutError:
            pass
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(_SECOND / 5)
    return f"host 0 was not at {address} in {seconds:g} s ({reason})."
