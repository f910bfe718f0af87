"""A run's folder: its config, and a lock for the process that writes."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from pe_jax.common import schema
from pe_jax.common.files import (
    Json,
    NoLocksError,
    is_remote,
    leads_to,
    lock,
    read_json,
    to_path,
    write_text,
)
from pe_jax.common.values import shown
from pe_jax.models.config import BertConfig

# Orbax finds the files that it merges into a checkpoint by a glob of the whole path.
_WILDCARDS = frozenset("*?[\\")

# What may differ when a run resumes: nothing that its numbers depend on,
_MAY_CHANGE = (
    "log_every",
    "checkpoint_every",
    "keep_checkpoints",
    "keep_best",
    "data.cache_dir",
    "data.workers",
)
# how many steps it still makes,
STEPS = (
    "steps",
    "epochs",
    *(f"stage{number}.{key}" for number in (1, 2, 3) for key in ("steps", "epochs")),
)
# and where its inputs are: their contents are compared, see `tasks.train`.
_INPUTS = (
    "init",
    "data.source",
    "data.validation",
    "data.train",
    "data.vocab",
    "data.data_dir",
)

# By key, values that give the same numbers as the default, which is one of them. With "fsdp" the
# state has other shardings than with "jit", and sums are rounded in another order, as on another
# number of devices; dropout masks are the same. With "pmap" they are not: it draws them per device.
_EQUIVALENT = {"parallel": ("jit", "fsdp")}

# By key, the value of a run and the new one.
Changes = dict[str, tuple[object, object]]


C = TypeVar("C", bound=schema.Config, covariant=True)


class ResolvedConfig(NamedTuple, Generic[C]):
    """The config of a run, and the model that it describes.

    A config file leaves values of the model open: those of the model at `config.init`, or of the
    named size. Each task has a `resolve` that fills them in, once, before anything else.

    Attributes:
      config: of the run, as the file and the flags give it.
      model: all values of the model but for the vocabulary of a run's own text.
    """

    config: C
    model: BertConfig

    def as_dict(self, *, defaults: bool = True) -> Json:
        """Return nested dicts of the values, as config.json has them; see `schema.as_dict`."""
        values = schema.as_dict(self.config, defaults=defaults)
        return values | {"model": schema.as_dict(self.model, defaults=defaults)}


def check(workdir: Path, resolved: ResolvedConfig) -> Changes:
    """Check that a config describes the run in `workdir`, if there is one; return what differs.

    Raises:
      ValueError: if the folder holds a run of another config, with the differences, or if Orbax
        would take its path for a pattern.
    """
    absolute = workdir if is_remote(workdir) else workdir.absolute()
    wildcards = sorted(_WILDCARDS.intersection(str(absolute)))
    if wildcards:
        raise ValueError(
            f"--workdir is {absolute}, but Orbax cannot read checkpoints from a path with "
            f"{' '.join(wildcards)} in it. Give a path without * ? [ and \\."
        )
    path = workdir / "config.json"
    if not path.exists():
        return {}
    way_out = "Delete it: the command that started the run writes it again."
    old = schema.flatten(read_json(path, way_out))
    # Lists for tuples, as in the file.
    new = schema.flatten(json.loads(json.dumps(resolved.as_dict())))
    given = schema.flatten(resolved.as_dict(defaults=False))
    old_determining = _determining(old, resumed=True)
    new_determining = _determining(new, resumed=True)
    changes = {}
    refused = []
    for key in sorted(old.keys() | new.keys()):
        is_newer_than_run = key not in old and key not in given
        if old.get(key) == new.get(key) or is_newer_than_run:
            continue
        changes[key] = (old.get(key), new.get(key))
        if old_determining.get(key) != new_determining.get(key):
            refused.append(f"  {key}: {old.get(key)!r} there, {new.get(key)!r} now")
    if refused:
        raise ValueError(
            f"{workdir} holds a run with another config:\n" + "\n".join(refused) + "\n"
            "Give another --workdir, or the same config to resume that run."
        )
    return changes


def run_checksum(resolved: ResolvedConfig, tokenizer: str) -> str:
    """Return a checksum of what a run's numbers depend on, but for what may change as it resumes.

    Keys that are newer than the run leave it as it was, if they have their defaults.

    Args:
      tokenizer: as JSON.
    """
    values = schema.flatten(resolved.as_dict(defaults=False))
    every = schema.flatten(resolved.as_dict())
    # A default source is replaced like any other.
    values |= {key: every[key] for key in _INPUTS if every.get(key)}
    return _checksum([_determining(values, resumed=True), json.loads(tokenizer)])


def settings_checksum(config: schema.Config, more: object) -> str:
    """Return a checksum of all settings that a run's numbers depend on, and of `more`, as JSON."""
    values = schema.values_of(config, defaults=False)
    return _checksum([_determining(values, resumed=False), more])


def _checksum(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _determining(values: Json, *, resumed: bool) -> Json:
    """Return the values that a run's numbers depend on.

    A run that is resumed may have other steps still to make, and other paths of its inputs: of
    these it only counts whether there are any.
    """
    determining: Json = {}
    for key, value in values.items():
        if key in _MAY_CHANGE or value in _EQUIVALENT.get(key, ()):
            continue
        if resumed and key in STEPS:
            continue
        determining[key] = bool(value) if resumed and key in _INPUTS else value
    return determining


@contextlib.contextmanager
def lock_workdir(workdir: Path) -> Iterator[Callable[[], None]]:
    """Lock the folder against a second run within the context.

    The lock is on a file in it, see `lock`, and ends with the process, however that ends. Object
    stores and some network file systems have no locks: there nothing is checked.

    Yields:
      `check()`: raises an OSError if the folder, or the file, is not what was locked any more.

    Raises:
      ValueError: if another process has the lock.
    """
    if jax.process_index() > 0 or is_remote(workdir):
        yield lambda: None
        return
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "lock"
    try:
        descriptor = lock(path)
    except NoLocksError:
        yield lambda: None
        return
    if descriptor is None:
        raise ValueError(
            f"Another run is writing in {workdir} (fuser {path} names its process). Wait until it "
            "ends, stop it (it saves and can be resumed), or give another --workdir."
        )

    def check() -> None:
        if not leads_to(path, descriptor):
            raise OSError(
                f"{path} was removed or replaced while this run was writing there, so another run "
                "may have started. Nothing more is saved. The same command resumes from what is "
                "there."
            )

    try:
        yield check
    finally:
        os.close(descriptor)


def write_config(workdir: Path, resolved: ResolvedConfig) -> None:
    """Write `config.json`: from now on the folder is this run's."""
    text = json.dumps(resolved.as_dict(), indent=2)
    write_text(workdir / "config.json", f"{text}\n")


def load_config(
    workdir: Path, classes: schema.Classes[schema.C]
) -> ResolvedConfig[schema.C]:
    """Read the config of the run in `workdir`. Keys newer than the run have their defaults.

    Args:
      classes: of which it may be, see `from_values`.

    Raises:
      ValueError: if there is no run, or one of another task, or its config is damaged.
    """
    values = saved_values(workdir)
    task = values.get("task")
    names = schema.classes_by_task(classes)
    if isinstance(task, str) and task not in names:
        raise ValueError(
            f"{workdir} holds a run of {shown(task)}, but this needs {' or '.join(names)}."
        )
    try:
        config: Any = schema.from_values(values, classes, complete=True)
        return ResolvedConfig(config, config.model.resolve())
    except ValueError as error:
        raise ValueError(f"{workdir / 'config.json'}: {error}") from None


def saved_values(workdir: Path) -> Json:
    """Read the config.json of the run in `workdir`.

    Raises:
      ValueError: if it is missing or damaged.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{workdir} holds no run: {path} is missing. Give the --workdir of a training run."
        )
    way_out = "Delete it, and run the training command again, which writes it."
    return read_json(path, way_out)


def matching_runs(pattern: str) -> list[Path]:
    """Return the folders of runs that a glob matches, sorted.

    Raises:
      ValueError: if there are none.
    """
    paths = [Path(path) for path in sorted(glob.glob(str(to_path(pattern))))]
    runs = [path for path in paths if (path / "config.json").exists()]
    if not runs:
        raise ValueError(f"No runs match {pattern}: no folder there has a config.json.")
    return runs
