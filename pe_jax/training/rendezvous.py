"""Hosts that meet before a run, so that a missing one is named.

Not `jax.distributed.initialize` alone: where a host is missing, it ends the others with a stack
dump that names none (jax 0.10 and 0.12).
"""

from __future__ import annotations

import contextlib
import re
import socket
import time

from pe_jax.console.terminal import log

_SECOND = 1.0
_REPORT = re.compile(rb"host (\d{1,6}) of (\d{1,6})\n")
_LONGEST_MESSAGE = 1_000  # Bytes.
_MOST_NAMES = 20  # Of missing hosts in a message.


def _split(address: str) -> tuple[str, int]:
    name, _, port = address.rpartition(":")
    return name.strip("[]"), int(port)


def wait_for_hosts(address: str, hosts: int, host: int, seconds: float) -> None:
    """Return once all hosts are there.

    All report to host 0, on the port that JAX's coordinator takes over afterwards. What is no
    report is ignored. Nothing checks who reports.

    Args:
      address: HOST:PORT of host 0, where it listens.
      seconds: how long to wait.

    Raises:
      ValueError: if not all come in that time, with those that are missing.
    """
    if hosts == 1:
        return
    if host == 0:
        fault = _collect_reports(address, hosts, seconds)
    else:
        fault = _report(address, hosts, host, seconds)
    if fault:
        raise ValueError(fault)


def _collect_reports(address: str, hosts: int, seconds: float) -> str:
    """Wait on host 0 for the reports of all others, and answer each with what went wrong.

    Returns:
      The answer, empty if all hosts are there.
    """
    (name, port), deadline = _split(address), time.monotonic() + seconds
    connections = dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        try:
            family, *_, place = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
            server = socket.create_server(place, family=family)
        except OSError as error:
            return f"{name}, port {port}, of --coordinator: {error.strerror}."
        stack.enter_context(server).settimeout(_SECOND)
        log(
            f"Waiting for the other hosts at {name}, port {port}. Nothing checks who joins: keep "
            "the port within a private network."
        )
        while missing := sorted({*range(1, hosts)} - connections.keys()):
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(OSError):  # Time-outs are such errors, too.
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_SECOND)
                report = _REPORT.fullmatch(connection.recv(_LONGEST_MESSAGE))
                if report and 0 < int(report[1]) < int(report[2]) == hosts:
                    connections[int(report[1])] = connection  # Instead of one that has restarted.
                else:  # Not one of ours.
                    connection.close()
        fault = ""
        if missing:
            names = ", ".join(map(str, missing[:_MOST_NAMES]))
            more = f" and {len(missing) - _MOST_NAMES} more" * (len(missing) > _MOST_NAMES)
            fault = f"{len(missing)} of {hosts} hosts did not come in {seconds:g} s: {names}{more}."
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{fault}\n".encode())
                connection.recv(1)  # They hang up first: the port is free again at once.
    return fault


def _report(address: str, hosts: int, host: int, seconds: float) -> str:
    """Report to host 0; return its answer, see `_collect_reports`, or that none came."""
    reason, deadline = "nobody answers", time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(_split(address), _SECOND) as connection:
                connection.sendall(f"host {host} of {hosts}\n".encode())
                connection.settimeout(max(_SECOND, deadline - time.monotonic() + 2 * _SECOND))
                reason = "it waits for others"
                if (answer := connection.recv(_LONGEST_MESSAGE)).endswith(b"\n"):
                    return answer.decode("utf-8", "replace").strip()
                reason = "it hung up: it has another --hosts, or is another program"
        except TimeoutError:
            pass
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(_SECOND / 5)
    return f"host 0 was not at {address} in {seconds:g} s ({reason})."
