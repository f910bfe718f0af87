"""The CPU: its cores, and on Linux its name and instructions."""

import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Return the number of cores that this process may use, which `taskset` reduces."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def model() -> str:
    """Return the name of the processor; empty where it is not known."""
    return _fields().get("model name", "")


def instructions() -> frozenset[str]:
    """Return the extensions of its instructions, such as "avx512f"; empty where not known."""
    fields = _fields()
    names = fields.get("flags") or fields.get("Features") or ""  # x86; ARM.
    return frozenset(names.split())


def multiplies_bfloat16() -> bool:
    """Return whether the CPU has such instructions; True if that is not known."""
    extensions = instructions()
    # x86: tiles, vectors; "bf16" is ARM's (docs/measurements.md).
    return not extensions or bool({"amx_bf16", "avx512_bf16", "bf16"} & extensions)


def _fields() -> dict[str, str]:
    """Return what Linux reports of the last core, as all are alike."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in lines)
    }
