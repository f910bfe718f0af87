"""Golden vectors: what position code has to compute, for every published config, in float64.

`write` makes files that need no pe_jax to be read; `check` compares other code with them.
"""

from pe_jax.golden.cases import Case
from pe_jax.golden.checking import Failure, check, report
from pe_jax.golden.files import model_types, write
from pe_jax.golden.vectors import Golden, Layer, golden_vectors

__all__ = [
    "Case", "Failure", "Golden", "Layer", "check", "golden_vectors", "model_types", "report",
    "write",
]  # fmt: skip
