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
from pe_jax.encodings.base import PositionEncoding, combine, none, parameter_count, split
from pe_jax.encodings.names import PAPER, SINGLE, from_name
from pe_jax.encodings.relative import (
    learnable_sinusoidal_relative,
    learned_relative,
    offsets,
    sinusoidal_relative,
)
from pe_jax.encodings.sinusoid import default_frequencies, rotate_pairs, sinusoid
from pe_jax.encodings.tables import look_up, resize_table

__all__ = [
    "PAPER",
    "SINGLE",
    "PositionEncoding",
    "combine",
    "default_frequencies",
    "from_name",
    "learnable_sinusoidal_absolute",
    "learnable_sinusoidal_relative",
    "learned_absolute",
    "learned_relative",
    "look_up",
    "none",
    "offsets",
    "parameter_count",
    "resize_table",
    "rotate_pairs",
    "sinusoid",
    "sinusoidal_absolute",
    "sinusoidal_relative",
    "split",
]
