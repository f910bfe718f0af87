"""Property metrics of position encodings, as pure jitted functions."""

from pe_jax.properties.metrics import (
    monotonicity,
    proximity,
    psi,
    symmetry,
    translation_invariance,
    turning_point,
)

__all__ = [
    "monotonicity",
    "proximity",
    "psi",
    "symmetry",
    "translation_invariance",
    "turning_point",
]
