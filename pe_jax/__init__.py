"""Position encodings for JAX and Flax, after "On Position Embeddings in BERT" (ICLR 2021).

`import pe_jax` alone gives `pe_jax.encodings` and the other modules of `MODULES`, each imported
when it is first used; `__init__.pyi` has their types.
"""

from pe_jax.common.lazy import lazy_attributes

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

__getattr__, __dir__ = lazy_attributes(__name__, MODULES, MODULES)
