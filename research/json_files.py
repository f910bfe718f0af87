"""JSON files of studies, checked against a TypedDict when they are read."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pe_jax.common.files import read_json
from pe_jax.common.values import shown
from pe_jax.trainer.training.metrics import read_metrics

T = TypeVar("T")

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def read_json_as(kind: type[T], path: Path, way_out: str) -> T:
    """Return the object in a JSON file.

    Args:
      kind: as of `faults`. Keys that a TypedDict does not have are ignored.
      way_out: what to do about a damaged file, a sentence.

    Raises:
      ValueError: for a file that holds no such object; the message names the file and the value.
    """
    return check(read_json(path, way_out), kind, path, way_out)


def check(value: object, kind: type[T], path: Path, way_out: str) -> T:
    """Return a value of a JSON file; the arguments and errors are those of `read_json_as`."""
    for fault in errors(value, kind):
        raise ValueError(f"{path} is damaged ({fault}). {way_out}")
    return typing.cast(T, value)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one a line; none without the file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def has_json_line(path: Path, about: Mapping[str, object]) -> bool:
    """Return whether a line of a file has all these keys and values."""
    return any(about.items() <= line.items() for line in read_json_lines(path))


def append_json_line(path: Path, record: Mapping[str, object]) -> None:
    """Add a line to a file that other processes may add lines to."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_series(folder: Path, name: str, way_out: str) -> dict[int, float]:
    """Return the values of a name in the `metrics.jsonl` of a run, by step.

    Raises:
      ValueError: for a damaged line, a value that is no number, or if there is none.
    """
    path = folder / "metrics.jsonl"
    series: dict[int, float] = {}
    for number, line in enumerate(read_metrics(folder), 1):
        if name not in line:
            continue
        for key, kind in (("step", int), (name, float)):
            for fault in errors(line[key], kind, repr(key)):
                raise ValueError(
                    f"Line {number} of {path} is damaged ({fault}). {way_out}"
                )
        series[line["step"]] = line[name]
    if not series:
        raise ValueError(f"{path} is damaged (it has no {name!r}). {way_out}")
    return series


def errors(value: object, kind: Any, name: str = "it") -> Iterator[str]:
    """Yield what of a JSON value is not of its type.

    Args:
      kind: a TypedDict, a dict with text keys, a list, str, int, float, Any or a union.
      name: of the value, as the messages name it.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin in (types.UnionType, typing.Union):
        by_member = [list(errors(value, member, name)) for member in arguments]
        if all(by_member):
            yield from by_member[0]
        return
    if kind is types.NoneType:
        fits, expected = value is None, "null"
    elif kind is float:
        fits, expected = type(value) in (int, float), "a number"
    else:
        plain = dict if typing.is_typeddict(kind) else origin or kind
        fits, expected = type(value) is plain, _NAMES[plain]
    if not fits:
        yield f"{name} must be {expected}, got {shown(value)}"
    elif typing.is_typeddict(kind):
        yield from _faults_of_keys(typing.cast(dict[str, object], value), kind, name)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from errors(member, arguments[1], _inside(name, key))
    elif isinstance(value, list):
        for number, member in enumerate(value):
            yield from errors(member, arguments[0], f"{name}[{number}]")


def _faults_of_keys(values: dict[str, object], kind: Any, name: str) -> Iterator[str]:
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        optional = typing.get_origin(hint) is typing.NotRequired
        if key in values:
            member = typing.get_args(hint)[0] if optional else hint
            yield from errors(values[key], member, _inside(name, key))
        elif not optional:
            yield f"{_inside(name, key)} is missing"


def _inside(name: str, key: str) -> str:
    return f"{key!r}" if name == "it" else f"{name}[{key!r}]"
