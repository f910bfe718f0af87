"""Rotations of queries and keys by their positions."""

from pe_jax.encodings.rotary.pope import pope
from pe_jax.encodings.rotary.rope import convert_layout, rope, rotate_heads
from pe_jax.encodings.rotary.rope_scaling import (
    rope_dynamic_ntk,
    rope_linear,
    rope_llama3,
    rope_longrope,
    rope_ntk,
    rope_yarn,
)
from pe_jax.encodings.rotary.several_axes import mrope, rope_axial, rope_mixed
from pe_jax.encodings.rotary.switches import with_factors
from pe_jax.encodings.rotary.xpos import xpos

__all__ = [
    "convert_layout",
    "mrope",
    "pope",
    "rope",
    "rope_axial",
    "rope_dynamic_ntk",
    "rope_linear",
    "rope_llama3",
    "rope_longrope",
    "rope_mixed",
    "rope_ntk",
    "rope_yarn",
    "rotate_heads",
    "with_factors",
    "xpos",
]
