"""Cached folders, each made by one process at a time and verified when read.

A folder is made under a temporary name, gets the digests of its files, is flushed to disk and only
then renamed: a killed process leaves no half of it. A folder that does not match its digests any
more (a damaged disk, an edited file) is made again. Digests find damage, not intent: a cache that
others can write is as trusted as they are.

Not a library: those that cache on disk verify nothing that they read.

JAX's own cache of compiled programs, `cache_compiled_programs`, is in the same place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from pe_jax.common.files import cache_folder, flush_to_disk, lock, parse_json, sha256
from pe_jax.trainer.console.terminal import log

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
    # With the lock, no other process has it.
    new = folder.with_name(f".{folder.name}.unfinished")
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


def cache_compiled_programs() -> None:
    """Turn on JAX's persistent compilation cache, in the cache folder.

    `JAX_COMPILATION_CACHE_DIR` in the environment takes precedence, even if it is empty. A compiled
    program is code: whoever can write the cache can run code in this process.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = (cache_folder() / "compiled").absolute()
    try:
        if not folder.is_dir():
            private_folder(folder.parent)
            share_with_group(private_folder(folder), folder.parent)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        log(
            f"Compiled programs are not cached: {error}. Set PE_JAX_CACHE to use another folder."
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # All programs: the quickstart's 49 take one megabyte, and JAX's default would cache two.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
