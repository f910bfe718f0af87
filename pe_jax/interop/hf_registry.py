"""Families of transformers' models: facts that their code adds to a config; see `from_hf`.

Keys and defaults are those of the configs' classes in transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.interop.hf_family import (
    CHUNKED,
    FULL,
    NO_ATTENTION,
    ORIGINAL,
    SLIDING,
    Family,
    before_window,
    by_pattern,
    every,
    has_rope,
    has_window,
    in_list,
)

_QWEN2 = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_HEADS_OF_128, _HEADS_OF_256 = {"head_dim": 128}, {"head_dim": 256}
_GEMMA3 = _HEADS_OF_256 | {
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
_GEMMA4 = _HEADS_OF_256 | {
    "global_head_dim": 512,
    "per_layer_config": None,
    "sliding_window": 512,
}
_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL: 4096}
_HALF, _QUARTER = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}
_QWEN3_NEXT = _QUARTER | _HEADS_OF_256 | {"full_attention_interval": 4}
_TABLES = ("absolute", "relative_key", "relative_key_query")

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
    **dict.fromkeys(("gte", "new"), Family(1.6e5)),  # `new` is GTE's first name.
    "nomic_bert": Family(1e3, {"partial_rotary_factor": None}),
    "roformer": Family(layout="interleaved", encodings=("rotary",)),
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
    **dict.fromkeys(
        ("gptj", "codegen"),
        Family(defaults={"rotary_dim": 64}, layout="interleaved", encodings=("rotary",)),
    ),
    "minimax_m2": Family(5e6, {"rotary_dim": None, "partial_rotary_factor": None, **_HEADS_OF_128}),
    # A slice of each head (multi-head latent attention): the encoding is of that slice.
    "deepseek_v2": Family(
        defaults={"qk_rope_head_dim": 64}, layout="interleaved", scales_logits=True
    ),
    **dict.fromkeys(
        ("deepseek_v3", "glm4_moe_lite", "kimi_k2", "youtu"),
        Family(defaults={"qk_rope_head_dim": 64, "rope_interleave": True}, scales_logits=True),
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
    "ministral3": Family(
        1e6,
        _HEADS_OF_128,
        slides=True,
        settings={
            "rope_type": "yarn",
            "factor": 16.0,
            ORIGINAL: 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    ),
    "phi3": Family(defaults={"partial_rotary_factor": 1.0, ORIGINAL: 4096}, slides=True),
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
    "gemma3": Family(
        1e6,
        _GEMMA3 | {"use_bidirectional_attention": None},
        is_full=every("sliding_window_pattern"),
        scales_full_only=True,
    ),
    "gemma3n": Family(
        1e6, _GEMMA3 | {"sliding_window": 512}, is_full=every(5), scales_full_only=True
    ),
    "gemma4": Family(
        defaults=_GEMMA4 | {"use_bidirectional_attention": None},
        is_full=every(6),
        settings={
            FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            SLIDING: {"rope_theta": 1e4},
        },
    ),
    "gpt_oss": Family(
        1.5e5, {"head_dim": 64, "sliding_window": 128}, is_full=every(2), settings=_GPT_OSS
    ),
    **dict.fromkeys(
        ("granite_swa", "granitemoe_swa"),
        Family(
            defaults={"sliding_window": 128, "layer_rope_theta": None},
            is_full=every(4, first=0),
        ),
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
        defaults=_GEMMA4 | {"sliding_window_pattern": 6},
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
    **dict.fromkeys(
        ("exaone4", "exaone4_5"),
        Family(
            defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
            is_full=by_pattern,
            only_sliding_rotates=True,
        ),
    ),
    "smollm3": Family(
        2e6,
        {"no_rope_layers": None, "no_rope_layer_interval": 4, "use_sliding_window": False},
        is_full=lambda config, layer: not has_window(config) or has_rope(config, layer),
    ),
    "llama4": Family(
        5e5,
        _HEADS_OF_128
        | {
            "no_rope_layers": None,
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
        defaults=_HALF | {"attn_layer_indices": None},
        is_full=lambda config, layer: layer in (config["attn_layer_indices"] or ()),
        other=NO_ATTENTION,
    ),
    "granitemoehybrid": Family(
        is_full=lambda config, layer: False, other=NO_ATTENTION, encodings=("nope", "rope")
    ),
    "jamba": Family(encodings=("nope",)),
    "lfm2": Family(
        1e6, {"full_attn_idxs": None}, is_full=in_list("full_attn_idxs"), other=NO_ATTENTION
    ),
    "mllama_text_model": Family(  # Its other layers attend to images, without positions.
        5e5,
        {"cross_attention_layers": None},
        is_full=lambda config, layer: (
            layer not in (config["cross_attention_layers"] or range(3, 39, 5))
        ),
        other=NO_ATTENTION,
    ),
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
    # With ALiBi: of MosaicBERT and DNABERT-2, and of Jina, whose code is their own.
    "bert": Family(defaults={"alibi_starting_size": None}, encodings=(*_TABLES, "alibi")),
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
    "mpt": Family(defaults={"attn_config": None}, encodings=("alibi",)),
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
