"""Positions that depend on what the tokens are."""

from pe_jax.encodings.content.cable import cable
from pe_jax.encodings.content.cope import cope
from pe_jax.encodings.content.fox import fox

__all__ = ["cable", "cope", "fox"]
