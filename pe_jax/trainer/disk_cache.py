"""Cached folders, each made by one process at a time and verified when read.

A folder is made under a temporary name, gets the digests of its files, is flushed to disk and only
then renamed: a killed process leaves no half of it. A folder that does not match its digests any
more (a damaged disk, an edited file) is made again. Digests find damage, not intent: a cache that
others can write is as trusted as they are.

Not a library: those that cache on disk verify nothing that they read.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from pe_jax.common.files import flush_to_disk, parse_json, sha256
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.locks import exclusive

DIGESTS = "sha256.json"


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
    new = folder.with_name(
        f".{folder.name}.unfinished"
    )  # With the lock, no other process has it.
    with exclusive(folder):
        damaged = damaged_file(folder)
        if damaged is None:  # It was made in the meantime.
            return
        if folder.exists():
            log(f"{folder / damaged} is damaged; it was deleted and is recomputed.")
        shutil.rmtree(new, ignore_errors=True)  # A killed process has left it.
        new.mkdir()
        try:
            make(new)
            share_with_group(new, folder.parent)
            (new / DIGESTS).write_text(
                json.dumps(_digests(new), indent=2), encoding="utf-8"
            )
            for path in (*new.iterdir(), new):
                flush_to_disk(path)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)


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


def _digests(folder: Path) -> dict[str, str]:
    names = sorted(path.name for path in folder.iterdir())
    return {name: sha256(folder / name) for name in names if not name.startswith(".")}


def damaged_file(folder: Path) -> str | None:
    """Return the name of a file that is not as it was written; None if there is none."""
    try:
        written = parse_json((folder / DIGESTS).read_text(encoding="utf-8"))
        present = _digests(folder)
        del present[DIGESTS]
        names = {**written, **present}
        return next(
            (name for name in names if written.get(name) != present.get(name)), None
        )
    except (
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        ValueError,
        TypeError,
    ):
        return DIGESTS  # Missing; or not JSON, not text, or not an object.
