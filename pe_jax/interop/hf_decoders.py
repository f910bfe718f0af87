"""Decoders of transformers, by `model_type`: what they do with positions.

Keys and defaults are those of the configs' classes in transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.interop.hf_family import (
    CHUNKED,
    FULL,
    INKLING,
    NO_ATTENTION,
    ORIGINAL,
    SLIDING,
    Config,
    HFFamily,
    before_window,
    by_pattern,
    every,
    has_rope,
    has_window,
    in_list,
)

_LENGTH = "max_position_embeddings"
_HEADS_OF_64, _HEADS_OF_128, _HEADS_OF_256 = ({"head_dim": size} for size in (64, 128, 256))
_HALF, _QUARTER = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}
_QWEN2 = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_MROPE = {"mrope_section": [16, 24, 24]}
_QWEN3_MROPE = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
_QWEN3_NEXT = _QUARTER | _HEADS_OF_256 | {"full_attention_interval": 4}
_QWEN3_5_MROPE = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}
_GLM4V = {"mrope_section": [8, 12, 12], "partial_rotary_factor": None}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 8192}
_MISTRAL_YARN = {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0} | {
    "llama_4_scaling_beta": 0.1
}
GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL: 4096}
_GEMMA3 = _HEADS_OF_256 | {"rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
GEMMA4 = _HEADS_OF_256 | {"global_head_dim": 512, "per_layer_config": None, "sliding_window": 512}
_GEMMA4_ROPE = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    SLIDING: {"rope_theta": 1e4},
}
_MUSE = {"sliding_window": 2048, "layer_rope_theta": None}
MODERNBERT = HFFamily(
    defaults={"global_rope_theta": 1.6e5, "local_rope_theta": 1e4, "local_attention": 128}
    | {"global_attn_every_n_layers": 3},
    is_full=every("global_attn_every_n_layers", first=0),
)


def all_full(config: Config, layer: int) -> bool:
    return True


def every_from_last(config: Config, layer: int) -> bool:
    """One layer in four, the last among them."""
    return (config["num_hidden_layers"] - 1 - layer) % 4 == 0


DECODERS: Mapping[str, HFFamily] = {
    # RoPE in all layers, of whole heads.
    **dict.fromkeys(
        # kyutai_speech_to_text and moshi have windows in the cache alone.
        "llama arcee aria chameleon deepseek_ocr2 deepseek_ocr2_encoder diffllama falcon "
        "falcon_h1 gradium_phonon_tts granite granite4_vision granite_docling granitemoe "
        "granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hyperclovax idefics jais2 "
        "kyutai_speech_to_text moshi olmo olmo2 olmoe pocket_tts".split(),
        HFFamily(),
    ),
    "gemma": HFFamily(defaults=_HEADS_OF_256),
    **dict.fromkeys(("hrm_text", "seed_oss"), HFFamily(defaults=_HEADS_OF_128)),
    "molmo2": HFFamily(defaults={**_HEADS_OF_128, "rope_scaling_layers": None}),
    "timesfm2_5": HFFamily(defaults={"head_dim": 80}),
    "jetmoe": HFFamily(defaults=_HEADS_OF_128, renamed={"kv_channels": "head_dim"}),
    **dict.fromkeys(
        ("bitnet", "csm", "csm_depth_decoder_model", "evolla", "flex_olmo"), HFFamily(5e5)
    ),
    "emu3_text_model": HFFamily(1e6),
    "solar_open": HFFamily(1e6, _HEADS_OF_128),
    "hy_v3": HFFamily(11_158_840.0, _HEADS_OF_128),
    **dict.fromkeys(
        ("apertus", "apertus1p5"),
        HFFamily(12e6, settings=_LLAMA3 | {"rope_theta": 12e6, "factor": 8.0}),
    ),
    "higgs_audio_v2": HFFamily(
        5e5,
        _HEADS_OF_128,
        settings={"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, ORIGINAL: 1024}
        | {"low_freq_factor": 0.125, "high_freq_factor": 0.5},
    ),
    # Pairs of neighbours.
    **dict.fromkeys(("cohere", "ernie4_5_moe"), HFFamily(5e5, layout="interleaved")),
    "ernie4_5": HFFamily(5e5, _HEADS_OF_128, "interleaved"),
    **dict.fromkeys(
        ("blt_global_transformer", "blt_local_decoder", "blt_local_encoder"),
        HFFamily(5e5, layout="interleaved"),
    ),
    "blt_patcher": HFFamily(layout="interleaved"),
    "helium": HFFamily(1e5, _HEADS_OF_128, "interleaved"),
    # A part of each head.
    **dict.fromkeys(("gpt_neox", "stablelm"), HFFamily(defaults=_QUARTER)),
    **dict.fromkeys(("phi", "persimmon", "nemotron", "glm4_moe"), HFFamily(defaults=_HALF)),
    "gpt_neox_japanese": HFFamily(defaults={"partial_rotary_factor": 1.0}),
    "moonshine": HFFamily(
        defaults={"partial_rotary_factor": 0.9},
        layout="interleaved",
        renamed={f"decoder_{key}": key for key in ("num_attention_heads", "num_hidden_layers")},
    ),
    "moonshine_streaming": HFFamily(defaults={"partial_rotary_factor": 0.8}, layout="interleaved"),
    "glm": HFFamily(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    "glm4": HFFamily(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    **dict.fromkeys(
        ("gptj", "codegen"),
        HFFamily(defaults={"rotary_dim": 64}, layout="interleaved", encodings=("rotary",)),
    ),
    "minimax_m2": HFFamily(
        5e6, {"rotary_dim": None, "partial_rotary_factor": None, **_HEADS_OF_128}
    ),
    "minimax_m3_vl": HFFamily(5e6, {"partial_rotary_factor": None, **_HEADS_OF_128}),
    # A slice of each head (multi-head latent attention): the encoding is of that slice.
    "deepseek_v2": HFFamily(
        defaults={"qk_rope_head_dim": 64}, layout="interleaved", scales_logits=True
    ),
    **dict.fromkeys(
        ("axk1", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "youtu"),
        HFFamily(defaults={"qk_rope_head_dim": 64, "rope_interleave": True}, scales_logits=True),
    ),
    "mistral4": HFFamily(
        defaults={"qk_rope_head_dim": 64, "rope_interleave": True},
        scales_logits=True,
        settings={**_MISTRAL_YARN, "rope_theta": 1e4, "factor": 128.0, ORIGINAL: 8192},
    ),
    "axk2": HFFamily(defaults={"qk_rope_head_dim": 32}, layout="interleaved", scales_logits=True),
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa"),
        HFFamily(defaults={"qk_rope_head_dim": 64}, layout="interleaved", scales_logits=True),
    ),
    "longcat_flash": HFFamily(1e7, {"qk_rope_head_dim": 64}, "interleaved", scales_logits=True),
    "minicpm3": HFFamily(defaults={"qk_rope_head_dim": 32}, scales_logits=True),
    "hy_v4": HFFamily(defaults={"qk_rope_head_dim": 64}, scales_logits=True),
    # Three axes.
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl"),
        HFFamily(1e6, _QWEN2 | _MROPE | {"max_window_layers": 80}, is_full=before_window),
    ),
    "qwen2_5_omni": HFFamily(1e6, _QWEN2 | _MROPE, is_full=before_window),
    "qwen2_5_omni_talker": HFFamily(1e6, _QWEN2 | _MROPE | _HEADS_OF_128, is_full=before_window),
    "paddleocr_vl": HFFamily(5e5, _MROPE | _HEADS_OF_128),
    "qwen3_vl": HFFamily(5e5, _QWEN3_MROPE | _HEADS_OF_128),
    "qwen3_vl_moe": HFFamily(5e5, _QWEN3_MROPE),
    "qwen3_omni_moe": HFFamily(1e6, _QWEN3_MROPE),
    "qwen3_omni_moe_talker": HFFamily(defaults=_QWEN3_MROPE),
    "cosmos3_edge": HFFamily(1e8, _QWEN3_MROPE | _HEADS_OF_128),
    **dict.fromkeys(("glm4v", "glm_ocr"), HFFamily(defaults=_GLM4V, layout="interleaved")),
    "glm4v_moe": HFFamily(defaults=_GLM4V | _HALF),
    "glm_image": HFFamily(defaults=_GLM4V),
    # A window in all layers, if there is one.
    "mistral": HFFamily(defaults={"sliding_window": 4096}, slides=True),
    **dict.fromkeys(("mixtral", "phimoe"), HFFamily(1e6, slides=True)),
    "ministral3": HFFamily(
        1e6,
        _HEADS_OF_128,
        slides=True,
        settings={**_MISTRAL_YARN, "factor": 16.0, ORIGINAL: 16384},
    ),
    **dict.fromkeys(
        ("phi3", "phi4_multimodal"),
        HFFamily(defaults={"partial_rotary_factor": 1.0, ORIGINAL: 4096}, slides=True),
    ),
    **dict.fromkeys(("doge", "starcoder2"), HFFamily(slides=True)),
    **dict.fromkeys(
        ("mimi", "pocket_tts_audio_tokenizer"),
        HFFamily(defaults={"sliding_window": 250}, slides=True),
    ),
    "voxtral_realtime": HFFamily(defaults={"sliding_window": 4096}, slides=True),
    "voxtral_realtime_encoder": HFFamily(
        defaults=_HEADS_OF_64 | {"sliding_window": 750}, slides=True
    ),
    "qwen3_moe": HFFamily(
        defaults={"use_sliding_window": False, "sliding_window": 4096}, slides=True
    ),
    # A window in some layers.
    "ministral": HFFamily(
        defaults={"sliding_window": 4096}, is_full=lambda config, layer: not has_window(config)
    ),
    "qwen2": HFFamily(defaults=_QWEN2, is_full=before_window),
    "qwen2_moe": HFFamily(
        defaults=_QWEN2,
        is_full=lambda config, layer: (
            not has_window(config) or layer % 2 == 1 or not before_window(config, layer)
        ),
    ),
    "qwen3": HFFamily(defaults=_QWEN2 | _HEADS_OF_128, is_full=before_window),
    "qwen3_omni_moe_talker_code_predictor": HFFamily(
        defaults={"use_sliding_window": True, "max_window_layers": 28, **_HEADS_OF_128},
        is_full=before_window,
    ),
    "cwm": HFFamily(
        1e6,
        {"sliding_window": 8192, **_HEADS_OF_128},
        is_full=every(4, first=0),
        settings=_LLAMA3 | {"rope_theta": 1e6, "factor": 16.0},
    ),
    "step3p5": HFFamily(defaults=_HEADS_OF_128 | {"partial_rotary_factor": None}, is_full=all_full),
    "laguna": HFFamily(
        defaults=_HEADS_OF_128 | {"partial_rotary_factor": None, "sliding_window": 512},
        is_full=all_full,
        settings={
            FULL: {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_theta": 1e4},
        },
    ),
    "mellum": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 1024},
        is_full=all_full,
        settings={FULL: {"rope_theta": 5e5}, SLIDING: {"rope_theta": 1e4}},
    ),
    "mimo_v2_flash": HFFamily(
        defaults={"head_dim": 192, "sliding_window": 129, "partial_rotary_factor": 0.334},
        is_full=lambda config, layer: layer == 0 or (layer + 1) % 6 == 0,
        only={"sliding_window_size": None},  # Which does not count the query itself.
        settings={FULL: {"rope_theta": 5e6}, SLIDING: {"rope_theta": 1e4}},
    ),
    "zaya": HFFamily(
        defaults=_HEADS_OF_128 | {"partial_rotary_factor": None},
        is_full=all_full,
        settings={FULL: {"rope_theta": 5e6, **_HALF}, SLIDING: {"rope_theta": 1e4, **_HALF}},
    ),
    "t5_gemma_module": HFFamily(
        defaults=_HEADS_OF_256 | {"sliding_window": 4096, "is_causal": False},
        is_full=every(2),
        renamed={"is_decoder": "is_causal"},
    ),
    "dots1": HFFamily(
        defaults=_QWEN2 | {"use_sliding_window": True, "max_window_layers": 62},
        is_full=before_window,
    ),
    **dict.fromkeys(
        ("gemma2", "vaultgemma"),
        HFFamily(defaults=_HEADS_OF_256 | {"sliding_window": 4096}, is_full=every(2)),
    ),
    "gemma3": HFFamily(
        1e6,
        _GEMMA3 | {"sliding_window": 4096, "use_bidirectional_attention": None},
        is_full=every("sliding_window_pattern"),
        scales_full_only=True,
    ),
    "gemma3n": HFFamily(
        1e6, _GEMMA3 | {"sliding_window": 512}, is_full=every(5), scales_full_only=True
    ),
    **dict.fromkeys(
        ("diffusion_gemma", "gemma4"),
        HFFamily(
            defaults=GEMMA4 | {"use_bidirectional_attention": None},
            is_full=every(6),
            settings=_GEMMA4_ROPE,
        ),
    ),
    "gemma4_unified": HFFamily(
        defaults=GEMMA4 | {"use_bidirectional_attention": "vision", "sliding_window": 1024},
        is_full=every(6),
        settings=_GEMMA4_ROPE,
    ),
    "gpt_oss": HFFamily(
        1.5e5, {"head_dim": 64, "sliding_window": 128}, is_full=every(2), settings=GPT_OSS
    ),
    **dict.fromkeys(
        ("granite_swa", "granitemoe_swa"),
        HFFamily(
            defaults={"sliding_window": 128, "layer_rope_theta": None},
            is_full=every(4, first=0),
        ),
    ),
    "olmo3": HFFamily(5e5, {"sliding_window": 4096}, is_full=every(4), scales_full_only=True),
    "modernbert-decoder": MODERNBERT._replace(reach=lambda size: size // 2 - 1),
    # RoPE in some layers.
    "afmoe": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 1024, "global_attn_every_n_layers": 4},
        is_full=every("global_attn_every_n_layers"),
        only_sliding_rotates=True,
    ),
    "cohere2": HFFamily(
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
        layout="interleaved",
        is_full=every("sliding_window_pattern"),
        only_sliding_rotates=True,
    ),
    **dict.fromkeys(
        ("exaone4", "exaone4_5", "exaone_moe"),
        HFFamily(
            defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
            is_full=by_pattern,
            only_sliding_rotates=True,
        ),
    ),
    "flint": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 513},
        is_full=lambda config, layer: (
            layer < 2 or layer % 4 == 1 or layer == config["num_hidden_layers"] - 1
        ),
        only_sliding_rotates=True,
    ),
    "kolibri1": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 513},
        is_full=every(5),
        only_sliding_rotates=True,
    ),
    "muse_glimmer": HFFamily(
        defaults=_HEADS_OF_128 | _MUSE, is_full=every_from_last, only_sliding_rotates=True
    ),
    "muse_spark": HFFamily(
        5e5, _HEADS_OF_64 | _MUSE, is_full=every_from_last, only_sliding_rotates=True
    ),
    "smollm3": HFFamily(
        2e6,
        {"no_rope_layers": None, "no_rope_layer_interval": 4, "use_sliding_window": False},
        is_full=lambda config, layer: not has_window(config) or has_rope(config, layer),
    ),
    "llama4": HFFamily(
        5e5,
        _HEADS_OF_128
        | {"no_rope_layers": None, "no_rope_layer_interval": 4, "attention_chunk_size": 8192}
        | {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1},
        "interleaved",
        is_full=lambda config, layer: (
            config["attention_chunk_size"] is None or not has_rope(config, layer)
        ),
        other=CHUNKED,
    ),
    # Attention in some layers.
    "bamba": HFFamily(
        defaults=_HALF | {"attn_layer_indices": None},
        is_full=lambda config, layer: layer in (config["attn_layer_indices"] or ()),
        other=NO_ATTENTION,
    ),
    "granitemoehybrid": HFFamily(
        is_full=lambda config, layer: False, other=NO_ATTENTION, encodings=("nope", "rope")
    ),
    "bailing_hybrid": HFFamily(
        6e6,
        {"qk_rope_head_dim": 64, "layer_group_size": 6},
        "interleaved",
        is_full=every("layer_group_size"),
        other=NO_ATTENTION,
        scales_logits=True,
    ),
    **dict.fromkeys(
        ("glm5_next", "jamba", "kimi_linear", "nemotron_h"), HFFamily(encodings=("nope",))
    ),
    "lara_mini": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 512},
        is_full=lambda config, layer: (NO_ATTENTION, SLIDING, NO_ATTENTION, FULL, SLIDING)[
            layer % 5
        ],
        only_sliding_rotates=True,
    ),
    "lfm2_moe": HFFamily(1e6, is_full=all_full, other=NO_ATTENTION, needs=("layer_types",)),
    "lfm3": HFFamily(
        defaults=_HEADS_OF_128 | {"sliding_window": 256},
        is_full=lambda config, layer: (
            FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 and layer else NO_ATTENTION
        ),
        settings={
            FULL: {"rope_type": "proportional", "rope_theta": 1e6, **_HALF},
            SLIDING: {"rope_theta": 1e4},
        },
    ),
    "minimax": HFFamily(
        1e6,
        {"sliding_window": None},
        is_full=every(2, first=0),
        other=NO_ATTENTION,
        slides=True,
    ),
    "olmo_hybrid": HFFamily(is_full=every(4), other=NO_ATTENTION),
    "recurrent_gemma": HFFamily(
        defaults=_HALF
        | {"sliding_window": 2048, "block_types": ["recurrent", "recurrent", "attention"]},
        is_full=lambda config, layer: (
            config["block_types"][layer % len(config["block_types"])] == "attention"
        ),
        other=NO_ATTENTION,
        slides=True,
        renamed={"attention_window_size": "sliding_window"},
    ),
    "zamba2": HFFamily(
        defaults={"use_mem_rope": False},
        is_full=all_full,
        other=NO_ATTENTION,
        renamed={"attention_head_dim": "head_dim"},
        needs=("layer_types", "head_dim"),
        only={"use_long_context": False},
    ),
    "lfm2": HFFamily(
        1e6, {"full_attn_idxs": None}, is_full=in_list("full_attn_idxs"), other=NO_ATTENTION
    ),
    "mllama_text_model": HFFamily(  # Its other layers attend to images, without positions.
        5e5,
        {"cross_attention_layers": None},
        is_full=lambda config, layer: (
            layer not in (config["cross_attention_layers"] or range(3, 39, 5))
        ),
        other=NO_ATTENTION,
    ),
    "qwen3_next": HFFamily(
        defaults=_QWEN3_NEXT, is_full=every("full_attention_interval"), other=NO_ATTENTION
    ),
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_moe"),
        HFFamily(
            defaults=_QWEN3_NEXT | _QWEN3_5_MROPE,
            is_full=every("full_attention_interval"),
            other=NO_ATTENTION,
        ),
    ),
    "qwen4_exp": HFFamily(
        defaults=_QWEN3_NEXT | _QWEN3_5_MROPE | {"partial_rotary_factor": None},
        is_full=every("full_attention_interval"),
        other=NO_ATTENTION,
    ),
    # Inkling's own terms.
    "inkling": HFFamily(
        defaults={"sliding_window": 512, "rel_extent": 1024, "d_rel": 16, "local_layer_ids": None}
        | {"swa_num_attention_heads": 64},
        is_full=lambda config, layer: (
            layer not in config["local_layer_ids"]
            if config["local_layer_ids"] is not None
            else (layer + 1) % 6 == 0
        ),
        encodings=(INKLING,),
        renamed={"sliding_window_size": "sliding_window", "model_max_length": _LENGTH},
        only={"log_scaling_n_floor": None},
    ),
    # ALiBi.
    "bloom": HFFamily(encodings=("alibi",)),
    "mpt": HFFamily(defaults={"attn_config": None}, encodings=("alibi",)),
}
