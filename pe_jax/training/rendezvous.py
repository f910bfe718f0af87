"""Hosts wait for one another before JAX's runtime connects them.

The runtime ends a process that waits in vain with a stack dump, does not say who is missing, and
takes hosts that were told different numbers of hosts. So all report to host 0 first, on the port
that its coordinator takes over afterwards.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

_SECOND = 1.0
_LONGEST = 1_000  # Bytes of a message.


def meet(address: str, hosts: int, host: int, seconds: float) -> None:
    """Returns once all hosts are there.

    Args:
      address: HOST:PORT of host 0.
      seconds: how long to wait.

    Raises:
      ValueError: if not all come in that time, with those that are missing; if two have the same
        index, or another number of hosts.
    """
    until = time.monotonic() + seconds
    if host == 0:
        _gather(address, hosts, until, seconds)
    else:
        _report(address, hosts, host, until, seconds)


def _gather(address: str, hosts: int, until: float, seconds: float) -> None:
    """Host 0: waits for all others, and tells each of them how that went."""
    port = int(address.rpartition(":")[2])
    waiting: list[socket.socket] = []
    missing = {*range(1, hosts)}
    fault = ""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_server(port))
        except OSError as error:
            raise ValueError(
                f"Port {port} of --coordinator={address}: {error.strerror}."
            ) from error
        while missing and not fault:
            if time.monotonic() > until:
                named = ", ".join(map(str, sorted(missing)))
                fault = f"{len(missing)} of {hosts} hosts did not come in {seconds:g} s: {named}."
                break
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # Not one of ours.
                other = stack.enter_context(server.accept()[0])
                other.settimeout(_SECOND)
                said = json.loads(other.recv(_LONGEST))
                index, count = int(said["host"]), int(said["hosts"])
                if count != hosts:
                    fault = f"host 0 has --hosts={hosts}, host {index} has --hosts={count}."
                elif index not in missing:
                    fault = f"two hosts have --host={index}."
                waiting.append(other)
                missing.discard(index)
        for other in waiting:
            with contextlib.suppress(OSError):
                other.sendall(json.dumps(fault).encode())
        for other in waiting:  # They hang up first: the port is free again at once.
            with contextlib.suppress(OSError):
                other.recv(1)
    if fault:
        raise ValueError(f"The hosts did not find one another: {fault}")


def _server(port: int) -> socket.socket:
    """Takes connections on all addresses of this host, of both kinds where there are both."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    server.settimeout(_SECOND)
    return server


def _report(address: str, hosts: int, host: int, until: float, seconds: float) -> None:
    """Another host: tells host 0 that it is there, and waits for the answer."""
    name, _, port = address.rpartition(":")
    why = "nobody answers"
    while time.monotonic() < until:
        try:
            with socket.create_connection((name.strip("[]"), int(port)), _SECOND) as server:
                server.sendall(json.dumps({"host": host, "hosts": hosts}).encode())
                server.settimeout(max(_SECOND, until - time.monotonic() + 2 * _SECOND))
                answer = server.recv(_LONGEST)
                if answer:
                    if fault := json.loads(answer):
                        raise ValueError(f"The hosts did not find one another: {fault}")
                    return
                why = "it hung up"
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(_SECOND / 5)
    raise ValueError(
        f"The hosts did not find one another: host 0 was not at {address} in {seconds:g} s ({why})."
    )
