"""Position encodings as pure functions; jax and numpy only, no Flax.

An option outside of its range is a ValueError that says what is accepted.

>>> from pe_jax import encodings
>>> encoding = encodings.from_name(
...     "learnable_sinusoidal_relative", hidden_size=256, head_size=64, num_heads=4, max_length=128)
>>> encodings.parameter_count(encoding)
32
"""

import typing

# isort: off
from pe_jax.encodings.encoding import (
    PositionEncoding,
    cycle,
    embed,
    none,
    per_layer,
    parameter_count,
)
from pe_jax.encodings.part import (
    Context,
    HookContext,
    LogitTerms,
    Metadata,
    OffsetProducts,
    OffsetTerms,
    Params,
    Part,
    Traits,
)
from pe_jax.encodings.positions import Positions, AttentionWindow, offsets
from pe_jax.encodings.registry import (
    ENCODINGS,
    WRAPPERS,
    define_encoding,
    register_encoding,
    suggestion as _suggestion,
)

# Every encoding, in the order of the catalogue. A new one is its file, a line here, a name below.
from pe_jax.encodings.absolute.position_vectors import (
    learned_absolute,
    sinusoidal_absolute,
    learnable_sinusoidal_absolute,
)
from pe_jax.encodings.absolute.fourier_features import fourier_features
from pe_jax.encodings.absolute.floater import floater
from pe_jax.encodings.absolute.complex_order import complex_order
from pe_jax.encodings.absolute.convolutional import convolutional
from pe_jax.encodings.absolute.tupe import tupe
from pe_jax.encodings.absolute.counter_examples import (
    raw_index,
    normalized_index,
    sinusoidal_concatenated,
)
from pe_jax.encodings.absolute.patches import learned_2d, sinusoidal_2d
from pe_jax.encodings.relative.offset_vectors import (
    learned_relative,
    sinusoidal_relative,
    learnable_sinusoidal_relative,
    nezha,
)
from pe_jax.encodings.relative.relative_key import relative_key, relative_key_query
from pe_jax.encodings.relative.transformer_xl import transformer_xl
from pe_jax.encodings.relative.tener import tener
from pe_jax.encodings.relative.deberta import deberta
from pe_jax.encodings.relative.inkling import inkling
from pe_jax.encodings.bias.alibi import alibi
from pe_jax.encodings.bias.t5 import t5
from pe_jax.encodings.bias.fire import fire
from pe_jax.encodings.bias.kerple import kerple
from pe_jax.encodings.bias.sandwich import sandwich
from pe_jax.encodings.bias.tisa import tisa
from pe_jax.encodings.bias.dynamic_position_bias import dynamic_position_bias
from pe_jax.encodings.bias.grape_a import grape_a
from pe_jax.encodings.bias.patches import bias_2d, decomposed_2d
from pe_jax.encodings.rotary.rope import convert_layout, rope, with_factors
from pe_jax.encodings.rotary.rope_scaling import (
    rope_linear,
    rope_ntk,
    rope_dynamic_ntk,
    rope_yarn,
    rope_llama3,
    rope_longrope,
)
from pe_jax.encodings.rotary.extended import self_extend, rerope, dual_chunk
from pe_jax.encodings.rotary.lerope import lerope
from pe_jax.encodings.rotary.several_axes import rope_axial, rope_mixed, mrope
from pe_jax.encodings.rotary.centered import rope_centered
from pe_jax.encodings.rotary.fope import fope
from pe_jax.encodings.rotary.xpos import xpos
from pe_jax.encodings.rotary.pope import pope
from pe_jax.encodings.rotary.decoupled import decoupled_rope, rope_slice
from pe_jax.encodings.rotary.string import string
from pe_jax.encodings.rotary.liere import liere
from pe_jax.encodings.rotary.grape_m import grape_m
from pe_jax.encodings.rotary.selective_rope import selective_rope
from pe_jax.encodings.content.fox import fox
from pe_jax.encodings.content.cable import cable
from pe_jax.encodings.content.cope import cope
from pe_jax.encodings.content.per_row_alibi import per_row_alibi
from pe_jax.encodings.content.wall import wall
from pe_jax.encodings.content.repo import repo
from pe_jax.encodings.content.path_attention import path_attention
from pe_jax.encodings.modifiers.temperature import log_n, ssmax
from pe_jax.encodings.modifiers.dape import dape, dape_v2
from pe_jax.encodings.modifiers.sink import sink
from pe_jax.encodings.modifiers.window import causal, chunks, window
from pe_jax.encodings.modifiers.randomized import randomized
from pe_jax.encodings.modifiers.rove import rove
from pe_jax.encodings.modifiers.moved_positions import cape, interpolated, shifted

from pe_jax.encodings.parser import from_name
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid
from pe_jax.encodings.tables import resize_table

# isort: on

__all__ = [
    "ENCODINGS",
    "WRAPPERS",
    "AttentionWindow",
    "Context",
    "HookContext",
    "LogitTerms",
    "Metadata",
    "OffsetProducts",
    "OffsetTerms",
    "Params",
    "Part",
    "PositionEncoding",
    "Positions",
    "Traits",
    "alibi",
    "bias_2d",
    "cable",
    "cape",
    "causal",
    "chunks",
    "complex_order",
    "convert_layout",
    "convolutional",
    "cope",
    "cycle",
    "dape",
    "dape_v2",
    "deberta",
    "decomposed_2d",
    "decoupled_rope",
    "default_frequencies",
    "define_encoding",
    "dual_chunk",
    "dynamic_position_bias",
    "embed",
    "fire",
    "floater",
    "fope",
    "fourier_features",
    "fox",
    "from_name",
    "grape_a",
    "grape_m",
    "inkling",
    "interpolated",
    "kerple",
    "learnable_sinusoidal_absolute",
    "learnable_sinusoidal_relative",
    "learned_2d",
    "learned_absolute",
    "learned_relative",
    "lerope",
    "liere",
    "log_n",
    "mrope",
    "nezha",
    "none",
    "normalized_index",
    "offsets",
    "parameter_count",
    "path_attention",
    "per_layer",
    "per_row_alibi",
    "pope",
    "randomized",
    "raw_index",
    "register_encoding",
    "relative_key",
    "relative_key_query",
    "repo",
    "rerope",
    "resize_table",
    "rope",
    "rope_axial",
    "rope_centered",
    "rope_dynamic_ntk",
    "rope_linear",
    "rope_llama3",
    "rope_longrope",
    "rope_mixed",
    "rope_ntk",
    "rope_slice",
    "rope_yarn",
    "rove",
    "sandwich",
    "selective_rope",
    "self_extend",
    "shifted",
    "sink",
    "sinusoid",
    "sinusoidal_2d",
    "sinusoidal_absolute",
    "sinusoidal_concatenated",
    "sinusoidal_relative",
    "ssmax",
    "string",
    "t5",
    "tener",
    "tisa",
    "transformer_xl",
    "tupe",
    "wall",
    "window",
    "with_factors",
    "xpos",
]

# For an experimental measure of pe_jax.properties; docs/stability.md does not cover it.
EXPERIMENTAL = ("with_factors",)

if not typing.TYPE_CHECKING:  # To a type checker, any attribute would exist.
    _MOVED = {
        "from_hf": "pe_jax.interop.from_hf",
        "wrapper": "pe_jax.encodings.registry.register_wrapper",
    }

    def __getattr__(name: str) -> typing.Any:
        if name in _MOVED:
            raise AttributeError(
                f"{__name__}.{name} does not exist. Use {_MOVED[name]}."
            )
        hint = _suggestion(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
