"""Compiled programs, cached between runs.

Not JAX's settings alone: its cache verifies nothing that it reads, and never replaces an entry. A
cut one is compiled again at every start, one with a wrong bit may end the process. It reads and
writes through paths of etils, which can be of a kind of our own: here one that verifies content.

A digest finds damage, not intent: a compiled program is code, so whoever can write the cache can
run code in this process. Share it only with whom you trust.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path

import jax
from etils import epath
from etils.epath.gpath import PosixGPath

from pe_jax.console.terminal import log
from pe_jax.disk_cache import (
    private_folder,
    remove_leftovers,
    share_with_group,
    temporary_folder,
)
from pe_jax.files import cache_folder, flush_to_disk

# Every program is cached: the quickstart's 49 take one megabyte. JAX's default of 1.0 would cache
# two of them, and which ones a limit in seconds caches depends on how busy the machine is.
_MIN_COMPILE_SECONDS = 0.0

_SCHEME = "verified://"
_DIGEST_SIZE = hashlib.sha256().digest_size


def cache_compiled_programs() -> None:
    """Turns on JAX's persistent compilation cache, in the cache folder.

    `JAX_COMPILATION_CACHE_DIR` in the environment has precedence, even if empty: a cache given
    there is JAX's own, where nothing is verified. If the folder cannot be written, a message says
    so and nothing is cached. Machines may share it: JAX's key of a program includes versions,
    compiler flags and the kind of device, for a CPU all its features.
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
        log(f"Compiled programs are not cached: {error}. Set PE_JAX_CACHE to use another folder.")
        return
    remove_leftovers(folder)
    jax.config.update("jax_compilation_cache_dir", f"{_SCHEME}{folder}")
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)


@epath.register_path_cls(_SCHEME)
class VerifiedPath(PosixGPath):
    """A local path, `verified://` and an absolute one, whose files end with a digest of the rest.

    They appear whole, and on disk, or not at all. One that is damaged does not exist: it is removed
    where something asks for it.
    """

    # As in etils: what makes a path from its parts differs between versions of Python.
    if sys.version_info < (3, 12):

        def __new__(cls, *parts: str | os.PathLike[str]) -> VerifiedPath:
            return super().__new__(cls, *map(_without_scheme, parts))

    else:

        def __init__(self, *parts: str | os.PathLike[str]) -> None:
            super().__init__(*map(_without_scheme, parts))

    def exists(self) -> bool:
        path = Path(os.fspath(self))
        if path.is_dir():
            return True
        try:
            self.read_bytes()
        except FileNotFoundError:
            return False
        except PermissionError:
            _say_once(
                f"Programs in {path.parent} belong to another user and cannot be read; they are "
                "compiled again."
            )
            return False
        except ValueError:
            with contextlib.suppress(OSError):
                path.unlink()
            _say_once(
                f"Compiled programs in {path.parent} are damaged; they were deleted and are "
                "compiled again."
            )
            return False
        return True

    def read_bytes(self) -> bytes:
        content = Path(os.fspath(self)).read_bytes()
        content, digest = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError(f"{self} is damaged.")
        return content

    def write_bytes(self, content: bytes) -> int:
        path = Path(os.fspath(self))
        try:
            with temporary_folder(path.parent) as temporary:
                new = temporary / "new"
                new.write_bytes(content + hashlib.sha256(content).digest())
                flush_to_disk(new)
                new.replace(path)
        except OSError as error:  # JAX would say so of every program.
            _say_once(f"Compiled programs are not cached in {path.parent}: {error.strerror}.")
        return len(content)


def _without_scheme(part: str | os.PathLike[str]) -> str:
    return os.fspath(part).removeprefix(_SCHEME)


_say_once = functools.cache(log)
