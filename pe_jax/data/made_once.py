"""Folders of a cache that are made once, by whichever process comes first, and checked when read.

A folder is made under a temporary name, gets the digests of its files, is flushed to disk and only
then renamed: a killed run leaves no half of one. What does not have its digests any more (a damaged
disk, an edited file) is dropped and made again. A cache that others can write is as trusted as they
are: digests find damage, not intent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pe_jax.console.terminal import say
from pe_jax.data.in_turn import in_turn
from pe_jax.files import flush_to_disk, sha256
from pe_jax.leftovers import own_prefix, sweep

_DIGESTS = "sha256.json"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, written by `make(temporary folder)` unless it is there and undamaged.

    Where several processes need it, one makes it while the others wait.
    """
    if not _damaged(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(folder):
        damaged = _damaged(folder)
        if not damaged:  # It was made in the meantime.
            return folder
        if folder.exists():
            say(f"{folder / damaged} is not as it was written: dropped, and made again.")
            _drop(folder)
        sweep(folder.parent)
        temporary = _temporary(folder.parent)
        try:
            make(temporary)
            _seal(temporary)
            _rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _seal(folder: Path) -> None:
    """Writes the digests, and everything to disk."""
    names = sorted(path.name for path in folder.iterdir())
    digests = {name: sha256(folder / name) for name in names}
    (folder / _DIGESTS).write_text(json.dumps(digests, indent=2), encoding="utf-8")
    for path in (*(folder / name for name in (*names, _DIGESTS)), folder):
        flush_to_disk(path)


def _damaged(folder: Path) -> str:
    """The name of a file that is not as it was written; empty if there is none."""
    try:
        digests = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        wrong = (name for name, digest in digests.items() if sha256(folder / name) != digest)
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        return next(wrong, "" if there == {_DIGESTS, *digests} else _DIGESTS)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        return Path(error.filename).name
    except (ValueError, AttributeError):  # Not JSON, not text, or not an object.
        return _DIGESTS


def _rename(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        if not folder.exists():  # Otherwise another process has written the same content.
            raise


def _drop(folder: Path) -> None:
    """Removes a folder in one go for all who look for it; another process may have been first."""
    aside = _temporary(folder.parent)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, aside / folder.name)
    shutil.rmtree(aside, ignore_errors=True)


def _temporary(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=own_prefix(), dir=parent))
