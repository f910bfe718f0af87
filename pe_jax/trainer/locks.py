"""File locks, which end with the process that holds them, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pe_jax.trainer.console.terminal import log


class NoLocksError(OSError):
    """The file system has no locks."""


def lock(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file, which is created if it is missing, and stays.

    Returns:
      An open descriptor, which has the lock until it is closed or this process ends; None if
      another process has it.

    Raises:
      OSError: if the file cannot be opened, such as a link; `NoLocksError`.
    """
    flags = (
        os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    )  # A pipe would wait for a reader.
    try:
        descriptor = os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:  # Of another user: it can be locked all the same.
        descriptor = os.open(path, flags | os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise NoLocksError(
            error.errno, "the file system has no locks", str(path)
        ) from error
    return descriptor


def leads_to(path: Path, descriptor: int) -> bool:
    """Return True if `path` is still that of an open file: not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Wait until no other process is within this context for `folder`.

    The lock is on a file next to the folder.

    Raises:
      OSError: see `lock`.
    """
    path = folder.with_name(f".{folder.name}.lock")
    descriptor = lock(path)
    if descriptor is None:
        log(
            f"Waiting for another process, which is making {folder} (fuser {path} names it)."
        )
        descriptor = lock(path, wait=True)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)
