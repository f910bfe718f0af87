"""File locks, which end with the process that holds them, however that ends.

Not `filelock`: it leaves its files behind, does not say who holds one, and cannot take the lock of
a killed process of another user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pe_jax.console.terminal import log

_LONGEST = 24 * 3600.0  # Seconds; some gigabytes of text take an hour.
_PAUSE = 0.2
_LONGEST_NAME = 200  # Bytes.


def lock(descriptor: int) -> bool | None:
    """Lock an open file or folder until this process closes it or ends.

    Returns:
      False if another process has it; None if the file system has no locks, or none of folders.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def leads_to(path: Path, descriptor: int) -> bool:
    """Return True if `path` is still that of an open file or folder: not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def open_lock(path: Path, *, for_all: bool = False) -> int:
    """Return a descriptor of a lock file, which is created if it is missing.

    Args:
      for_all: a new file can be opened and locked by every user, whatever the umask.

    Raises:
      OSError: if the path is anything but a regular file with a single name. Signing what a link
        leads to would overwrite it.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK  # A pipe would wait for a reader.
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if for_all:
            os.fchmod(descriptor, 0o666)
        return descriptor
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_RDWR)
    except PermissionError:  # Of another user with other modes: it can be locked all the same.
        descriptor = os.open(path, flags | os.O_RDONLY)
    except FileNotFoundError:  # Its holder was done in the meantime.
        return open_lock(path, for_all=for_all)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(f"{path} is a symbolic link, not a lock file: remove it.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(f"{path} is not a lock file, or has a second name: remove it.")
    return descriptor


def sign(descriptor: int) -> None:
    """Write the name of this process into a lock file; another user's may be read-only."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def signature(descriptor: int) -> str:
    """Return the name of the process that has signed a lock file; empty if there is none."""
    return " ".join(os.pread(descriptor, _LONGEST_NAME, 0).decode("utf-8", "replace").split())


@contextlib.contextmanager
def exclusive(folder: Path, longest: float = _LONGEST) -> Iterator[None]:
    """Wait until no other process is within this context for `folder`, and log for which.

    The lock is on a file next to the folder. File systems without locks let all in at once.

    Raises:
      ValueError: if that takes more than `longest` seconds; it names the process.
      OSError: if the lock file cannot be opened, see `open_lock`.
    """
    path = folder.with_name(f".{folder.name}.lock")
    deadline, holder = time.monotonic() + longest, ""
    while True:
        descriptor = open_lock(path, for_all=True)
        if lock(descriptor) is not False:
            # A file that is gone was removed by its holder, who was done: the next is another file.
            if leads_to(path, descriptor):
                break
        elif (name := signature(descriptor)) not in ("", holder):
            holder = name
            log(f"Waiting for {holder}, which is making {folder}.")
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise ValueError(
                f"{holder or 'Another process'} has been making {folder} for more than "
                f"{longest / 3600:g} h. Stop that process, then run the same command again."
            )
        time.sleep(_PAUSE)
    try:
        sign(descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)
