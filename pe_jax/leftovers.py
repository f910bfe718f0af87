"""Temporary files and folders of a cache: whose they are is in their names, so that what killed
processes have left is found and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

_PARTIAL = ".partial-"


def own_prefix() -> str:
    """How the names of this process's temporary files begin."""
    return f"{_of_this_machine()}{os.getpid()}-"


def sweep(parent: Path) -> None:
    """Removes temporary files and folders of processes of this machine that do not run any more."""
    own = _of_this_machine()
    for path in parent.glob(f"{own}*"):
        number = path.name.removeprefix(own).partition("-")[0]
        if not number.isdecimal() or _runs(int(number)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _of_this_machine() -> str:
    return f"{_PARTIAL}{socket.gethostname()}-"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # Another user's; or the number cannot be one.
        return True
    return True
