"""File locks, which end with the process that holds them, however that ends."""

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


def process_name() -> str:
    """This process, as messages about its locks name it."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def lock(descriptor: int) -> bool:
    """Locks an open file or folder until this process closes it or ends; False if another has it.

    On file systems without locks nothing is locked, and the result is True.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # The file system has no locks, or none of folders.
        return True
    return True


def leads_to(path: Path, descriptor: int) -> bool:
    """True if `path` is still that of an open file or folder: neither removed nor replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def exclusive(folder: Path, longest: float = _LONGEST) -> Iterator[None]:
    """Waits until no other process is within this context for `folder`, and says for which.

    The lock is on a file next to the folder. File systems without locks let all in at once.

    Raises:
      ValueError: if that takes more than `longest` seconds; it names the process.
    """
    path = folder.with_name(f".{folder.name}.lock")
    deadline, holder = time.monotonic() + longest, ""
    while (descriptor := _locked(path)) is None:
        with contextlib.suppress(OSError):
            previous, holder = holder, path.read_text(encoding="utf-8") or holder
            if holder != previous:
                say(f"Waiting for {holder}, which is making {folder}.")
        if time.monotonic() > deadline:
            raise ValueError(
                f"{holder or 'Another process'} has been making {folder} for more than "
                f"{longest / 3600:g} h. Stop that process, then run the same command again."
            )
        time.sleep(_PAUSE)
    try:
        with contextlib.suppress(OSError):  # Another user's file, which cannot be written.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, process_name().encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor of the file, locked; None if another process has it."""
    descriptor = _open_for_all(path)
    # A file that is gone was removed by its holder, who was done: the next one is another file.
    if lock(descriptor) and leads_to(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _open_for_all(path: Path) -> int:
    """A descriptor of the file, made if it is missing, which all users may open and lock."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o666)  # The mode of `open` is subject to the umask.
        return descriptor
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:  # Of another user with other modes: it can be locked all the same.
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # Its holder was done in the meantime.
        return _open_for_all(path)
