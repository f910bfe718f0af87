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


def use() -> None:
    """Start this process again with huge pages, where Linux gives them on request.

    A command of its own only: not a debugger, nor a notebook or a test that runs a command. Where
    GLIBC_TUNABLES decides already, it stays: `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` refuses them.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    on_request = _SETTING.exists() and "[madvise]" in _SETTING.read_text(encoding="ascii")
    is_command = sys.orig_argv[-len(sys.argv) :] == sys.argv and not sys.gettrace()
    if on_request and is_command and _TUNABLE not in tunables:
        signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_STATUS)  # Until `stopping.catch`.
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
