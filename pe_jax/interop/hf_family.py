"""Facts about a family of transformers' models: what it does with positions, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pe_jax.encodings.rotary.several_axes import AxialLayout
from pe_jax.interop.encoder_format import EncoderFormat

Config = Mapping[str, Any]

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NO_ATTENTION = "linear_attention"
LAYER_TYPES = {
    **{name: name for name in (FULL, SLIDING, CHUNKED, NO_ATTENTION)},
    # Of all keys, some are chosen by their content.
    **dict.fromkeys(("indexed_attention", "deepseek_sparse_attention"), FULL),
    **dict.fromkeys(("qwen_sparse_attention", "minimax_m3_sparse"), FULL),
    # Attention and a convolution or a recurrence.
    "hybrid": FULL,
    "hybrid_sliding": SLIDING,
    "attention": FULL,
    **dict.fromkeys(("conv", "mamba", "mlp", "moe", "recurrent"), NO_ATTENTION),
}
ORIGINAL = "original_max_position_embeddings"


def required(config: Config, key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"{key} is missing from the config; its position encoding needs it.")
    return config[key]


# `(config, layer) ->` full attention or not, or the layer's type.
IsFull = Callable[[Config, int], bool | str]

AXIAL, INKLING = "axial", "inkling"
BY_LAYER = ("rope", "rotary", "rope_gptj", AXIAL, INKLING)
SIZE_KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
_ROPE = {"head_dim", "rope_theta", "rope_scaling", "rope_parameters", "is_causal"}


class HFFamily(NamedTuple):
    """Facts about a family that its configs leave out."""

    theta: float = 10_000.0  # The default of `rope_theta`.
    # Of the keys that the class has besides those of `reads`, None for no default.
    defaults: Config = {}
    layout: AxialLayout = "half"  # Of the weights; `rope_interleave` in a config takes precedence.
    # The layers with full attention where `layer_types` is missing; None for all.
    is_full: IsFull | None = None
    other: str = SLIDING  # The type of the other layers.
    slides: bool = False  # Layers with full attention have the window, if there is one.
    # Layers with full attention have no RoPE, if there is a window.
    only_sliding_rotates: bool = False
    # Of a window, from its size; None for the rules of `from_hf`.
    reach: Callable[[int], int] | None = None
    # Version 4's `rope_scaling` is of the layers with full attention alone.
    scales_full_only: bool = False
    scales_logits: bool = False  # YaRN's `mscale_all_dim` scales all logits as well.
    settings: Config = {}  # Rope settings of a config that has none.
    # What `position_embedding_type` may be, the default first; with one, it is not read.
    # `"rotary"` is RoPE without settings, `"axial"` RoPE of rows and columns.
    encodings: tuple[str, ...] = ("rope",)
    # Keys that the class has under another name, which takes precedence: theirs -> ours.
    renamed: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()  # Keys without which nothing is known.
    only: Config = {}  # Keys that are supported with this value alone, or left out.
    padded_table: bool = False  # Rows up to `pad_token_id` of the learned table are of no position.
    # Names that the learned table has in published checkpoints; none if it is not read.
    table: tuple[str, ...] = ()
    # How its encoders are read and written; None if they are not.
    encoder: EncoderFormat | None = None
    sizes: tuple[int, ...] = ()  # Defaults of `SIZE_KEYS`.

    def reads(self) -> set[str]:
        """Return the keys of a config that matter to positions; its class ignores all others."""
        some = {
            "layer_types": self.is_full is not None,
            "sliding_window": self.slides or (self.is_full is not None and self.other == SLIDING),
            "position_embedding_type": len(self.encodings) > 1,
            "pad_token_id": self.padded_table,
        }
        keys = {*SIZE_KEYS, "model_type", *self.defaults, *self.needs}
        keys |= {key for key in some if some[key]}
        return keys | _ROPE if {"rope", AXIAL} & {*self.encodings} else keys


# A config without `model_type`: nothing is known but what it says.
UNNAMED = HFFamily(encodings=("rope", "rotary", "rope_gptj"))
