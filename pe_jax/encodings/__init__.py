"""Position encodings as pure functions; jax and numpy only, no Flax.

>>> from pe_jax import encodings
>>> encoding = encodings.from_name(
...     "learnable_sinusoidal_relative", hidden_size=256, head_size=64, num_heads=4, max_length=128)
>>> encodings.parameter_count(encoding)
32
"""

from pe_jax.encodings.absolute import (
    learnable_sinusoidal_absolute,
    learned_absolute,
    sinusoidal_absolute,
)
from pe_jax.encodings.base import (
    About,
    Context,
    Inputs,
    Offsets,
    Params,
    Part,
    PositionEncoding,
    Positions,
    Projections,
    View,
    embed,
    named,
    none,
    offsets,
    parameter_count,
)
from pe_jax.encodings.huggingface import from_hf
from pe_jax.encodings.names import ENCODINGS, PAPER, WRAPPERS, Sizes, from_name, stack_from_name
from pe_jax.encodings.relative import (
    learnable_sinusoidal_relative,
    learned_relative,
    sinusoidal_relative,
)
from pe_jax.encodings.rope import convert_layout, rope, rotate_heads
from pe_jax.encodings.rope_scaling import (
    rope_dynamic_ntk,
    rope_linear,
    rope_llama3,
    rope_longrope,
    rope_ntk,
    rope_yarn,
)
from pe_jax.encodings.sinusoid import angles, default_frequencies, rotate_pairs, sinusoid
from pe_jax.encodings.stack import Stack, as_stack
from pe_jax.encodings.tables import look_up, resize_table
from pe_jax.encodings.window import window

__all__ = [
    "ENCODINGS",
    "PAPER",
    "WRAPPERS",
    "About",
    "Context",
    "Inputs",
    "Offsets",
    "Params",
    "Part",
    "PositionEncoding",
    "Positions",
    "Projections",
    "Sizes",
    "Stack",
    "View",
    "angles",
    "as_stack",
    "convert_layout",
    "default_frequencies",
    "embed",
    "from_hf",
    "from_name",
    "learnable_sinusoidal_absolute",
    "learnable_sinusoidal_relative",
    "learned_absolute",
    "learned_relative",
    "look_up",
    "named",
    "none",
    "offsets",
    "parameter_count",
    "resize_table",
    "rope",
    "rope_dynamic_ntk",
    "rope_linear",
    "rope_llama3",
    "rope_longrope",
    "rope_ntk",
    "rope_yarn",
    "rotate_heads",
    "rotate_pairs",
    "sinusoid",
    "sinusoidal_absolute",
    "sinusoidal_relative",
    "stack_from_name",
    "window",
]
