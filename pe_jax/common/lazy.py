"""Packages whose modules are imported when one of their names is first used."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pe_jax.common.errors import did_you_mean, extra


def lazy_attributes(
    package: str,
    names: Sequence[str],
    modules: Sequence[str],
    *,
    needs: str = "",
    renamed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its modules when used.

    Args:
      package: its `__name__`.
      names: what it offers.
      modules: searched in this order. None has the name of a function that another one defines.
      needs: the extra that installs what the modules import, for the error where it is missing.
      renamed: new names by former ones, for the error that names them.
    """
    attributes = vars(sys.modules[package])
    new_names = renamed or {}

    def get_attribute(name: str) -> Any:
        if name in names:
            with extra(needs) if needs else contextlib.nullcontext():
                for module in modules:
                    members = vars(importlib.import_module(f"{package}.{module}"))
                    if name in members:
                        attributes[name] = members[name]
                        return members[name]
        hint = did_you_mean(name, names)
        if name in new_names:
            hint = f" It is {new_names[name]} now."
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}")

    def list_attributes() -> list[str]:
        return sorted({*attributes, *names})

    return get_attribute, list_attributes
