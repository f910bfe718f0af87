"""Huge pages of memory, which save 20 to 30 % of a training step on a CPU (docs/measurements.md).

XLA allocates its temporaries anew in each step, and Linux fills each page of 4 kB with zeros first.
The C library asks for pages of 2 MB if GLIBC_TUNABLES has them when a process starts, so a command
starts again. Where that may not be the same command again, it does without.
"""

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pe_jax.trainer.console.stopping import EXIT_STATUS

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TUNABLE = "glibc.malloc.hugetlb"
_STARTED_AGAIN = "PE_JAX_STARTED_AGAIN"  # The id of the process.

# Options of Python that leave the script to run to the argument after them, unlike -c and -m.
_OPTION = re.compile(r"-[bBdEiIOPqRsSuvx]+|-[XW].+")
_OPTIONS_WITH_VALUE = {"-X", "-W", "--check-hash-based-pycs"}


def tunables(before: str) -> str:
    """Return GLIBC_TUNABLES with huge pages, as it is if it decides on them already."""
    if _TUNABLE in before:
        return before
    setting = f"{_TUNABLE}=1"
    return f"{before}:{setting}" if before else setting


def use() -> None:
    """Start this process again with huge pages, where Linux gives them on request; after `catch`.

    A command of its own only: not a debugger, nor a notebook or a test that runs a command. Where
    GLIBC_TUNABLES decides already, it stays: `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` refuses them.
    """
    if not _SETTING.exists() or "[madvise]" not in _SETTING.read_text("ascii"):
        return
    process = str(os.getpid())
    if os.environ.get(_STARTED_AGAIN) == process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, EXIT_STATUS)
        return  # Also where the C library has removed GLIBC_TUNABLES, as for a privileged Python.
    before = os.environ.get("GLIBC_TUNABLES", "")
    after = tunables(before)
    if after == before or not _starts_equally():
        return
    environment = {**os.environ, "GLIBC_TUNABLES": after, _STARTED_AGAIN: process}
    # Signals wait while the new process has no handlers yet.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_STATUS)
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:  # Such as too long an environment.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _starts_equally() -> bool:
    """True if this process runs a script, and the same arguments start it again."""
    if not sys.argv or sys.gettrace():
        return False
    count = len(sys.argv)
    options, arguments = sys.orig_argv[1:-count], sys.orig_argv[-count:]
    if arguments != sys.argv or not _are_options(options):
        return False
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    try:
        # What was read from standard input or a pipe is gone, and a script in an archive is no
        # file.
        if not os.path.isfile(sys.argv[0]):
            return False
        if not os.path.samefile(sys.argv[0], script):
            return False
        # `sys.executable` is a guess from the name that the process was started under.
        return os.path.samefile(sys.executable or "", "/proc/self/exe")
    except OSError:
        return False


def _are_options(arguments: Sequence[str]) -> bool:
    """True if Python takes the argument after these for a script."""
    rest = iter(arguments)
    for argument in rest:
        if argument in _OPTIONS_WITH_VALUE:
            next(rest, "")
        elif not _OPTION.fullmatch(argument):
            return False
    return True
