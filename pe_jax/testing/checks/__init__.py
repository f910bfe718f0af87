"""What must hold of every encoding, check by check."""

# isort: off
from pe_jax.testing.checks.check import CHECKS, Check, NotApplicable

# Each of these adds its checks, in the order of the table.
from pe_jax.testing.checks import numbers, documents, positions, transformations, description

__all__ = [
    "CHECKS",
    "Check",
    "NotApplicable",
    "description",
    "documents",
    "numbers",
    "positions",
    "transformations",
]
