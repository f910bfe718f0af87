"""Position encodings as pure functions; jax and numpy only, no Flax.

>>> from pe_jax import encodings
>>> encoding = encodings.from_name(
...     "learnable_sinusoidal_relative", hidden_size=256, head_size=64, num_heads=4, max_length=128)
>>> encodings.parameter_count(encoding)
32
"""

import types
import typing

# isort: off
from pe_jax.encodings.encoding import (
    PositionEncoding as PositionEncoding,
    cycle as cycle,
    embed as embed,
    none as none,
    per_layer as per_layer,
    checked_encoding as checked_encoding,
    parameter_count as parameter_count,
)
from pe_jax.encodings.part import (
    Metadata as Metadata,
    Context as Context,
    LogitTerms as LogitTerms,
    OffsetTerms as OffsetTerms,
    Params as Params,
    Part as Part,
    Traits as Traits,
)
from pe_jax.encodings.positions import (
    Positions as Positions,
    AttentionWindow as AttentionWindow,
    offsets as offsets,
)
from pe_jax.encodings.registry import (
    ENCODINGS as ENCODINGS,
    WRAPPERS as WRAPPERS,
    named as named,
    registered as registered,
    suggestion as _suggestion,
    wrapper as wrapper,
)

# Every encoding, in the order of the catalogue. A new one is its file and a line here.
from pe_jax.encodings.absolute.position_vectors import (
    PUBLISHED as PUBLISHED,
    learned_absolute as learned_absolute,
    sinusoidal_absolute as sinusoidal_absolute,
    learnable_sinusoidal_absolute as learnable_sinusoidal_absolute,
)
from pe_jax.encodings.absolute.fourier_features import fourier_features as fourier_features
from pe_jax.encodings.absolute.floater import floater as floater
from pe_jax.encodings.absolute.complex_order import complex_order as complex_order
from pe_jax.encodings.absolute.convolutional import convolutional as convolutional
from pe_jax.encodings.absolute.tupe import tupe as tupe
from pe_jax.encodings.absolute.counter_examples import (
    raw_index as raw_index,
    normalised_index as normalised_index,
    sinusoidal_concatenated as sinusoidal_concatenated,
)
from pe_jax.encodings.absolute.patches import (
    learned_2d as learned_2d,
    sinusoidal_2d as sinusoidal_2d,
)
from pe_jax.encodings.relative.offset_vectors import (
    learned_relative as learned_relative,
    sinusoidal_relative as sinusoidal_relative,
    learnable_sinusoidal_relative as learnable_sinusoidal_relative,
    nezha as nezha,
)
from pe_jax.encodings.relative.relative_key import (
    relative_key as relative_key,
    relative_key_query as relative_key_query,
)
from pe_jax.encodings.relative.transformer_xl import transformer_xl as transformer_xl
from pe_jax.encodings.relative.tener import tener as tener
from pe_jax.encodings.relative.deberta import deberta as deberta
from pe_jax.encodings.relative.inkling import inkling as inkling
from pe_jax.encodings.bias.alibi import alibi as alibi
from pe_jax.encodings.bias.t5 import t5 as t5
from pe_jax.encodings.bias.fire import fire as fire
from pe_jax.encodings.bias.kerple import kerple as kerple
from pe_jax.encodings.bias.sandwich import sandwich as sandwich
from pe_jax.encodings.bias.tisa import tisa as tisa
from pe_jax.encodings.bias.dynamic_position_bias import (
    dynamic_position_bias as dynamic_position_bias,
)
from pe_jax.encodings.bias.grape_a import grape_a as grape_a
from pe_jax.encodings.bias.patches import (
    bias_2d as bias_2d,
    decomposed_2d as decomposed_2d,
)
from pe_jax.encodings.rotary.rope import (
    convert_layout as convert_layout,
    rope as rope,
    rotate_heads as rotate_heads,
    with_factors as with_factors,
)
from pe_jax.encodings.rotary.rope_scaling import (
    rope_linear as rope_linear,
    rope_ntk as rope_ntk,
    rope_dynamic_ntk as rope_dynamic_ntk,
    rope_yarn as rope_yarn,
    rope_llama3 as rope_llama3,
    rope_longrope as rope_longrope,
)
from pe_jax.encodings.rotary.extended import (
    self_extend as self_extend,
    rerope as rerope,
    dual_chunk as dual_chunk,
)
from pe_jax.encodings.rotary.lerope import lerope as lerope
from pe_jax.encodings.rotary.several_axes import (
    rope_axial as rope_axial,
    rope_mixed as rope_mixed,
    mrope as mrope,
)
from pe_jax.encodings.rotary.centred import rope_centred as rope_centred
from pe_jax.encodings.rotary.fope import fope as fope
from pe_jax.encodings.rotary.xpos import xpos as xpos
from pe_jax.encodings.rotary.pope import pope as pope
from pe_jax.encodings.rotary.decoupled import (
    decoupled_rope as decoupled_rope,
    rope_slice as rope_slice,
)
from pe_jax.encodings.rotary.string import string as string
from pe_jax.encodings.rotary.liere import liere as liere
from pe_jax.encodings.rotary.grape_m import grape_m as grape_m
from pe_jax.encodings.rotary.selective_rope import selective_rope as selective_rope
from pe_jax.encodings.content.fox import fox as fox
from pe_jax.encodings.content.cable import cable as cable
from pe_jax.encodings.content.cope import cope as cope
from pe_jax.encodings.content.per_row_alibi import per_row_alibi as per_row_alibi
from pe_jax.encodings.content.wall import wall as wall
from pe_jax.encodings.content.repo import repo as repo
from pe_jax.encodings.content.path_attention import path_attention as path_attention
from pe_jax.encodings.modifiers.temperature import log_n as log_n
from pe_jax.encodings.modifiers.temperature import ssmax as ssmax
from pe_jax.encodings.modifiers.dape import dape as dape
from pe_jax.encodings.modifiers.dape import dape_v2 as dape_v2
from pe_jax.encodings.modifiers.sink import sink as sink
from pe_jax.encodings.modifiers.window import (
    causal as causal,
    chunks as chunks,
    window as window,
)
from pe_jax.encodings.modifiers.randomised import randomised as randomised
from pe_jax.encodings.modifiers.rove import rove as rove
from pe_jax.encodings.modifiers.moved_positions import (
    cape as cape,
    interpolated as interpolated,
    shifted as shifted,
)

from pe_jax.encodings.parser import PAPER as PAPER
from pe_jax.encodings.parser import from_name as from_name
from pe_jax.encodings.parser import without_options as without_options
from pe_jax.encodings.sinusoid import angles as angles
from pe_jax.encodings.sinusoid import default_frequencies as default_frequencies
from pe_jax.encodings.sinusoid import rotate_pairs as rotate_pairs
from pe_jax.encodings.sinusoid import sinusoid as sinusoid
from pe_jax.encodings.tables import look_up as look_up
from pe_jax.encodings.tables import resize_table as resize_table
from pe_jax.values import split_names as split_names

# isort: on

__all__ = sorted(
    name
    for name, value in list(globals().items())
    if name[0] != "_" and not isinstance(value, types.ModuleType)
)

if not typing.TYPE_CHECKING:  # To a type checker, any attribute would exist.

    def __getattr__(name: str) -> typing.Any:
        if name == "from_hf":  # Beside `from_name`, for callers; its module imports this package.
            from pe_jax.interop import from_hf

            return from_hf
        hint = _suggestion(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
