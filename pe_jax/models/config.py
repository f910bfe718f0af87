"""The model's sizes: a frozen dataclass with no training field in it, and the named presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from pe_jax import encodings
from pe_jax.attention.forms import FORMS, PLATFORMS
from pe_jax.attention.product import is_product_of_layers
from pe_jax.errors import did_you_mean
from pe_jax.values import FLAG, Kind, integer, number, one_of

# What a layer keeps for its backward pass: a policy of jax.checkpoint, or all.
REMAT: dict[str, Callable[..., bool] | None] = {
    "none": None,
    "dots": is_product_of_layers,
    "full": jax.checkpoint_policies.nothing_saveable,
}

# What the fields of a BertConfig may be, but for `position`, which is read with the sizes. No model
# is near the upper ends: they are there for a config.json that is damaged or hostile.
FIELDS: dict[str, Kind] = {
    "vocab_size": integer(1, 10**8),
    "hidden_size": integer(1, 10**6),
    "num_layers": integer(1, 10**4),
    "num_heads": integer(1, 10**5),
    "intermediate_size": integer(1, 10**7),
    "max_length": integer(1, 10**7),
    "num_segments": integer(1, 10**5),
    "dropout_rate": number(0, 1, "[)"),
    "attention_dropout_rate": number(0, 1, "[)"),
    "layer_norm_epsilon": number(1e-38, 1),
    "initializer_stddev": number(0, 100, "(]"),
    "dtype": one_of(("float32", "bfloat16")),
    "attention": one_of(("auto", *FORMS)),
    "platform": one_of(("", *PLATFORMS)),
    "scan_layers": FLAG,
    "remat": one_of(REMAT),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and constants of a BERT (Devlin et al. 2018).

    Attributes:
      vocab_size: V, rows of the token embedding.
      hidden_size: D; num_heads divides it, the head size is d = D / H.
      num_layers, num_heads, intermediate_size: of the Transformer blocks.
      max_length: rows of a learned absolute position table; nothing else depends on it.
      num_segments: rows of the segment (token type) embedding.
      position: the position encoding: a name, see `pe_jax.encodings.stack_from_name`, or one made
        in Python. Whatever takes this config trains, measures, counts and exports this one.
      dropout_rate: of embeddings and sublayer outputs; attention_dropout_rate: of the weights.
      dtype: of the computation, "float32" or "bfloat16". Parameters, softmax, LayerNorm statistics,
        angles and losses are float32 always.
      attention: the form of attention, see `pe_jax.attention.attention`.
      platform: what the program is compiled for, where that is not where it is compiled: "cpu",
        "gpu" or "tpu". Empty means the devices of this process.
      scan_layers: one program for all layers instead of a copy each: compiles several times as
        fast, runs a little slower. Same parameters, same numbers.
      remat: what the backward pass computes again instead of keeping: "none"; "dots" keeps the
        results of dense layers only; "full" keeps the inputs of the layers only.
    """

    vocab_size: int = 30_522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 512
    num_segments: int = 2
    position: str | encodings.PositionEncoding | encodings.Stack = "learned_absolute"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_stddev: float = 0.02
    dtype: str = "float32"
    attention: str = "auto"
    platform: str = ""
    scan_layers: bool = False
    remat: str = "none"

    def __post_init__(self):
        for name, kind in FIELDS.items():
            if fault := kind.fault(getattr(self, name)):
                raise ValueError(f"{name} {fault}")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}."
            )
        try:
            encoding = self.encoding()
        except ValueError as error:
            raise ValueError(f"position {self.position!r}: {error}") from error
        turn = len(encoding.layers) or 1
        if self.scan_layers and self.num_layers % turn:
            raise ValueError(
                f"scan_layers runs {turn} layers of {encoding.name!r} at a time, which does "
                f"not divide num_layers {self.num_layers}: give scan_layers=False."
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def encoding(self) -> encodings.Stack:
        """The position encoding, over all layers, built for these sizes."""
        if not isinstance(self.position, str):
            return encodings.as_stack(self.position)
        sizes = (self.hidden_size, self.head_size, self.num_heads, self.max_length)
        return encodings.stack_from_name(self.position, encodings.Sizes(*sizes))


# Layers, hidden size: the sizes of Turc et al. 2019 and Devlin et al. 2018, heads of size 64.
_LAYERS_AND_WIDTH = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
PRESETS: dict[str, dict[str, int]] = {
    name: {
        "num_layers": layers,
        "hidden_size": width,
        "num_heads": width // 64,
        "intermediate_size": 4 * width,
    }
    for name, (layers, width) in _LAYERS_AND_WIDTH.items()
}


def preset(name: str, **overrides: Any) -> BertConfig:
    """A BertConfig of a named size: tiny, mini, small, medium, base or large.

    Raises:
      ValueError: for a name that is not a preset.
    """
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ValueError(f"Unknown model size {name!r}.{hint} Known: {', '.join(PRESETS)}.")
    return BertConfig(**{**PRESETS[name], **overrides})
