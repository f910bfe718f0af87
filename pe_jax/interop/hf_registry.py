"""Registry of Hugging Face's families, by `model_type`: facts that their configs leave out.

`from_hf` reads all of them. `load_position_table` reads the `table` of a family that has one, and
`load_bert` and `save_bert` its `encoder`. Keys and defaults are those of the configs' classes in
transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

from pe_jax.interop import hf_encoders as encoders
from pe_jax.interop.encoder_format import EncoderFormat
from pe_jax.interop.hf_family import (
    CHUNKED,
    FULL,
    NO_ATTENTION,
    ORIGINAL,
    SLIDING,
    HFFamily,
    before_window,
    by_pattern,
    every,
    has_rope,
    has_window,
    in_list,
)
from pe_jax.interop.hf_sizes import SIZES

_QWEN2 = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_HEADS_OF_128, _HEADS_OF_256 = {"head_dim": 128}, {"head_dim": 256}
_GEMMA3 = _HEADS_OF_256 | {"rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
_GEMMA4 = _HEADS_OF_256 | {"global_head_dim": 512, "per_layer_config": None, "sliding_window": 512}
_MODERNBERT = HFFamily(
    defaults={"global_rope_theta": 1.6e5, "local_rope_theta": 1e4, "local_attention": 128}
    | {"global_attn_every_n_layers": 3},
    is_full=every("global_attn_every_n_layers", first=0),
)
_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, ORIGINAL: 4096}
_HALF, _QUARTER = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}
_QWEN3_NEXT = _QUARTER | _HEADS_OF_256 | {"full_attention_interval": 4}
_TABLES = ("absolute", "relative_key", "relative_key_query")

# Names that the learned table has in files, by the encoder's prefix.
_BERT_TABLE, _ROBERTA_TABLE = (
    tuple(f"{prefix}{encoders.POSITION_TABLE}.weight" for prefix in prefixes)
    for prefixes in (("", "bert.", "distilbert.", "electra."), ("", "roberta."))
)
_ROBERTA = HFFamily(
    defaults={"pad_token_id": 1}, encodings=_TABLES, padded_table=True, table=_ROBERTA_TABLE
)

_FAMILIES: Mapping[str, HFFamily] = {
    # A learned table at the input, or tables of offsets.
    "bert": HFFamily(
        # With ALiBi: of MosaicBERT and DNABERT-2, and of Jina, whose code is their own.
        defaults={"alibi_starting_size": None},
        encodings=(*_TABLES, "alibi"),
        table=_BERT_TABLE,
        encoder=encoders.BERT,
    ),
    "distilbert": HFFamily(encodings=("absolute",), table=_BERT_TABLE),
    "electra": HFFamily(defaults={"embedding_size": 128}, encodings=_TABLES, table=_BERT_TABLE),
    "roberta": _ROBERTA._replace(encoder=encoders.ROBERTA),
    "xlm-roberta": _ROBERTA._replace(encoder=encoders.XLM_ROBERTA),
    "camembert": _ROBERTA,
    "gpt2": HFFamily(encodings=("absolute",), table=("wpe.weight", "transformer.wpe.weight")),
    "albert": HFFamily(defaults={"embedding_size": 128}, encodings=_TABLES),
    **dict.fromkeys(("gpt_bigcode", "opt"), HFFamily(encodings=("absolute",))),
    "esm": HFFamily(encodings=("absolute", "rotary"), padded_table=True),
    # Encoders with RoPE that are read and written.
    "modernbert": _MODERNBERT._replace(encoder=encoders.MODERNBERT),
    "eurobert": HFFamily(encoder=encoders.EUROBERT),
    "roformer": HFFamily(layout="interleaved", encodings=("rotary",), encoder=encoders.ROFORMER),
    "nomic_bert": HFFamily(1e3, {"partial_rotary_factor": None}, encoder=encoders.NOMIC),
    "gte": HFFamily(1.6e5, encoder=encoders.GTE),
    # RoPE in all layers, of whole heads.
    **dict.fromkeys(
        (
            *("llama", "arcee", "diffllama", "falcon", "falcon_h1", "granite"),
            *("granitemoe", "granitemoeshared", "hunyuan_v1_dense", "olmo", "olmo2", "olmoe"),
        ),
        HFFamily(),
    ),
    "gemma": HFFamily(defaults=_HEADS_OF_256),
    "seed_oss": HFFamily(defaults=_HEADS_OF_128),
    "jina_embeddings_v3": HFFamily(2e4),
    **dict.fromkeys(("bitnet", "flex_olmo"), HFFamily(5e5)),
    "apertus": HFFamily(
        12e6,
        settings={"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, ORIGINAL: 8192}
        | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    # Pairs of neighbours.
    **dict.fromkeys(("cohere", "ernie4_5_moe"), HFFamily(5e5, layout="interleaved")),
    "ernie4_5": HFFamily(5e5, _HEADS_OF_128, "interleaved"),
    "helium": HFFamily(1e5, _HEADS_OF_128, "interleaved"),
    # A part of each head.
    **dict.fromkeys(("gpt_neox", "stablelm"), HFFamily(defaults=_QUARTER)),
    **dict.fromkeys(("phi", "persimmon", "nemotron", "glm4_moe"), HFFamily(defaults=_HALF)),
    "glm": HFFamily(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    "glm4": HFFamily(defaults=_HALF | _HEADS_OF_128, layout="interleaved"),
    **dict.fromkeys(
        ("gptj", "codegen"),
        HFFamily(defaults={"rotary_dim": 64}, layout="interleaved", encodings=("rotary",)),
    ),
    "minimax_m2": HFFamily(
        5e6, {"rotary_dim": None, "partial_rotary_factor": None, **_HEADS_OF_128}
    ),
    # A slice of each head (multi-head latent attention): the encoding is of that slice.
    "deepseek_v2": HFFamily(
        defaults={"qk_rope_head_dim": 64}, layout="interleaved", scales_logits=True
    ),
    **dict.fromkeys(
        ("deepseek_v3", "glm4_moe_lite", "kimi_k2", "youtu"),
        HFFamily(defaults={"qk_rope_head_dim": 64, "rope_interleave": True}, scales_logits=True),
    ),
    # Three axes.
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl"),
        HFFamily(1e6, _QWEN2 | {"max_window_layers": 80}, is_full=before_window),
    ),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe"),
        HFFamily(5e5, _HEADS_OF_128 | {"mrope_section": [24, 20, 20], "mrope_interleaved": True}),
    ),
    # A window in all layers, if there is one.
    "mistral": HFFamily(defaults={"sliding_window": 4096}, slides=True),
    **dict.fromkeys(("mixtral", "phimoe"), HFFamily(1e6, slides=True)),
    "ministral3": HFFamily(
        1e6,
        _HEADS_OF_128,
        slides=True,
        settings={"rope_type": "yarn", "factor": 16.0, ORIGINAL: 16384}
        | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    ),
    "phi3": HFFamily(defaults={"partial_rotary_factor": 1.0, ORIGINAL: 4096}, slides=True),
    "starcoder2": HFFamily(slides=True),
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
    "gemma4": HFFamily(
        defaults=_GEMMA4 | {"use_bidirectional_attention": None},
        is_full=every(6),
        settings={
            FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            SLIDING: {"rope_theta": 1e4},
        },
    ),
    "gpt_oss": HFFamily(
        1.5e5, {"head_dim": 64, "sliding_window": 128}, is_full=every(2), settings=_GPT_OSS
    ),
    **dict.fromkeys(
        ("granite_swa", "granitemoe_swa"),
        HFFamily(
            defaults={"sliding_window": 128, "layer_rope_theta": None},
            is_full=every(4, first=0),
        ),
    ),
    "olmo3": HFFamily(5e5, {"sliding_window": 4096}, is_full=every(4), scales_full_only=True),
    "modernbert-decoder": _MODERNBERT._replace(reach=lambda size: size // 2 - 1),
    # Encoders, whose window is the reach itself.
    "embedding_gemma2": HFFamily(
        defaults=_GEMMA4 | {"sliding_window_pattern": 6},
        is_full=by_pattern,
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}},
    ),
    "openai_privacy_filter": HFFamily(
        1.5e5,
        {"head_dim": 64, "sliding_window": 128},
        "interleaved",
        slides=True,
        reach=lambda size: size,
        settings=_GPT_OSS,
    ),
    "ultrabert": HFFamily(
        defaults={"sliding_window": 128},
        is_full=every(3),
        reach=lambda size: size,
        settings={FULL: {"rope_theta": 2_560_000.0}, SLIDING: {"rope_theta": 1e4}},
    ),
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
        ("exaone4", "exaone4_5"),
        HFFamily(
            defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
            is_full=by_pattern,
            only_sliding_rotates=True,
        ),
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
    "jamba": HFFamily(encodings=("nope",)),
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
            defaults=_QWEN3_NEXT | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
            is_full=every("full_attention_interval"),
            other=NO_ATTENTION,
        ),
    ),
    # ALiBi.
    "bloom": HFFamily(encodings=("alibi",)),
    "mpt": HFFamily(defaults={"attn_config": None}, encodings=("alibi",)),
}
FAMILIES: Mapping[str, HFFamily] = {
    name: family._replace(sizes=SIZES[name]) for name, family in _FAMILIES.items()
}
# Those whose encoders are read and written; an export tries them in this order.
ENCODERS: Mapping[str, EncoderFormat] = {
    name: family.encoder for name, family in FAMILIES.items() if family.encoder is not None
}
# Names in the first configs of a family.
FIRST_NAMES = {"new": "gte"}
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
