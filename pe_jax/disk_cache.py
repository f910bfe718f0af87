"""Cached folders, each made by one process at a time and verified when read.

A folder is made under a temporary name, gets the digests of its files, is flushed to disk and only
then renamed: a killed process leaves no half of it. A folder that does not match its digests any
more (a damaged disk, an edited file) is made again. Digests find damage, not intent: a cache that
others can write is as trusted as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from pe_jax.console.terminal import say
from pe_jax.files import flush_to_disk, sha256
from pe_jax.locks import exclusive

_DIGESTS = "sha256.json"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns `folder`, written by `make(temporary folder)` unless it is there and undamaged.

    Where several processes need it, one makes it while the others wait.
    """
    if _damaged_file(folder) is None:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        damaged = _damaged_file(folder)
        if damaged is None:  # It was made in the meantime.
            return folder
        if folder.exists():
            say(f"{folder / damaged} is not as it was written: dropped, and made again.")
        remove_leftovers(folder.parent)
        with tempfile.TemporaryDirectory(
            prefix=temporary_prefix(), dir=folder.parent, ignore_cleanup_errors=True
        ) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            make(new)
            (new / _DIGESTS).write_text(json.dumps(_digests(new), indent=2), encoding="utf-8")
            for path in (*new.iterdir(), new):
                flush_to_disk(path)
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, Path(temporary, "damaged"))
            try:
                os.rename(new, folder)
            except OSError:
                if not folder.exists():  # Otherwise another process has written the same content.
                    raise
    return folder


def temporary_prefix() -> str:
    """The prefix of this process's temporary files and folders, see `remove_leftovers`."""
    return f"{_machine_prefix()}{os.getpid()}-"


def remove_leftovers(parent: Path) -> None:
    """Removes temporary files and folders that killed processes of this machine have left."""
    prefix = _machine_prefix()
    for path in parent.glob(f"{prefix}*"):
        process = path.name.removeprefix(prefix).partition("-")[0]
        if not process.isdecimal() or _is_running(int(process)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _digests(folder: Path) -> dict[str, str]:
    """The digest of each file of a folder by its name."""
    names = sorted(path.name for path in folder.iterdir())
    return {name: sha256(folder / name) for name in names if not name.startswith(".")}


def _damaged_file(folder: Path) -> str | None:
    """The name of a file that is not as it was written; None if there is none."""
    try:
        written = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        present = _digests(folder)
        del present[_DIGESTS]
        names = {**written, **present}
        return next((name for name in names if written.get(name) != present.get(name)), None)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, TypeError):
        return _DIGESTS  # Missing; or not JSON, not text, or not an object.


def _machine_prefix() -> str:
    return f".partial-{socket.gethostname()}-"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # Gone; or the number cannot be that of a process.
        return False
    except PermissionError:  # Of another user.
        return True
    return True
