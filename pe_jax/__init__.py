"""Position encodings for JAX and Flax, after "On Position Embeddings in BERT" (ICLR 2021).

`import pe_jax` alone gives `pe_jax.encodings` and the other modules of `MODULES`, each imported
when it is first used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

MODULES = (
    "adapters",
    "attention",
    "encodings",
    "interop",
    "linen",
    "models",
    "nnx",
    "properties",
    "testing",
)

if TYPE_CHECKING:
    from pe_jax import adapters as adapters
    from pe_jax import attention as attention
    from pe_jax import encodings as encodings
    from pe_jax import interop as interop
    from pe_jax import linen as linen
    from pe_jax import models as models
    from pe_jax import nnx as nnx
    from pe_jax import properties as properties
    from pe_jax import testing as testing


def __getattr__(name: str) -> ModuleType:
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})
