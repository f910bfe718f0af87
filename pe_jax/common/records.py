"""Base class of public records, to which fields can be added without breaking their users."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import jax

from pe_jax.common.errors import did_you_mean


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """A frozen dataclass whose fields are keyword-only.

    Nobody can unpack a record or pass its fields by position, so a new field with a default changes
    nothing for existing code. `class X(Record, pytree=True)` is a pytree for JAX as well, as
    records of arrays are; the fields named in `static` are no children of it. `renamed` has former
    names of fields, for the error that names the new one.
    """

    _renamed: ClassVar[dict[str, str]] = {}

    def __init_subclass__(
        cls,
        pytree: bool = False,
        static: tuple[str, ...] = (),
        renamed: dict[str, str] | None = None,
    ) -> None:
        super().__init_subclass__()
        cls._renamed = {**cls._renamed, **(renamed or {})}
        # In place: without slots, the decorator returns the class that it was given.
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        if pytree:
            children = [name for name in _field_names(cls) if name not in static]
            _register(cls, children, static)

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        names = _field_names(cls)
        if args:
            form = ", ".join(f"{name}=..." for name in names)
            raise TypeError(
                f"{cls.__name__} takes its fields by name: {cls.__name__}({form})."
            )
        for name in fields.keys() - set(names):
            new_name = cls._renamed.get(name)
            hint = f" It is {new_name} now." if new_name else did_you_mean(name, names)
            raise TypeError(
                f"{cls.__name__} has no field {name!r}.{hint} It has: {', '.join(names)}."
            )
        return super().__new__(cls)

    if not TYPE_CHECKING:  # To a type checker, any attribute would exist.

        def __getattr__(self, name: str) -> Any:
            new_name = type(self)._renamed.get(name)
            hint = f" It is {new_name} now." if new_name else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}.{hint}",
                name=name,
                obj=self,
            )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields.

        Raises:
          TypeError: for a field that the record does not have.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _register(cls: type, children: Sequence[str], static: Sequence[str]) -> None:
    """Register a record as a pytree. JAX also builds trees of shapes, specs or placeholders, so a
    record is made again without its checks of types."""
    keys = [jax.tree_util.GetAttrKey(name) for name in children]

    def flatten(record: Any) -> tuple[list[Any], tuple[Any, ...]]:
        values = [getattr(record, name) for name in children]
        return values, tuple(getattr(record, name) for name in static)

    def flatten_with_keys(record: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        values, constants = flatten(record)
        return list(zip(keys, values)), constants

    def unflatten(constants: tuple[Any, ...], values: Iterable[Any]) -> Any:
        record: Any = object.__new__(cls)
        vars(record).update(zip(children, values))
        vars(record).update(zip(static, constants))
        return record

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
