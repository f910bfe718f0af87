"""Keys of the model: what `BertConfig` and the configs of runs have in common, and named sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pe_jax.schema import Config, key, opened
from pe_jax.values import FLAG, integer, number, one_of, optional, text

# No model is near the upper ends: they are for a config.json that is damaged or hostile.
LAYERS = integer(1, 10**4)
WIDTH = integer(1, 10**6)
HEADS = integer(1, 10**5)
INTERMEDIATE = integer(1, 10**7)

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

# Settings of ModernBERT (Warner et al. 2024): the differences from BERT's, which are the defaults.
MODERNBERT: dict[str, Any] = {
    "position": "cycle(rope(base=160000), rope+window(reach=64), rope+window(reach=64))",
    "max_length": 8192,
    "pre_norm": True,
    "first_norm": False,
    "final_norm": True,
    "norm_bias": False,
    "layer_norm_epsilon": 1e-5,
    "num_segments": 0,
    "attention_bias": False,
    "gated_mlp": True,
    "up_bias": False,
    "down_bias": False,
    "head_bias": False,
    "pooler": "head",
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}
# Layers, hidden size: the sizes of Turc et al. 2019 and Devlin et al. 2018, heads of size 64.
_LAYERS_AND_WIDTH = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
# Layers, hidden size, intermediate size: ModernBERT's, and Ettin's (Weller et al. 2025).
_MODERN_SIZES = {
    "ettin_17m": (7, 256, 384),
    "ettin_32m": (10, 384, 576),
    "ettin_68m": (19, 512, 768),
    "modernbert_base": (22, 768, 1152),
    "modernbert_large": (28, 1024, 2624),
}


def _sizes(layers: int, width: int, intermediate: int) -> dict[str, Any]:
    return {
        "num_layers": layers,
        "hidden_size": width,
        "num_heads": width // 64,
        "intermediate_size": intermediate,
    }


# Fields of BertConfig, of which `position` is a name.
PRESETS: dict[str, dict[str, Any]] = {
    **{name: _sizes(n, width, 4 * width) for name, (n, width) in _LAYERS_AND_WIDTH.items()},
    **{name: {**_sizes(*sizes), **MODERNBERT} for name, sizes in _MODERN_SIZES.items()},
}
SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")


@dataclasses.dataclass(frozen=True)
class Architecture(Config):
    """Settings in which encoders differ; the defaults are those of BERT.

    Config files have no such keys: a named size or a published model sets them.

    Attributes:
      pre_norm: each sublayer normalises its input and adds to it; else the sum is normalised.
      norm: of all normalisations, of which `rms_norm` has no bias.
      embedding_norm: whether embeddings are normalised.
      first_norm: whether the first layer has `attention_norm`.
      final_norm: whether the output of the last layer is normalised.
      gated_mlp: the MLP is down(activation(gate) · up), GeGLU with `gelu`, SwiGLU with `silu`.
      up_bias, down_bias: of the MLP.
      num_key_heads: heads of keys and values, a divisor of the number of heads; None means equal.
      num_segments: rows of the segment (token type) embedding; 0 means that there is none.
      unused_rows: rows of the token embedding after those of the vocabulary, which published models
        have for speed; they are kept, and never predicted.
      positions_from_mask: positions that are added to the input count tokens, not padding, so that
        padding may come first; else they count from the start of a row.
      head_dense: whether the masked-LM head has a dense layer (`head_bias`, `head_activation`) and
        a normalisation (`head_norm`) before its output layer.
      tied_decoder: the output layer is the token embedding.
      pooler: what a classifier reads a whole input through: a dense layer and tanh (`tanh`), or
        layers like those of the masked-LM head before its output layer (`head`), which the output
        layer of spans then has as well.
      classifier_pooling: what the pooler reads: the first token (`cls`), or the mean over tokens.
    """

    pre_norm: bool = key(False, FLAG, internal=True)
    norm: str = key("layer_norm", one_of(("layer_norm", "rms_norm")), internal=True)
    norm_bias: bool = key(True, FLAG, internal=True)
    layer_norm_epsilon: float = key(1e-12, number(1e-38, 1), internal=True)
    embedding_norm: bool = key(True, FLAG, internal=True)
    first_norm: bool = key(True, FLAG, internal=True)
    final_norm: bool = key(False, FLAG, internal=True)
    activation: str = key("gelu", one_of(ACTIVATIONS), internal=True)
    gated_mlp: bool = key(False, FLAG, internal=True)
    attention_bias: bool = key(True, FLAG, internal=True)
    up_bias: bool = key(True, FLAG, internal=True)
    down_bias: bool = key(True, FLAG, internal=True)
    num_key_heads: int | None = key(None, optional(HEADS), internal=True)
    num_segments: int = key(2, integer(0, 10**5), internal=True)
    unused_rows: int = key(0, integer(0, 10**8), internal=True)
    positions_from_mask: bool = key(False, FLAG, internal=True)
    head_dense: bool = key(True, FLAG, internal=True)
    head_bias: bool = key(True, FLAG, internal=True)
    head_activation: str = key("gelu", one_of(ACTIVATIONS), internal=True)
    head_norm: bool = key(True, FLAG, internal=True)
    tied_decoder: bool = key(True, FLAG, internal=True)
    decoder_bias: bool = key(True, FLAG, internal=True)
    pooler: str = key("tanh", one_of(("tanh", "head")), internal=True)
    classifier_pooling: str = key("cls", one_of(("cls", "mean")), internal=True)

    def faults(self) -> Iterator[str]:
        if self.norm == "rms_norm" and self.norm_bias:
            yield "norm_bias is True, but rms_norm has no bias: give norm_bias=False."


ARCHITECTURE = tuple(field.name for field in dataclasses.fields(Architecture))
# The same settings, None by default: the size's.
_SizesArchitecture = opened(Architecture, ())


@dataclasses.dataclass(frozen=True)
class ModelSettings(Architecture):
    """Everything about a model but its sizes and its position encoding.

    Parameters, softmax, LayerNorm statistics, angles and losses are float32 whatever `dtype` is.
    """

    max_length: int = key(512, integer(1, 10**7), "Rows of a learned absolute table.")
    dropout_rate: float = key(
        0.1, number(0, 1, "[)"), "Dropout of embeddings and of each sublayer's output."
    )
    attention_dropout_rate: float = key(0.1, number(0, 1, "[)"), "Dropout of attention weights.")
    initializer_stddev: float = key(
        0.02,
        number(0, 100, "(]"),
        "Of initial weights. Small models: about 1/sqrt(hidden_size).",
    )
    dtype: str = key(
        "float32", one_of(("float32", "bfloat16")), 'Dtype of the computation; or "bfloat16".'
    )
    attention: str = key(
        "auto",
        one_of("pe_jax.attention.forms:FORMS", "auto"),
        "Form of attention; or naive, pairs, buckets, rotation, fused, kernel, cudnn.",
    )
    scan_layers: bool = key(False, FLAG, "One program for all layers: compiles faster.")
    remat: str = key(
        "none",
        one_of("pe_jax.models.config:REMAT"),
        'Recomputation: "dots" or "full" take less memory and more time.',
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig(_SizesArchitecture, ModelSettings):  # type: ignore[misc, valid-type]
    """The part `config.model` of a run: a named size, and what replaces the size's own values."""

    size: str = key(
        "base",
        one_of(PRESETS),
        "tiny, mini, small, medium, base, large, or a ModernBERT; with init: the size of init.",
    )
    num_layers: int | None = key(
        None, optional(LAYERS), "Replaces the value of the size, as do the other sizes."
    )
    hidden_size: int | None = key(None, optional(WIDTH))
    num_heads: int | None = key(None, optional(HEADS))
    intermediate_size: int | None = key(None, optional(INTERMEDIATE))
    position: str = key(
        "learned_absolute",
        text("Give the name of an encoding, or none."),
        'With options: "rope(base=500)+alibi".',
    )


# What fine-tuning may change of the pretrained model. None keeps that model's own value; a run
# fills all of them in before it begins.
ModelChanges = opened(
    ModelConfig,
    ("position", "dropout_rate", "attention_dropout_rate", "dtype", "attention", "scan_layers",
     "remat"),
)  # fmt: skip
