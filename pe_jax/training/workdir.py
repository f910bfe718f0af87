"""A run's folder: its config, saved next to its results, and a lock for the process that writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pe_jax.files import Json, is_remote, read_json, write_text
from pe_jax.locks import leads_to, lock, process_name
from pe_jax.schema import C, Config, as_dict, flatten, from_values, values_of
from pe_jax.training.sharding import host

# What may differ when a run resumes: nothing that its numbers depend on.
_MAY_CHANGE = (
    "log_every",
    "checkpoint_every",
    "keep_checkpoints",
    "data.cache_dir",
    "data.workers",
)

# Values that give the same numbers. With "fsdp" the state has other shardings than with "jit", and
# sums are rounded in another order, as on another number of devices; dropout masks are the same.
# With "pmap" they are not: it draws them per device.
_EQUIVALENT = {"parallel": ("jit", "fsdp")}


def check(workdir: Path, config: Config) -> None:
    """Makes sure that the run in `workdir`, if there is one, is the one that `config` describes.

    Raises:
      ValueError: if the folder holds a run of another config; the message shows the difference.
    """
    path = workdir / "config.json"
    if not path.exists():
        return
    old = flatten(read_json(path, "Remove it: the command that started the run writes it again."))
    new = _values(config)
    changed = [
        f"  {key}: {old.get(key)!r} there, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if not _same(key, old.get(key), new.get(key))
    ]
    if changed:
        raise ValueError(
            f"{workdir} holds a run with another config:\n" + "\n".join(changed) + "\n"
            "Give another --workdir, or the same config to resume that run."
        )


def _same(key: str, old: Any, new: Any) -> bool:
    """Whether a run that resumes gives the numbers that it would have given with the old value."""
    same = _EQUIVALENT.get(key, ())
    return old == new or key in _MAY_CHANGE or (old in same and new in same)


def identity(config: Config, tokenizer: str) -> str:
    """A digest of all that a run's numbers depend on: checkpoints of the same are of the same run.

    Args:
      tokenizer: as JSON.
    """
    values = _values(config)
    kept = {
        key: _EQUIVALENT[key][0] if value in _EQUIVALENT.get(key, ()) else value
        for key, value in values.items()
        if key not in _MAY_CHANGE
    }
    text = json.dumps([kept, json.loads(tokenizer)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def occupied(workdir: Path) -> Iterator[Callable[[], None]]:
    """Locks the folder against a second run within the context.

    The lock ends with the process, however that ends. It is on the folder as well as on a file in
    it, so that removing the file lets nobody in. Object stores and some network file systems have
    no locks: there nothing is checked.

    Yields:
      `held()`: raises an OSError if the folder, or the file, is not what was locked any more.

    Raises:
      ValueError: if another process has the folder; the message says which.
    """
    if host()[0] > 0 or is_remote(workdir):
        yield lambda: None
        return
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "lock"
    with _open_folder(workdir) as folder, open(path, "a+", encoding="utf-8") as file:
        if not (lock(folder) and lock(file.fileno())):
            file.seek(0)
            raise ValueError(
                f"Another run is writing in {workdir}: {file.read().strip() or 'unknown'}. "
                "Wait until it has ended, stop it (it saves, and can be resumed), or give "
                "another --workdir."
            )
        file.truncate(0)
        file.write(f"{process_name()}\n")
        file.flush()

        def check() -> None:
            for name, descriptor in ((workdir, folder), (path, file.fileno())):
                if not leads_to(name, descriptor):
                    raise OSError(
                        f"{name} was removed or replaced while this run was writing there, so that "
                        "another may have begun: nothing more is saved. The same command starts "
                        "again from what is there."
                    )

        yield check


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def claim(workdir: Path, config: Config) -> None:
    """Writes `config.json`: from now on the folder is this run's."""
    write_text(workdir / "config.json", json.dumps(as_dict(config), indent=2) + "\n")


def load_config(workdir: Path, *classes: type[C]) -> C:
    """Read the config of the run in `workdir`.

    Args:
      classes: of the configs that it may have.

    Raises:
      ValueError: if there is none, or one of another task.
    """
    values = saved_values(workdir)
    task = values.get("task")
    names = [name for each in classes for name in each.TASKS]
    if isinstance(task, str) and task not in names:
        raise ValueError(f"{workdir} holds a run of {task!r}; wanted {' or '.join(names)}.")
    try:
        return from_values(values, classes)
    except ValueError as error:
        raise ValueError(f"{workdir / 'config.json'}: {error}") from None


def saved_values(workdir: Path) -> Json:
    """Read the config.json of the run in `workdir` as it is.

    Raises:
      ValueError: if there is none, or it is damaged.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} holds no run: there is no {path}. Give train.py's --workdir.")
    way_out = "Remove it, and start the run's training command, which writes it again."
    return read_json(path, way_out)


def _values(config: Config) -> dict[str, Any]:
    """The values of a config by dotted key, as JSON has them."""
    return json.loads(json.dumps(values_of(config)))
