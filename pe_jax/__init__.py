"""Position encodings for JAX and Flax, after "On Position Embeddings in BERT" (ICLR 2021).

`import pe_jax` alone gives `pe_jax.encodings` and the other modules of `MODULES`, each imported
when it is first used; `__init__.pyi` has their types.
"""

import importlib
from types import ModuleType

__version__ = "1.0.0rc1"

MODULES = (
    "adapters",
    "attention",
    "encodings",
    "golden",
    "interop",
    "linen",
    "models",
    "nnx",
    "properties",
    "testing",
    "trainer",
)


def __getattr__(name: str) -> ModuleType:
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})
