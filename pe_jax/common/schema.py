"""Typed configs: frozen dataclasses that state and check everything about their keys.

    @dataclasses.dataclass(frozen=True)
    class StageConfig(Config):
        length: int = field(128, integer(8, 10**6), "Tokens of an input.")
        steps: int = field(0, integer(0, 10**9))

A key is declared once, as such a field: its default, the values that it accepts, and what `--help`
says of it. `from_values` reads what a config file or a run's config.json holds into a dataclass;
`config_dict` gives a config file the defaults that it changes. Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from pe_jax.common.values import Validator, one_of, optional, shown

if TYPE_CHECKING:
    from ml_collections import ConfigDict


def field(
    default: Any, kind: Validator, description: str = "", *, internal: bool = False
) -> Any:
    """A field of a `Config`.

    Args:
      default: a value, or a function that returns it.
      kind: the values that are accepted.
      description: for `--help`.
      internal: config files have no such key; a run fills it in, and its config.json has it.
    """
    metadata = {"kind": kind, "description": description, "internal": internal}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def task_field(*tasks: str) -> Any:
    """The field `task` of a `Config` for these tasks, the first of them by default."""
    metadata = {
        "kind": one_of(tasks),
        "description": "This kind of job decides which other keys there are.",
        "internal": False,
        "tasks": tasks,
    }
    return dataclasses.field(default=tasks[0], metadata=metadata)


def subconfig(config: type[Config], **defaults: Any) -> Any:
    """A field of a `Config` that is a `Config` itself, where some keys have other `defaults`."""
    make = functools.partial(config, **defaults)
    metadata = {"subconfig": config, "defaults": defaults, "internal": False}
    return dataclasses.field(default_factory=make, metadata=metadata)


# Keys that have another name now, for the error that says so.
RENAMED = {
    "model.attention": "model.implementation",
    "model.num_segments": "model.num_token_types",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configs. Creating one checks each value, then how values of several keys relate.

    Raises:
      ValueError: in one line that begins with the name of a key.
    """

    def __new__(cls, *_: Any, **values: Any) -> Config:
        names = [field.name for field in dataclasses.fields(cls)]
        for old, new in RENAMED.items():
            old_name, new_name = old.rpartition(".")[2], new.rpartition(".")[2]
            if old_name in values and old_name not in names and new_name in names:
                raise TypeError(
                    f"{old_name} is now called {new_name}. Pass {new_name}=..."
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, kind in kinds(type(self)).items():
            value = getattr(self, name)
            if fault := kind.error(value):
                raise ValueError(f"{name} {fault}")
            if isinstance(value, list):  # As JSON has them.
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        for fault in self.errors():
            raise ValueError(fault)

    def errors(self) -> Iterator[str]:
        """Yield the faults of values that are right by themselves: each a line that begins with the
        name of a key."""
        return iter(())


C = TypeVar("C", bound=Config)
# The class of a config; or where it is by task, see `pe_jax.trainer.configs.all_tasks`.
Classes: TypeAlias = type[C] | Mapping[str, str]


def kinds(config: type[Config]) -> dict[str, Validator]:
    """Return the kind of value of each key, without those of subconfigs."""
    return {
        field.name: field.metadata["kind"]
        for field in dataclasses.fields(config)
        if "kind" in field.metadata
    }


def fields_of_task(
    task: object, classes: Classes[C]
) -> dict[str, dataclasses.Field[Any]]:
    """Return the field of each dotted key of a task's config; none if the task is not known."""
    if task not in classes_by_task(classes):
        return {}
    return dict(fields_of(class_for(task, classes)))


def fields_of(
    config: type[Config], prefix: str = ""
) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield each key of a config and of its subconfigs, dotted, with its field."""
    for field in dataclasses.fields(config):
        yield f"{prefix}{field.name}", field
        if "subconfig" in field.metadata:
            yield from fields_of(field.metadata["subconfig"], f"{prefix}{field.name}.")


def keys(config: type[Config], *, internal: bool = False) -> list[str]:
    """Return the dotted names of the keys of a config file; with `internal`, of all keys."""
    return [
        name
        for name, field in fields_of(config)
        if "kind" in field.metadata and (internal or not field.metadata["internal"])
    ]


def optional_keys(config: type[Config]) -> type[Config]:
    """Return a config with the keys of another, each of which may be None and is so by default.

    How values of several keys relate is known once all of them are given, so it is not checked.
    """
    fields = []
    for field in dataclasses.fields(config):
        metadata = {**field.metadata, "kind": optional(field.metadata["kind"])}
        fields.append(
            (field.name, Any, dataclasses.field(default=None, metadata=metadata))
        )
    name = f"Optional{config.__name__}"
    return dataclasses.make_dataclass(name, fields, bases=(Config,), frozen=True)


def changed(config: C, values: Mapping[str, Any]) -> C:
    """Return a copy with other values of some keys, dotted: `changed(config, {"data.length": 64})`.

    Raises:
      ValueError: for values that are not right.
    """
    arguments: dict[str, Any] = {}
    of_subconfigs: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            of_subconfigs.setdefault(first, {})[rest] = value
        else:
            arguments[first] = value
    for name, inner in of_subconfigs.items():
        arguments[name] = changed(getattr(config, name), inner)
    return dataclasses.replace(config, **arguments)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def as_dict(config: Config, *, defaults: bool = True) -> dict[str, Any]:
    """Return nested dicts of the values, as config.json has them; `from_values` reads them.

    Args:
      defaults: whether to have values that are their key's default.
    """
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Config):
            values[field.name] = as_dict(value, defaults=defaults)
        elif value != field.default or (defaults and not field.metadata["internal"]):
            values[field.name] = value
    return values


def values_of(config: Config, *, defaults: bool = True) -> dict[str, Any]:
    """Return the values of a config by dotted key, see `as_dict`."""
    return flatten(as_dict(config, defaults=defaults))


def config_dict(config: type[Config], **defaults: Any) -> ConfigDict:
    """Return the keys of a class, with other `defaults` of some of them, as config files and flags
    change them; nothing is checked yet."""
    from ml_collections import ConfigDict
    from ml_collections.config_dict import placeholder

    values = ConfigDict()
    for field in dataclasses.fields(config):
        metadata = field.metadata
        if "subconfig" in metadata:
            inner = config_dict(metadata["subconfig"], **metadata["defaults"])
            values[field.name] = inner
        elif not metadata["internal"]:
            value = defaults.get(field.name, field.default)
            if value is dataclasses.MISSING:
                value = field.default_factory()  # type: ignore[operator]
            if value is None:  # A flag can set it to a value of this type.
                value = placeholder(metadata["kind"].type)
            values[field.name] = value
    return values


def classes_by_task(classes: Classes[C]) -> Mapping[str, str | type[C]]:
    """Return the class for each value of `config.task`, or where it is."""
    if isinstance(classes, Mapping):
        return classes
    return dict.fromkeys(
        classes.__dataclass_fields__["task"].metadata["tasks"], classes
    )


def class_for(task: object, classes: Classes[C], way_out: str = "") -> type[C]:
    """Return the class of configs whose `config.task` is `task`.

    Raises:
      ValueError: if there is none; the message lists the known tasks, then `way_out`.
    """
    by_task = classes_by_task(classes)
    if fault := one_of(by_task).error(task):
        raise ValueError(f"config.task {fault}{way_out}")
    assert isinstance(task, str)
    config = by_task[task]
    return pkgutil.resolve_name(config) if isinstance(config, str) else config


def from_values(
    values: Any, classes: Classes[C], way_out: str = "", *, complete: bool = False
) -> C:
    """Return the typed config of a ConfigDict, or of the dict that a config.json holds.

    Args:
      classes: of which it may be; `config.task` tells which.
      way_out: for a config of another task, what to do.
      complete: whether a missing key has its default, as in runs that are older than the key.

    Raises:
      ValueError: in one line, for a key that is unknown or missing, or a value that is not of its
        key's kind or does not fit others; the message names key, value and what is right.
    """
    if hasattr(values, "to_dict"):
        values = values.to_dict()
    if not isinstance(values, Mapping):
        raise ValueError(
            f"get_config() of a config file must return a ConfigDict, got {shown(values)}."
        )
    config = class_for(values.get("task"), classes, way_out)
    valid_keys = keys(config, internal=True)
    for name in flatten(values):
        if name not in valid_keys:
            others = [other for other in keys(config) if other != "task"]
            raise ValueError(unknown_key(name, others, f"the task {values['task']!r}"))
    return _build(config, values, "config", complete)


def _build(config: type[C], values: Mapping[str, Any], path: str, complete: bool) -> C:
    arguments = {}
    for field in dataclasses.fields(config):
        metadata = field.metadata
        name = f"{path}.{field.name}"
        if field.name not in values:
            if complete or metadata["internal"] or field.default is None:
                continue
            expected = metadata["kind"].describe() if "kind" in metadata else "a part"
            raise ValueError(
                f"{name} is missing. It must be {expected}. The files in configs/ have every key's "
                "default."
            )
        value = values[field.name]
        if "subconfig" in metadata:
            if complete:
                value = {**metadata["defaults"], **value}
            value = _build(metadata["subconfig"], value, name, complete)
        arguments[field.name] = value
    try:
        return config(**arguments)
    except ValueError as error:
        raise ValueError(f"{path}.{error}") from None


def unknown_key(key: str, known: Iterable[str], of: str) -> str:
    """Return the message for a key of `of` that is not among the known ones, with close matches:
    of its last name, in whatever subconfig they are, or of the whole."""
    every = list(known)
    if key in RENAMED:
        return f"config.{key} is now called config.{RENAMED[key]}."
    inner = [f"config.{name}" for name in every if name.startswith(f"{key}.")]
    if inner:
        return f"config.{key} is a part with keys of its own, such as {' and '.join(inner[:2])}."
    last_names = [name.rpartition(".")[2] for name in every]
    matches = difflib.get_close_matches(
        key.rpartition(".")[2], set(last_names), n=1, cutoff=0.75
    )
    near = [name for name, last in zip(every, last_names) if last in matches]
    near = near or difflib.get_close_matches(key, every)
    if near:
        hint = f"Did you mean {' or '.join(f'config.{name}' for name in near[:3])}?"
    else:
        first_names = dict.fromkeys(name.partition(".")[0] for name in every)
        hint = f"It has {', '.join(first_names)}."
    return f"config.{key} is not a key of {of}. {hint}"
