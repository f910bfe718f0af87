"""Cached folders, each made by one process at a time and verified when read.

A folder is made under a temporary name, gets the digests of its files, is flushed to disk and only
then renamed: a killed process leaves no half of it. A folder that does not match its digests any
more (a damaged disk, an edited file) is made again. Digests find damage, not intent: a cache that
others can write is as trusted as they are.

Not a library: those that cache on disk verify nothing that they read, and share no work among
processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pe_jax.console.terminal import log
from pe_jax.files import flush_to_disk, parse_json, sha256
from pe_jax.locks import exclusive, leads_to, lock

DIGESTS = "sha256.json"
_UNFINISHED = ".unfinished-"
_DAY = 24 * 3600.0


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, written by `make(temporary folder)` unless it is there and undamaged.

    Where several processes need it, one makes it while the others wait.

    Raises:
      OSError: if it cannot be read or written.
    """
    try:
        if damaged_file(folder) is not None:
            private_folder(folder.parent)
            write_folder(folder, make)
    except OSError as error:
        raise OSError(
            f"{folder} cannot be read or created: {error}. Set PE_JAX_CACHE to use another folder "
            "for caches."
        ) from error
    return folder


def write_folder(folder: Path, make: Callable[[Path], None]) -> None:
    """Write `folder` by `make(temporary folder)`, unless another process has done so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        damaged = damaged_file(folder)
        if damaged is None:  # It was made in the meantime.
            return
        if folder.exists():
            log(f"{folder / damaged} is damaged; it was deleted and is recomputed.")
        remove_leftovers(folder.parent)
        with temporary_folder(folder.parent) as temporary:
            new = temporary / "new"
            new.mkdir()
            make(new)
            share_with_group(new, folder.parent)
            (new / DIGESTS).write_text(json.dumps(_digests(new), indent=2), encoding="utf-8")
            for path in (*new.iterdir(), new):
                flush_to_disk(path)
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, temporary / "damaged")
            try:
                os.rename(new, folder)
            except OSError:
                if not folder.exists():  # Otherwise another process has written the same content.
                    raise


def private_folder(folder: Path) -> Path:
    """Return a folder, which only its user may read if it is new."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    return folder


def share_with_group(folder: Path, parent: Path) -> None:
    """Let the group of `parent` do in a new folder what it may do there, if it has the setgid bit:
    then the folder is of the same group."""
    mode = parent.stat().st_mode
    if mode & stat.S_ISGID:
        os.chown(folder, -1, parent.stat().st_gid)
        folder.chmod(folder.stat().st_mode | stat.S_ISGID | (mode & stat.S_IRWXG))


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent`, removed at the end of the context.

    It is locked until then: that of a killed process is not, and `remove_leftovers` finds it. Names
    of hosts and numbers of processes would not tell containers apart.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))
        descriptor = os.open(folder, os.O_RDONLY)
        if lock(descriptor) is not False and leads_to(folder, descriptor):
            break
        os.close(descriptor)  # Another process took it for a leftover before it was locked.
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(parent: Path) -> None:
    """Remove temporary folders that killed processes have left; without locks, after a day."""
    for folder in parent.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):  # Another user's, or removed in the meantime.
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                is_locked, age = lock(descriptor), time.time() - folder.stat().st_mtime
                if is_locked or (is_locked is None and age > _DAY):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of a folder by its name."""
    names = sorted(path.name for path in folder.iterdir())
    return {name: sha256(folder / name) for name in names if not name.startswith(".")}


def damaged_file(folder: Path) -> str | None:
    """Return the name of a file that is not as it was written; None if there is none."""
    try:
        written = parse_json((folder / DIGESTS).read_text(encoding="utf-8"))
        present = _digests(folder)
        del present[DIGESTS]
        names = {**written, **present}
        return next((name for name in names if written.get(name) != present.get(name)), None)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError, TypeError):
        return DIGESTS  # Missing; or not JSON, not text, or not an object.
