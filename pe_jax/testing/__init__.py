"""A suite that every position encoding is put through, ours or your own; jax and NumPy only."""

from pe_jax.testing.reference import Pair, Reference, joined

__all__ = ["Pair", "Reference", "joined"]
