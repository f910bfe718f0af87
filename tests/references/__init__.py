"""The encodings as formulas for one pair of query and key, written as their papers write them.

Each module has `REFERENCES`, by config name, and may have `EXCUSED`: checks that an encoding is
known not to pass, with the reason, `{name: {check: reason}}`.
"""

import importlib
import pkgutil

from pe_jax.testing import Reference

_modules = [
    importlib.import_module(f"{__name__}.{m.name}")
    for m in pkgutil.iter_modules(__path__)
]

REFERENCES: dict[str, Reference] = {
    name: one for module in _modules for name, one in module.REFERENCES.items()
}
EXCUSED: dict[str, dict[str, str]] = {
    name: reasons
    for module in _modules
    for name, reasons in getattr(module, "EXCUSED", {}).items()
}
