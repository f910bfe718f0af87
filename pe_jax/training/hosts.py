"""Several hosts as one machine: each runs the same command and connects to the coordinator.

The coordinator is host 0, which notices when another is lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from pe_jax.console.terminal import be_quiet
from pe_jax.training.rendezvous import meet

_WAIT = 300  # Seconds, for all hosts to start.


def _is_address(text: str) -> bool:
    """Whether it is HOST:PORT, the host a name, an IPv4 address or one of IPv6 in brackets."""
    found = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{1,5})", text)
    return found is not None and 1 <= int(found[1]) <= 65535


def _gpus_of_a_node() -> list[int] | None:
    """All of them, under Slurm with one process a node: JAX would take the first alone there, as
    if there were one process for each. None leaves it to JAX."""
    tasks, nodes, gpus = (
        os.environ.get(f"SLURM_{name}") for name in ("NTASKS", "STEP_NUM_NODES", "GPUS_ON_NODE")
    )
    if tasks is None or tasks != nodes or not gpus or "JAX_LOCAL_DEVICE_IDS" in os.environ:
        return None
    return list(range(int(gpus)))


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
    if hosts is not None and host is not None:
        meet(coordinator, hosts, host, _WAIT)
    try:
        jax.distributed.initialize(
            coordinator_address=None if auto else coordinator,
            num_processes=hosts,
            process_id=host,
            local_device_ids=_gpus_of_a_node() if auto else None,
            heartbeat_timeout_seconds=lost_after,
            initialization_timeout=_WAIT,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"The hosts did not find one another: {error}") from error
    if jax.process_index() > 0:
        be_quiet()


def agree(facts: Mapping[str, str]) -> None:
    """Compares what every host knows of the run, before it trains; every host has to call it.

    Hosts that differ would train together and each apply its own settings: the results would be
    those of no config.

    Args:
      facts: by name; texts that are to be the same.

    Raises:
      ValueError: on every host, if one has another text or name; it says which differ.
    """
    if jax.process_count() == 1:
        return
    every = _gathered(dict(facts))
    names = dict.fromkeys(name for of_host in every for name in of_host)
    different = [
        f"{name}: {', '.join(f'host {n} has {value}' for n, value in enumerate(values))}"
        for name in names
        if len(set(values := [of_host.get(name, "none") for of_host in every])) > 1
    ]
    if different:
        raise ValueError(
            f"The hosts do not have the same settings ({'; '.join(different)}). Start all with the "
            "same command, on the same files and versions."
        )


def _gathered(facts: dict[str, str]) -> list[dict[str, str]]:
    """The facts of every host, in their order. Collectives take arrays of one shape."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size, np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:size])) for row, size in zip(np.asarray(rows), sizes)]
