"""One process at a time makes a folder of a cache, also where several hosts share it.

Who makes it holds a lock on a file next to it, which ends with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from pe_jax.console.terminal import say

_LONGEST = 24 * 3600.0  # Seconds; some gigabytes of text take an hour.
_PAUSE = 0.2


@contextlib.contextmanager
def in_turn(folder: Path, longest: float = _LONGEST) -> Iterator[None]:
    """Waits until no other process is within this context for `folder`, and says for which.

    File systems without locks let all in at once.

    Raises:
      ValueError: if that takes more than `longest` seconds; it names the process.
    """
    path = folder.with_name(f".{folder.name}.lock")
    until = time.monotonic() + longest
    waiting_for = ""
    while (lock := _lock(path)) is None:
        with contextlib.suppress(OSError):
            holder = path.read_text(encoding="utf-8")
            if holder and holder != waiting_for:
                say(f"Waiting for {holder}, which is making {folder}.")
                waiting_for = holder
        if time.monotonic() > until:
            raise ValueError(
                f"{waiting_for or 'Another process'} has been making {folder} for more than "
                f"{longest / 3600:g} h: end it, and the same command goes on."
            )
        time.sleep(_PAUSE)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor of the file, locked; None if another process has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:  # This file system has no locks.
        return lock
    try:
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except FileNotFoundError:
        pass
    os.close(lock)  # Its holder removed it when it was done: the next one is another file.
    return None
