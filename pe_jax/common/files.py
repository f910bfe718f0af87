"""Paths of local files and of object stores such as gs://; reading, locks, writing in one go."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from etils import epath

Json: TypeAlias = dict[str, Any]  # An object of a JSON file.

# By which package etils reads an object store, where there is no TensorFlow.
_STORES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}


def is_remote(path: str | Path) -> bool:
    """Return True if a path leads to an object store."""
    return "://" in str(path)


def file_name(name: str) -> str:
    """Return a name for files and links: other characters than letters, digits and `-_+.=` become
    underscores."""
    return "".join(c if c.isalnum() or c in "-_+.=" else "_" for c in name)


def to_path(text: str | Path) -> Path:
    """Return a local path with `~` expanded, or a path of etils for an object store such as `gs://`.

    The latter has the methods of pathlib's that this project uses; the extra `gcs` installs its
    packages.

    Raises:
      ValueError: for the home of a user who does not exist, or an object store with one slash.
    """
    if is_remote(text):
        return cast(Path, epath.Path(text))
    if match := re.match(f"({'|'.join(_STORES)}):/", str(text)):
        raise ValueError(
            f"{text} has one slash after {match[1]}:, an object store has two."
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # Python's, for `~name` where nobody has that name.
        raise ValueError(f"{text}: this user has no home folder.") from error


def reachable_path(text: str | Path) -> Path:
    """Return `to_path(text)` if this process has the packages to read it.

    Raises:
      ValueError: for an object store that is not known, or whose package is not installed.
    """
    if not is_remote(text):
        return to_path(text)
    store = str(text).partition("://")[0]
    if store not in _STORES:
        stores = ", ".join(f"{name}://" for name in _STORES)
        raise ValueError(f"{text} is not in a supported object store: {stores}.")
    package = _STORES[store]
    if not any(map(importlib.util.find_spec, (package, "tensorflow"))):
        raise ValueError(
            f"{text} needs the package {package}, which is not installed: pip install "
            f"{package} (for gs://, it is in the extra 'gcs')."
        )
    return to_path(text)


def cache_folder(cache_dir: str = "") -> Path:
    """Return the folder of tokenized text and compiled programs.

    Args:
      cache_dir: of a config; empty means `PE_JAX_CACHE`, or `~/.cache/pe_jax`.

    Raises:
      ValueError: for an object store.
    """
    name = "config.data.cache_dir" if cache_dir else "PE_JAX_CACHE"
    text = cache_dir or os.environ.get("PE_JAX_CACHE") or "~/.cache/pe_jax"
    if is_remote(text):
        raise ValueError(
            f"{name} must be a local folder, got {text}: object stores have no locks. To tokenize "
            "a text once for many machines, use pe-jax prepare."
        )
    return to_path(text)


def sha256(path: Path) -> str:
    """Return the digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """Write a local file or folder to disk, so that a power cut does not lose it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
      ValueError: for a text that is no JSON, for nesting or whole numbers beyond Python's limits,
        and for halves of surrogate pairs, which are no characters: UTF-8 cannot hold them.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's own advice would be a setting of the interpreter.
        raise ValueError("an integer has thousands of digits") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])[1:-1]
            raise ValueError(
                f"{half} is half of a surrogate pair, not a character"
            ) from None
    return value


def read_json(path: Path, way_out: str) -> Json:
    """Return the object in a JSON file of a run.

    Args:
      way_out: what to do about a damaged file, a sentence.

    Raises:
      ValueError: for a file that holds none; the message names it.
    """
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # Of JSON, or bytes that are no text.
        raise ValueError(f"{path} is damaged ({error}). {way_out}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged (it is not a JSON object). {way_out}")
    return values


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Name the file in errors of writing it: those of a full disk or of a bucket name none.

    Raises:
      OSError: in one line, for any error within the context.
    """
    try:
        yield
    except (
        Exception
    ) as error:  # safetensors and packages of buckets have classes of their own.
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise OSError(
            f"{path} was not written: {reason}. Free space there or make it writable, then run the "
            "same command again."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text in UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one go: a reader never sees half of it, and a run killed here, or a power
    cut, leaves none.

    On several hosts only the first writes.

    Raises:
      OSError: if it cannot be written.
    """
    import jax  # Only here, so that what reads paths alone starts at once.

    if jax.process_index() > 0:
        return
    temporary = path.with_name(f".{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed run's, or a link, which is not to be followed.
        temporary.unlink(missing_ok=True)
        with temporary.open("wb" if is_remote(path) else "xb") as file:
            file.write(data)
        if not is_remote(path):
            flush_to_disk(temporary)
        temporary.replace(path)


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
    import fcntl  # Only here: Windows, where the library runs as well, has none.

    # Without O_NONBLOCK a pipe would wait for a reader.
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:  # Of another user: it can be locked all the same.
        descriptor = os.open(path, flags | os.O_RDONLY)
    try:
        fcntl.flock(
            descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        )
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        reason = "the file system has no locks"
        raise NoLocksError(error.errno, reason, str(path)) from error
    return descriptor


def leads_to(path: Path, descriptor: int) -> bool:
    """Return True if `path` is still that of an open file: not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
