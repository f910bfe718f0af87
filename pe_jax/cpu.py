"""What the system says of the CPU: its name and instructions on Linux alone."""

from __future__ import annotations

import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cores() -> int:
    """How many this process may use: fewer than the machine's under `taskset` and the like."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def model() -> str:
    """The name of the processor; empty where it is not known."""
    return _fields().get("model name", "")


def instructions() -> frozenset[str]:
    """The extensions of its instructions, such as "avx512f"; empty where they are not known."""
    fields = _fields()
    return frozenset(fields.get("flags", fields.get("Features", "")).split())  # x86; ARM.


def _fields() -> dict[str, str]:
    """Of the last core, as all are alike."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
