"""Several hosts as one machine: each runs the same command, and they find one another.

One of them, host 0, is the coordinator: the others connect to it, and it hears when one is lost.
"""

from __future__ import annotations

import jax

from pe_jax.console.terminal import be_quiet


def connect(coordinator: str, hosts: int | None, host: int | None, lost_after: int) -> None:
    """Joins the other hosts; before anything else is asked of the devices.

    Args:
      coordinator: host 0's address, `HOST:PORT`; "auto" finds all three on Cloud TPU pods, Slurm,
        Open MPI and Kubernetes.
      hosts, host: how many there are, and the number of this one.
      lost_after: seconds after which a host that is not heard of counts as lost. The others then
        end with an error.

    Raises:
      ValueError: if an address comes without the two numbers, or they make no sense, or the hosts
        do not find one another.
    """
    auto = coordinator == "auto"
    if auto != (hosts is None) or auto != (host is None):
        raise ValueError(
            "--coordinator=auto finds the hosts; an address HOST:PORT needs --hosts and --host, "
            f"got coordinator={coordinator!r}, hosts={hosts}, host={host}."
        )
    if hosts is not None and host is not None and not 0 <= host < hosts:
        raise ValueError(f"Hosts are numbered 0 to {hosts - 1}, got --host={host}.")
    try:
        jax.distributed.initialize(
            coordinator_address=None if auto else coordinator,
            num_processes=hosts,
            process_id=host,
            heartbeat_timeout_seconds=lost_after,
            initialization_timeout=300,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"The hosts did not find one another: {error}") from error
    if jax.process_index() > 0:
        be_quiet()
