"""Families of transformers' models: facts that their code adds to a config; see `from_hf`.

Defaults are those of the classes of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pe_jax.encodings.rotary.rotation import Layout

Config = Mapping[str, Any]

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NO_ATTENTION = "linear_attention"
ORIGINAL = "original_max_position_embeddings"


def required(config: Config, key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"The config lacks {key}, which its position encoding needs.")
    return config[key]


def has_window(config: Config) -> bool:
    if config.get("local_attention"):
        return True
    # Qwen, which has `max_window_layers`, uses its window only where it says so.
    used = config.get("use_sliding_window", "max_window_layers" not in config)
    return bool(config.get("sliding_window")) and bool(used)


def has_rope(config: Config, layer: int) -> bool:
    """Return whether the config lets a layer rotate; the layer's type may forbid it."""
    if config.get("no_rope_layers"):
        return bool(config["no_rope_layers"][layer])
    interval = config.get("no_rope_layer_interval")
    return not interval or (layer + 1) % interval != 0


IsFull = Callable[[Config, int], bool]


def every(period: int | str, first: int = 1) -> IsFull:
    """One layer in so many, a number or the key of one; `first=0` starts with layer 0."""
    return lambda config, layer: (
        (layer + first) % (config[period] if isinstance(period, str) else period) == 0
    )


def in_list(key: str) -> IsFull:
    """The layers that a list has; all of them without one."""
    return lambda config, layer: config.get(key) is None or layer in config[key]


def before_window(config: Config, layer: int) -> bool:
    """Qwen 2: the first `max_window_layers` layers, or all."""
    return not has_window(config) or layer < required(config, "max_window_layers")


def by_pattern(config: Config, layer: int) -> bool:
    """A period, or letters `L` and `G` (EXAONE 4), with which the last layer has full attention."""
    pattern = config["sliding_window_pattern"]
    if not has_window(config) or not pattern:
        return True
    if isinstance(pattern, str):
        return pattern[layer % len(pattern)] == "G" or layer == config["num_hidden_layers"] - 1
    return (layer + 1) % pattern == 0


ROTARY = ("rope", "rotary", "rope_gptj")


class Family(NamedTuple):
    """Facts about a family that its configs leave out.

    Attributes:
      theta: the default of `rope_theta`.
      defaults: of other keys that a config may leave out. `partial_rotary_factor` and `rotary_dim`
        are read only where they are among them.
      layout: of the weights; `rope_interleave` in a config takes precedence.
      is_full: `(config, layer) -> bool`, the layers with full attention where `layer_types` is
        missing; None for all.
      other: the type of the other layers.
      slides: all layers have the window, if there is one, whatever `layer_types` says.
      only_sliding_rotates: layers with full attention have no RoPE, if there is a window.
      reach: of a window, from its size; None for the rules of `from_hf`.
      scales_full_only: version 4's `rope_scaling` is of the layers with full attention alone.
      scales_logits: YaRN's `mscale_all_dim` scales all logits as well.
      settings: rope settings of a config that has none.
      encodings: what `position_embedding_type` may be, the default first.
      padded_table: rows up to `pad_token_id` of the learned table are of no position.
    """

    theta: float = 10_000.0
    defaults: Config = {}
    layout: Layout = "half"
    is_full: IsFull | None = None
    other: str = SLIDING
    slides: bool = False
    only_sliding_rotates: bool = False
    reach: Callable[[int], int] | None = None
    scales_full_only: bool = False
    scales_logits: bool = False
    settings: Config = {}
    encodings: tuple[str, ...] = ROTARY
    padded_table: bool = False


_QWEN2 = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA3 = {
    "head_dim": 256,
    "rope_local_base_freq": 1e4,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_MODERNBERT = {
    "global_rope_theta": 1.6e5,
    "local_rope_theta": 1e4,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL: 4096}
_HEADS_OF_128, _HEADS_OF_256 = {"head_dim": 128}, {"head_dim": 256}
_HALF, _QUARTER = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}
_QWEN3_NEXT = _QUARTER | _HEADS_OF_256 | {"full_attention_interval": 4}
_TABLES = ("absolute", "relative_key", "relative_key_query")

UNNAMED = Family()  # A config without `model_type`: nothing is known but what it says.

FAMILIES: Mapping[str, Family] = {
    # RoPE in all layers, of whole heads.
    **dict.fromkeys(
        (
            *("llama", "arcee", "diffllama", "eurobert", "falcon", "falcon_h1", "granite"),
            *("granitemoe", "granitemoeshared", "hunyuan_v1_dense", "olmo", "olmo2", "olmoe"),
        ),
        Family(),
    ),
    "gemma": Family(defaults=_HEADS_OF_256),
    "seed_oss": Family(defaults=_HEADS_OF_128),
    "gte": Family(1.6e5),
    "nomic_bert": Family(1e3),
    "roformer": Family(layout="interleaved"),
    "jina_embeddings_v3": Family(2e4),
    "bitnet": Family(5e5),
    "flex_olmo": Family(5e5),
    "apertus": Family(
        12e6,
        settings={
            "rope_type": "llama3",
            "rope_theta": 12e6,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            ORIGINAL: 8192,
        },
    ),
    # Pairs of neighbours.
    "cohere": Family(5e5, layout="interleaved"),
    "ernie4_5": Family(5e5, _HEADS_OF_128, "interleaved"),
    "ernie4_5_moe": Family(5e5, layout="interleaved"),
    "helium": Family(1e5, _HEADS_OF_128, "interleaved"),
    # A part of each head.
    "gpt_neox": Family(defaults=_QUARTER),
    "stablelm": Family(defaults=_QUARTER),
    "phi": Family(defaults=_HALF),
    "persimmon": Family(defaults=_HALF),
    "nemotron": Family(defaults=_HALF),
    "glm": Family(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    "glm4": Family(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    "glm4_moe": Family(defaults=_HALF),
    "gptj": Family(defaults={"rotary_dim": 64}, layout="interleaved"),
    "codegen": Family(defaults={"rotary_dim": 64}, layout="interleaved"),
    "minimax_m2": Family(5e6, {"rotary_dim": None, "partial_rotary_factor": None, **_HEADS_OF_128}),
    # A slice of each head (multi-head latent attention): the encoding is of that slice.
    "deepseek_v2": Family(
        defaults={"qk_rope_head_dim": 64}, layout="interleaved", scales_logits=True
    ),
    "deepseek_v3": Family(
        defaults={"qk_rope_head_dim": 64, "rope_interleave": True}, scales_logits=True
    ),
    # Three axes.
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl"),
        Family(1e6, _QWEN2 | {"max_window_layers": 80}, is_full=before_window),
    ),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe"),
        Family(5e5, _HEADS_OF_128 | {"mrope_section": [24, 20, 20], "mrope_interleaved": True}),
    ),
    # A window in all layers, if there is one.
    "mistral": Family(defaults={"sliding_window": 4096}, slides=True),
    "mixtral": Family(1e6, slides=True),
    "ministral3": Family(1e6, _HEADS_OF_128, slides=True),
    "phi3": Family(defaults={"partial_rotary_factor": 1.0}, slides=True),
    "phimoe": Family(1e6, slides=True),
    "starcoder2": Family(slides=True),
    "qwen3_moe": Family(
        defaults={"use_sliding_window": False, "sliding_window": 4096}, slides=True
    ),
    # A window in some layers.
    "ministral": Family(
        defaults={"sliding_window": 4096}, is_full=lambda config, layer: not has_window(config)
    ),
    "qwen2": Family(defaults=_QWEN2, is_full=before_window),
    "qwen2_moe": Family(
        defaults=_QWEN2,
        is_full=lambda config, layer: (
            not has_window(config) or layer % 2 == 1 or layer >= config["max_window_layers"]
        ),
    ),
    "qwen3": Family(defaults=_QWEN2 | _HEADS_OF_128, is_full=before_window),
    "dots1": Family(
        defaults=_QWEN2 | {"use_sliding_window": True, "max_window_layers": 62},
        is_full=before_window,
    ),
    "gemma2": Family(defaults=_HEADS_OF_256 | {"sliding_window": 4096}, is_full=every(2)),
    "vaultgemma": Family(defaults=_HEADS_OF_256 | {"sliding_window": 4096}, is_full=every(2)),
    "gemma3": Family(1e6, _GEMMA3, is_full=every("sliding_window_pattern"), scales_full_only=True),
    "gemma3n": Family(
        1e6, _GEMMA3 | {"sliding_window": 512}, is_full=every(5), scales_full_only=True
    ),
    "gemma4": Family(
        defaults=_HEADS_OF_256 | {"global_head_dim": 512, "sliding_window": 512},
        is_full=every(6),
        settings={
            FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            SLIDING: {"rope_theta": 1e4},
        },
    ),
    "gpt_oss": Family(
        1.5e5, {"head_dim": 64, "sliding_window": 128}, is_full=every(2), settings=_GPT_OSS
    ),
    "olmo3": Family(5e5, {"sliding_window": 4096}, is_full=every(4), scales_full_only=True),
    "modernbert": Family(
        defaults=_MODERNBERT, is_full=every("global_attn_every_n_layers", first=0)
    ),
    "modernbert-decoder": Family(
        defaults=_MODERNBERT,
        is_full=every("global_attn_every_n_layers", first=0),
        reach=lambda size: size // 2 - 1,
    ),
    # Encoders, whose window is the reach itself.
    "embedding_gemma2": Family(
        defaults=_HEADS_OF_256
        | {"global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 6},
        is_full=by_pattern,
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}},
    ),
    "openai_privacy_filter": Family(
        1.5e5,
        {"head_dim": 64, "sliding_window": 128},
        "interleaved",
        slides=True,
        reach=lambda size: size,
        settings=_GPT_OSS,
    ),
    "ultrabert": Family(
        defaults={"sliding_window": 128},
        is_full=every(3),
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 2_560_000.0}, SLIDING: {"rope_theta": 1e4}},
    ),
    # RoPE in some layers.
    "afmoe": Family(
        defaults=_HEADS_OF_128 | {"sliding_window": 1024, "global_attn_every_n_layers": 4},
        is_full=every("global_attn_every_n_layers"),
        only_sliding_rotates=True,
    ),
    "cohere2": Family(
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
        layout="interleaved",
        is_full=every("sliding_window_pattern"),
        only_sliding_rotates=True,
    ),
    "exaone4": Family(
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
        is_full=by_pattern,
        only_sliding_rotates=True,
    ),
    "smollm3": Family(
        2e6,
        {"no_rope_layer_interval": 4, "use_sliding_window": False},
        is_full=lambda config, layer: not has_window(config) or has_rope(config, layer),
    ),
    "llama4": Family(
        5e5,
        _HEADS_OF_128
        | {
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        "interleaved",
        is_full=lambda config, layer: (
            config["attention_chunk_size"] is None or not has_rope(config, layer)
        ),
        other=CHUNKED,
    ),
    # Attention in some layers.
    "bamba": Family(
        defaults=_HALF | {"attn_layer_indices": []},
        is_full=in_list("attn_layer_indices"),
        other=NO_ATTENTION,
    ),
    "granitemoehybrid": Family(
        is_full=lambda config, layer: False, other=NO_ATTENTION, encodings=("nope", "rope")
    ),
    "jamba": Family(encodings=("nope",)),
    "lfm2": Family(1e6, is_full=in_list("full_attn_idxs"), other=NO_ATTENTION),
    "qwen3_next": Family(
        defaults=_QWEN3_NEXT, is_full=every("full_attention_interval"), other=NO_ATTENTION
    ),
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_moe"),
        Family(
            defaults=_QWEN3_NEXT | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
            is_full=every("full_attention_interval"),
            other=NO_ATTENTION,
        ),
    ),
    # A learned table at the input, or tables of offsets; ALiBi.
    "albert": Family(defaults={"embedding_size": 128}, encodings=_TABLES),
    "bert": Family(encodings=_TABLES),
    "distilbert": Family(encodings=("absolute",)),
    "electra": Family(defaults={"embedding_size": 128}, encodings=_TABLES),
    "gpt2": Family(encodings=("absolute",)),
    "gpt_bigcode": Family(encodings=("absolute",)),
    "opt": Family(encodings=("absolute",)),
    "camembert": Family(defaults={"pad_token_id": 1}, encodings=_TABLES, padded_table=True),
    "esm": Family(encodings=("absolute", "rotary"), padded_table=True),
    "roberta": Family(defaults={"pad_token_id": 1}, encodings=_TABLES, padded_table=True),
    "xlm-roberta": Family(defaults={"pad_token_id": 1}, encodings=_TABLES, padded_table=True),
    "bloom": Family(encodings=("alibi",)),
    "mpt": Family(encodings=("alibi",)),
}

# Families that are refused, and why.
REFUSED: Mapping[str, str] = {
    "deberta": "its tables of offsets meet queries and keys: encodings.deberta",
    "deberta-v2": "its tables of offsets meet queries and keys: encodings.deberta",
    "nanochat": "it rotates in the opposite direction: swap the halves of each head in the weights "
    "of queries and keys, and take encodings.rope",
    "t5": "its encoder and decoder have tables of their own: encodings.t5",
    "mt5": "its encoder and decoder have tables of their own: encodings.t5",
    "umt5": "every layer of its encoder and decoder has a table of its own: encodings.t5",
    "xlnet": "it adds terms of offsets to permuted inputs: encodings.transformer_xl",
}
