"""Keys of the model: what `BertConfig` and the configs of runs have in common, and named sizes."""

from __future__ import annotations

import dataclasses

from pe_jax.schema import Config, key, opened
from pe_jax.values import FLAG, integer, number, one_of, optional, text

# No model is near the upper ends: they are for a config.json that is damaged or hostile.
LAYERS = integer(1, 10**4)
WIDTH = integer(1, 10**6)
HEADS = integer(1, 10**5)
INTERMEDIATE = integer(1, 10**7)

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
SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")


@dataclasses.dataclass(frozen=True)
class ModelSettings(Config):
    """Everything about a model but its sizes and its position encoding.

    Parameters, softmax, LayerNorm statistics, angles and losses are float32 whatever `dtype` is.
    """

    max_length: int = key(512, integer(1, 10**7), "Rows of a learned absolute table.")
    num_segments: int = key(
        2, integer(1, 10**5), "Rows of the segment (token type) embedding.", internal=True
    )
    dropout_rate: float = key(
        0.1, number(0, 1, "[)"), "Dropout of embeddings and of each sublayer's output."
    )
    attention_dropout_rate: float = key(0.1, number(0, 1, "[)"), "Dropout of attention weights.")
    layer_norm_epsilon: float = key(1e-12, number(1e-38, 1), internal=True)
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
        "Form of attention; or naive, pairs, buckets, rotation, fused, kernel.",
    )
    scan_layers: bool = key(False, FLAG, "One program for all layers: compiles faster.")
    remat: str = key(
        "none",
        one_of("pe_jax.models.config:REMAT"),
        'Recomputation: "dots" or "full" take less memory and more time.',
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig(ModelSettings):
    """The part `config.model` of a run: a named size, and what replaces the size's own values."""

    size: str = key(
        "base",
        one_of(PRESETS),
        "tiny, mini, small, medium, base or large; with init: the size of init.",
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
