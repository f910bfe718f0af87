"""Packages whose modules are imported when one of their names is first used."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pe_jax.common.errors import did_you_mean, extra


def lazy_attributes(
    package: str,
    names: Collection[str],
    modules: Collection[str],
    *,
    needs: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its modules when used.

    Args:
      package: its `__name__`.
      names: what it offers: names in its modules, or modules themselves.
      modules: searched in this order. None has the name of a function that another one defines.
      needs: the extra that installs what the modules import, for the error where it is missing.
      renamed: new names by former ones, for the error that names them.
    """

    def get_attribute(name: str) -> Any:
        if name in names:
            with extra(needs) if needs else contextlib.nullcontext():
                value = _find(package, name, modules)
            setattr(sys.modules[package], name, value)
            return value
        new_name = (renamed or {}).get(name)
        hint = f" It is {new_name} now." if new_name else did_you_mean(name, names)
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}")

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get_attribute, list_attributes


def _find(package: str, name: str, modules: Collection[str]) -> Any:
    if name in modules:
        return importlib.import_module(f"{package}.{name}")
    for module in modules:
        members = vars(importlib.import_module(f"{package}.{module}"))
        if name in members:
            return members[name]
    raise AttributeError(f"module {package!r} offers {name!r}, but no module has it.")
