"""Huge pages of memory, which save 20 to 30 % of a training step on a CPU (docs/measurements.md).

XLA allocates its temporaries anew in each step, and Linux fills each page of 4 kB with zeros first.
The C library asks for pages of 2 MB if GLIBC_TUNABLES has them when a process starts, so a command
starts again.
"""

import os
import signal
import sys
from pathlib import Path

from pe_jax.console.stopping import EXIT_STATUS

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TUNABLE = "glibc.malloc.hugetlb"


def tunables(before: str) -> str:
    """Return GLIBC_TUNABLES with huge pages, as it is if it decides on them already."""
    return before if _TUNABLE in before else ":".join(filter(None, (before, f"{_TUNABLE}=1")))


def use() -> None:
    """Start this process again with huge pages, where Linux gives them on request; after `catch`.

    A command of its own only: not a debugger, nor a notebook or a test that runs a command. Where
    GLIBC_TUNABLES decides already, it stays: `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` refuses them.
    """
    is_command = sys.orig_argv[-len(sys.argv) :] == sys.argv and not sys.gettrace()
    if not is_command or not _SETTING.exists() or "[madvise]" not in _SETTING.read_text("ascii"):
        return
    before = os.environ.get("GLIBC_TUNABLES", "")
    after = os.environ["GLIBC_TUNABLES"] = tunables(before)
    # Signals wait while the new process has no handlers yet.
    how = signal.SIG_UNBLOCK if after == before else signal.SIG_BLOCK
    signal.pthread_sigmask(how, EXIT_STATUS)
    if after != before:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
