"""Memory that is freed stays with a command's process."""

import os
import subprocess
import sys

import pytest

from pe_jax.console import freed_memory

_GNU = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})

_FAULTS = """
import resource
from pe_jax.console.freed_memory import keep_freed_memory
{first}
block = lambda: bytearray(64 * 2**20)  # One that Python asks malloc for.
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(first: str, **env: str) -> int:
    """Pages that the system handed out for ten large blocks, one after the other."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return int(
        subprocess.run(
            [sys.executable, "-c", _FAULTS.format(first=first)],
            env=clean | env, capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip


@pytest.mark.skipif(not _GNU, reason="the C library is not GNU's")
def test_freed_blocks_are_used_again():
    blocks = 10 * 64 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert _faults("") > 0.5 * blocks
    assert _faults("keep_freed_memory()") < 0.01 * blocks
    asked = _faults("keep_freed_memory()", MALLOC_MMAP_THRESHOLD_="131072")
    assert asked > 0.5 * blocks  # The environment says otherwise.


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    freed_memory.keep_freed_memory()
