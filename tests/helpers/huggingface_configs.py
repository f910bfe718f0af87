"""Small configs of transformers' families, as `config.json` has them, with the encoding of each.

Sizes are small and all that matters to positions is there, in the spelling of version 4 where the
family is older than version 5. What a model needs besides is in `SIZES` and `MORE`.
"""

from __future__ import annotations

from typing import Any

LAYERS = 8
SIZES: dict[str, Any] = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=LAYERS,
    max_position_embeddings=64, intermediate_size=32, vocab_size=40, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
EXPERTS: dict[str, Any] = dict(
    num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
)  # fmt: skip
GPT: dict[str, Any] = dict(
    n_embd=64, n_head=4, n_layer=LAYERS, n_positions=64, n_inner=32, vocab_size=40, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip

HALVES = ["sliding_attention", "full_attention"] * 4
DEEPSEEK: dict[str, Any] = dict(
    EXPERTS, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16,
    v_head_dim=16, rope_theta=10_000,
    rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=0.707,
                      mscale_all_dim=0.707, original_max_position_embeddings=16),
)  # fmt: skip
YARN_16 = (
    "rope_yarn(factor=40, original_length=16, mscale=0.707, "
    "mscale_all_dim=0.707, scale_logits=True"
)
INDEXED: dict[str, Any] = DEEPSEEK | dict(
    index_topk=64, index_head_dim=16, index_n_heads=2,
)  # fmt: skip
LINEAR: dict[str, Any] = dict(
    linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
    linear_value_head_dim=8,
)  # fmt: skip
MAMBA: dict[str, Any] = dict(
    mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1
)

# model_type: [(what its config.json says besides sizes, the name of its encoding)].
CONFIGS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "llama": [
        (dict(rope_theta=5e5), "rope(base=500000)"),
        (dict(rope_theta=5e5, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=16)),
            "rope_llama3(factor=8, original_length=16, base=500000)"),
        (dict(), "rope"),
    ],
    "arcee": [(dict(rope_theta=1e4), "rope")],
    "apertus": [(dict(rope_scaling=None),
                 "rope_llama3(factor=8, original_length=8192, base=12000000)"),
                (dict(), "rope_llama3(factor=8, original_length=8192, base=12000000)")],
    "bitnet": [(dict(), "rope(base=500000)")],
    "diffllama": [(dict(), "rope")],
    "eurobert": [(dict(rope_theta=250_000), "rope(base=250000)")],
    "falcon": [(dict(alibi=False), "rope")],
    "falcon_h1": [(dict(MAMBA, mamba_d_ssm=128, rope_theta=1e11), "rope(base=100000000000)")],
    "flex_olmo": [(dict(EXPERTS), "rope(base=500000)")],
    "gemma": [(dict(head_dim=32), "rope")],
    "granite": [(dict(rope_theta=1e6, attention_multiplier=0.1), "rope(base=1000000)")],
    "granitemoe": [(dict(EXPERTS), "rope")],
    "granitemoeshared": [(dict(EXPERTS, shared_intermediate_size=16), "rope")],
    "hunyuan_v1_dense": [
        (dict(head_dim=16, rope_scaling=dict(
            type="dynamic", alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0,
            mscale_all_dim=1.0)), "rope_ntk(factor=1000)"),
    ],
    "jina_embeddings_v3": [(dict(), "rope(base=20000)")],
    "gte": [(dict(rope_theta=20_000), "rope(base=20000)"), (dict(), "rope(base=160000)")],
    "new": [(dict(rope_theta=5e5, rope_scaling=dict(type="ntk", factor=2.0)),
             f"rope_linear(factor={2.0 ** (2 / 16)!r}, base=1000000)")],
    "nomic_bert": [(dict(rotary_emb_base=1000, rotary_emb_fraction=1.0), "rope(base=1000)"),
                   (dict(), "rope(base=1000)")],
    "olmo": [(dict(), "rope")],
    "olmo2": [(dict(rope_theta=5e5), "rope(base=500000)")],
    "olmoe": [(dict(EXPERTS), "rope")],
    "seed_oss": [(dict(head_dim=16, rope_theta=1e7), "rope(base=10000000)")],
    # Pairs of neighbours.
    "roformer": [(dict(rotary_value=False), "rope(layout='interleaved')")],
    "cohere": [(dict(), "rope(base=500000, layout='interleaved')")],
    "ernie4_5": [(dict(head_dim=16), "rope(base=500000, layout='interleaved')")],
    "ernie4_5_moe": [(dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
                           moe_num_shared_experts=1),
                      "rope(base=500000, layout='interleaved')")],
    "helium": [(dict(head_dim=16), "rope(base=100000, layout='interleaved')")],
    # A part of each head.
    "gpt_neox": [(dict(rotary_pct=0.25, rotary_emb_base=20_000), "rope(base=20000, fraction=0.25)"),
                 (dict(), "rope(fraction=0.25)")],
    "stablelm": [(dict(partial_rotary_factor=0.5), "rope(fraction=0.5)"),
                 (dict(), "rope(fraction=0.25)")],
    "phi": [(dict(partial_rotary_factor=0.25), "rope(fraction=0.25)"),
            (dict(), "rope(fraction=0.5)")],
    "persimmon": [(dict(rope_theta=25_000), "rope(base=25000, fraction=0.5)")],
    "nemotron": [(dict(), "rope(fraction=0.5)")],
    "glm": [(dict(head_dim=16), "rope(layout='interleaved', fraction=0.5)")],
    "glm4": [(dict(head_dim=16), "rope(layout='interleaved', fraction=0.5)")],
    "glm4_moe": [(dict(EXPERTS, rope_theta=1e6, head_dim=16), "rope(base=1000000, fraction=0.5)")],
    "gptj": [(dict(GPT, rotary_dim=8), "rope(layout='interleaved', fraction=0.5)")],
    "codegen": [(dict(GPT, rotary_dim=8), "rope(layout='interleaved', fraction=0.5)")],
    "minimax_m2": [(dict(EXPERTS, head_dim=16, rotary_dim=8), "rope(base=5000000, fraction=0.5)")],
    # A slice of each head.
    "deepseek_v2": [(DEEPSEEK, YARN_16 + ", layout='interleaved')")],
    "deepseek_v3": [
        (DEEPSEEK, YARN_16 + ", layout='interleaved')"),
        (dict(DEEPSEEK, rope_interleave=False), YARN_16 + ")"),
        (dict(DEEPSEEK, rope_scaling=dict(DEEPSEEK["rope_scaling"], mscale_all_dim=0)),
         "rope_yarn(factor=40, original_length=16, mscale=0.707, mscale_all_dim=0, "
         "layout='interleaved')"),
        (dict(DEEPSEEK, rope_scaling=None), "rope(layout='interleaved')"),
    ],
    "kimi_k2": [(DEEPSEEK, YARN_16 + ", layout='interleaved')")],
    "glm4_moe_lite": [(DEEPSEEK, YARN_16 + ", layout='interleaved')")],
    "youtu": [(DEEPSEEK, YARN_16 + ", layout='interleaved')")],
    # Three axes.
    "qwen2_vl_text": [(dict(rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3])),
                       "mrope(sections=(2, 3, 3), base=1000000)")],
    "qwen2_5_vl_text": [(dict(rope_scaling=dict(rope_type="default", mrope_section=[2, 3, 3])),
                         "mrope(sections=(2, 3, 3), base=1000000)")],
    "qwen3_vl_text": [
        (dict(head_dim=16, rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2])),
         "mrope(sections=(4, 2, 2), interleaved=True, base=500000)"),
        (dict(head_dim=128), "mrope(sections=(24, 20, 20), interleaved=True, base=500000)"),
    ],
    "qwen3_vl_moe_text": [
        (dict(EXPERTS, head_dim=16, rope_scaling=dict(mrope_section=[4, 2, 2])),
         "mrope(sections=(4, 2, 2), interleaved=True, base=500000)"),
    ],
    # A window in all layers, if there is one.
    "mistral": [(dict(sliding_window=8, rope_theta=1e6),
                 "rope(base=1000000)+window(max_distance=7)"),
                (dict(sliding_window=None, rope_theta=1e6), "rope(base=1000000)")],
    "mixtral": [(dict(EXPERTS, sliding_window=8), "rope(base=1000000)+window(max_distance=7)")],
    "ministral3": [
        (dict(head_dim=16, rope_parameters=dict(
            type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=4,
            max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
         "rope_yarn(factor=16, original_length=4, mscale=1, mscale_all_dim=1, base=1000000)"
         "+log_n(original_length=4, coefficient=0.1, smooth=True, stepped=True, count='earlier')"),
    ],
    "phi3": [
        (dict(sliding_window=8), "rope+window(max_distance=7)"),
        (dict(original_max_position_embeddings=16, partial_rotary_factor=0.5, rope_scaling=dict(
            type="longrope", short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[1.0, 2.0, 4.0, 8.0])),
         "rope_longrope(short=(1, 1.5, 2, 2.5), long=(1, 2, 4, 8), factor=4, original_length=16, "
         "fraction=0.5)"),
    ],
    "phimoe": [(dict(EXPERTS, sliding_window=8), "rope(base=1000000)+window(max_distance=7)")],
    "starcoder2": [(dict(sliding_window=8), "rope+window(max_distance=7)")],
    "qwen3_moe": [(dict(EXPERTS, rope_theta=1e6, sliding_window=8), "rope(base=1000000)"),
                  (dict(EXPERTS, sliding_window=8, use_sliding_window=True),
                   "rope+window(max_distance=7)")],
    # A window in some layers.
    "ministral": [(dict(head_dim=16, sliding_window=8, layer_types=HALVES),
                   "cycle(rope+window(max_distance=7), rope)")],
    "qwen2": [
        (dict(sliding_window=8, max_window_layers=4, rope_theta=1e6), "rope(base=1000000)"),
        (dict(sliding_window=8, max_window_layers=7, use_sliding_window=True),
         "cycle(" + "rope, " * 7 + "rope+window(max_distance=7))"),
    ],
    "qwen2_moe": [
        (dict(EXPERTS, sliding_window=8, max_window_layers=4, shared_expert_intermediate_size=16),
         "rope"),
        (dict(EXPERTS, sliding_window=8, max_window_layers=8, use_sliding_window=True,
              shared_expert_intermediate_size=16), "cycle(rope+window(max_distance=7), rope)"),
    ],
    "qwen3": [(dict(head_dim=16, rope_theta=1e6), "rope(base=1000000)")],
    "dots1": [(dict(EXPERTS, sliding_window=8, max_window_layers=8), "rope")],
    "gemma2": [(dict(head_dim=32, sliding_window=8), "cycle(rope+window(max_distance=7), rope)")],
    "vaultgemma": [(dict(head_dim=32, sliding_window=8),
                    "cycle(rope+window(max_distance=7), rope)")],
    "gemma3_text": [
        (dict(head_dim=32, sliding_window=8, rope_scaling=dict(rope_type="linear", factor=8.0)),
         "cycle(" + "rope+window(max_distance=7), " * 5 + "rope_linear(factor=8, base=1000000))"),
        (dict(head_dim=32, sliding_window=8, use_bidirectional_attention=True,
              sliding_window_pattern=2),
         "cycle(rope+window(max_distance=4), rope(base=1000000))"),
    ],
    "gemma3n_text": [
        (dict(head_dim=32, sliding_window=8, num_hidden_layers=10, num_kv_shared_layers=0,
              intermediate_size=32, vocab_size_per_layer_input=40, hidden_size_per_layer_input=8,
              layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 2),
         "cycle(" + "rope+window(max_distance=7), " * 4 + "rope(base=1000000))"),
    ],
    "gemma4_text": [
        (dict(head_dim=16, global_head_dim=32, sliding_window=8, num_hidden_layers=6,
              num_kv_shared_layers=0, vocab_size_per_layer_input=40, hidden_size_per_layer_input=8),
         "cycle(" + "rope+window(max_distance=7), " * 5 + "rope(base=1000000, proportional=0.25))"),
    ],
    "gpt_oss": [
        (dict(EXPERTS, head_dim=16, sliding_window=8, rope_theta=150_000, rope_scaling=dict(
            rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=16)),
         "cycle(rope_yarn(factor=32, original_length=16, truncate=False, base=150000)"
         "+window(max_distance=7), "
         "rope_yarn(factor=32, original_length=16, truncate=False, base=150000))"),
    ],
    "granite_swa": [
        (dict(sliding_window=8), "cycle(rope, " + "rope+window(max_distance=7), " * 2
         + "rope+window(max_distance=7))"),
        (dict(sliding_window=8, layer_rope_theta=[0, 1e4, 1e6, 1e4] * 2),
         "cycle(none, rope+window(max_distance=7), rope(base=1000000)+window(max_distance=7), "
         "rope+window(max_distance=7))"),
    ],
    "granitemoe_swa": [
        (dict(EXPERTS, sliding_window=8, layer_types=HALVES, layer_rope_theta=[1e4, 0] * 4),
         "cycle(rope+window(max_distance=7), none)"),
    ],
    "olmo3": [
        (dict(sliding_window=8, rope_theta=500_000,
              layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
              rope_scaling=dict(rope_type="yarn", factor=8.0, attention_factor=1.2079,
                                beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=8)),
         "cycle(" + "rope(base=500000)+window(max_distance=7), " * 3
         + "rope_yarn(factor=8, original_length=8, attention_factor=1.2079, base=500000))"),
        (dict(sliding_window=8),
         "cycle(" + "rope(base=500000)+window(max_distance=7), " * 3 + "rope(base=500000))"),
    ],
    "modernbert": [
        (dict(local_attention=16),
         "cycle(rope(base=160000), rope+window(max_distance=8), rope+window(max_distance=8))"),
    ],
    "modernbert-decoder": [
        (dict(local_attention=16),
         "cycle(rope(base=160000), rope+window(max_distance=7), rope+window(max_distance=7))"),
    ],
    "embedding_gemma2_text": [
        (dict(head_dim=16, global_head_dim=32, sliding_window=8, num_hidden_layers=6,
              sliding_window_pattern=3, hidden_size_per_layer_input=8,
              vocab_size_per_layer_input=40),
         "cycle(" + "rope+window(max_distance=8), " * 2 + "rope(base=1000000))"),
    ],
    "openai_privacy_filter": [
        (dict(EXPERTS, head_dim=16, sliding_window=8),
         "rope_yarn(factor=32, original_length=4096, truncate=False, base=150000, "
         "layout='interleaved')+window(max_distance=8)"),
    ],
    "ultrabert": [
        (dict(sliding_window=8),
         "cycle(" + "rope+window(max_distance=8), " * 2 + "rope(base=2560000))"),
    ],
    # RoPE in some layers.
    "afmoe": [
        (dict(EXPERTS, head_dim=16, sliding_window=8, num_dense_layers=1),
         "cycle(" + "rope+window(max_distance=7), " * 3 + "none)"),
    ],
    "cohere2": [
        (dict(sliding_window=8, rope_theta=50_000),
         "cycle("
         + "rope(base=50000, layout='interleaved')+window(max_distance=7), " * 3 + "none)"),
    ],
    "exaone4": [
        (dict(sliding_window=8, sliding_window_pattern=4, rope_theta=1e6),
         "cycle(" + "rope(base=1000000)+window(max_distance=7), " * 3 + "none)"),
        (dict(sliding_window=None, sliding_window_pattern=None, layer_types=["full_attention"] * 8,
              rope_theta=1e6), "rope(base=1000000)"),
    ],
    "exaone4_5": [
        (dict(sliding_window=8, rope_theta=1e6),
         "cycle(" + "rope(base=1000000)+window(max_distance=7), " * 3 + "none)"),
    ],
    "smollm3": [
        (dict(no_rope_layer_interval=4, rope_theta=5e6),
         "cycle(" + "rope(base=5000000), " * 3 + "none)"),
        (dict(no_rope_layers=[1, 0] * 4), "cycle(rope(base=2000000), none)"),
        (dict(no_rope_layers=[1, 0] * 4, use_sliding_window=True, sliding_window=8),
         "cycle(rope(base=2000000), window(max_distance=7))"),
    ],
    "llama4_text": [
        (dict(EXPERTS, head_dim=16, attention_chunk_size=8, no_rope_layers=[], floor_scale=4,
              use_qk_norm=False, intermediate_size_mlp=32),
         "cycle(" + "rope(base=500000, layout='interleaved')+chunks(size=8), " * 3
         + "log_n(original_length=4, coefficient=0.1, smooth=True, stepped=True))"),
    ],
    # Attention in some layers.
    "bamba": [(dict(MAMBA, attn_layer_indices=[1, 3, 5, 7]), "cycle(none, rope(fraction=0.5))")],
    "granitemoehybrid": [
        (dict(MAMBA | EXPERTS, position_embedding_type="nope", layer_types=["mamba",
            "attention"] * 4,
              shared_intermediate_size=16), "none"),
        (dict(MAMBA | EXPERTS, position_embedding_type="rope", layer_types=["mamba",
            "attention"] * 4,
              shared_intermediate_size=16), "cycle(none, rope)"),
    ],
    "jamba": [(dict(EXPERTS, num_experts=2, use_mamba_kernels=False, attn_layer_period=4,
                    attn_layer_offset=1), "none")],
    "lfm2": [(dict(full_attn_idxs=[1, 3, 5, 7], rope_theta=1e6),
              "cycle(none, rope(base=1000000))")],
    "mllama_text_model": [(dict(cross_attention_layers=[1, 5], rope_theta=5e5),
                           "cycle(rope(base=500000), none, rope(base=500000), rope(base=500000))")],
    "qwen3_next": [
        (dict(EXPERTS, head_dim=32, full_attention_interval=4, linear_num_value_heads=4,
              linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
              shared_expert_intermediate_size=16, rope_theta=1e7),
         "cycle(none, none, none, rope(base=10000000, fraction=0.25))"),
    ],
    "qwen3_5_text": [
        (dict(LINEAR, head_dim=64, rope_parameters=dict(
            rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25,
            mrope_section=[4, 2, 2], mrope_interleaved=True)),
         "cycle(none, none, none, mrope(sections=(4, 2, 2), interleaved=True, base=10000000, "
         "fraction=0.25))"),
    ],
    "qwen3_5_moe_text": [
        (dict(LINEAR | EXPERTS, head_dim=256, shared_expert_intermediate_size=16),
         "cycle(none, none, none, mrope(sections=(11, 11, 10), interleaved=True, fraction=0.25))"),
    ],
    # Tables, ALiBi.
    "albert": [(dict(embedding_size=32), "learned_absolute")],
    "bert": [(dict(position_embedding_type="absolute"), "learned_absolute"),
             (dict(position_embedding_type="alibi"), "alibi"),
             (dict(position_embedding_type="absolute", alibi_starting_size=512), "alibi")],
    "distilbert": [(dict(dim=64, n_heads=4, n_layers=LAYERS, hidden_dim=32), "learned_absolute")],
    "electra": [(dict(embedding_size=32), "learned_absolute")],
    "gpt2": [(GPT, "learned_absolute")],
    "gpt_bigcode": [(GPT, "learned_absolute")],
    "opt": [(dict(ffn_dim=32), "learned_absolute")],
    "camembert": [(dict(pad_token_id=1), "learned_absolute")],
    "data2vec-text": [(dict(pad_token_id=1), "learned_absolute")],
    "roberta-prelayernorm": [(dict(pad_token_id=1), "learned_absolute")],
    "xlm-roberta-xl": [(dict(pad_token_id=1), "learned_absolute")],
    "megatron-bert": [({}, "learned_absolute")],
    "nezha": [({}, "nezha")],
    "deberta-v2": [
        ({}, "learned_absolute"),
        (dict(position_biased_input=False), "none"),
        (dict(relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True,
              position_buckets=8, max_relative_positions=32),
         "learned_absolute+deberta(num_buckets=8, max_distance=32)"),
        (dict(relative_attention=True, pos_att_type="c2p|p2c", share_att_key=True,
              position_biased_input=False, max_relative_positions=32),
         "deberta(num_buckets=None, max_distance=32)"),
    ],
    "t5": [(dict(relative_attention_num_buckets=16), "t5(num_buckets=16)")],
    "mt5": [({}, "t5")],
    "umt5": [(dict(relative_attention_max_distance=64), "per_layer(t5(max_distance=64))")],
    "esm": [(dict(pad_token_id=1, position_embedding_type="absolute", mask_token_id=3),
             "learned_absolute"),
            (dict(pad_token_id=1, position_embedding_type="rotary", mask_token_id=3), "rope")],
    "roberta": [(dict(pad_token_id=1), "learned_absolute")],
    "xlm-roberta": [(dict(pad_token_id=1), "learned_absolute")],
    "bloom": [(dict(n_head=4, n_layer=LAYERS), "alibi")],
    "mpt": [(dict(d_model=64, n_heads=4, n_layers=LAYERS, max_seq_len=64, expansion_ratio=1),
             "alibi"),
            (dict(d_model=64, n_heads=4, n_layers=LAYERS, attn_config=dict(alibi_bias_max=16)),
             "alibi(exponent=16)")],

    # Of models of several parts, and others that came with version 5.
    "aria_text": [(EXPERTS | dict(moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
                   "rope")],
    "chameleon": [(dict(vq_config={}), "rope")],
    "deepseek_ocr2_text": [(EXPERTS, "rope")],
    "granite4_vision_text": [(dict(), "rope")],
    "granite_docling_text": [(dict(), "rope")],
    "hunyuan_v1_moe": [(dict(head_dim=16, rope_scaling=dict(
        type="dynamic", alpha=1000.0, factor=1.0)), "rope_ntk(factor=1000)")],
    "idefics": [(dict(), "rope")],
    "kyutai_speech_to_text": [(dict(sliding_window=8, head_dim=16, vocab_size=80_000), "rope")],
    "moshi": [(dict(sliding_window=8, head_dim=16), "rope")],
    "hrm_text": [(dict(head_dim=16), "rope")],
    "hyperclovax": [(dict(head_dim=16), "rope")],
    "jais2": [(dict(head_dim=16), "rope")],
    "gradium_phonon_tts": [(dict(head_dim=16, flow_head_config=dict(condition_dim=64)), "rope")],
    "pocket_tts": [(dict(head_dim=16, flow_head_config=dict(condition_dim=64)), "rope")],
    "timesfm2_5": [(dict(head_dim=16), "rope")],
    "jetmoe": [(EXPERTS | dict(kv_channels=16, num_key_value_heads=2), "rope")],
    "csm": [(dict(rope_theta=5e5), "rope(base=500000)")],
    "csm_depth_decoder_model": [(dict(head_dim=16, backbone_hidden_size=64),
                                 "rope(base=500000)")],
    "evolla": [(dict(), "rope(base=500000)")],
    "emu3_text_model": [(dict(), "rope(base=1000000)")],
    "molmo2_text": [
        (dict(head_dim=16, rope_theta=1e6, rope_scaling=dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
            rope_scaling_layers=[0, 2, 4, 6]),
         "cycle(rope_yarn(factor=4, original_length=16, base=1000000), rope(base=1000000))"),
        (dict(head_dim=16), "rope"),
    ],
    "solar_open": [(EXPERTS | dict(head_dim=16), "rope(base=1000000)")],
    "hy_v3": [(EXPERTS | dict(head_dim=16, rope_theta=1e6), "rope(base=1000000)")],
    "apertus1p5_text": [(dict(), "rope_llama3(factor=8, original_length=8192, base=12000000)")],
    "higgs_audio_v2": [(dict(head_dim=16), "rope_llama3(factor=32, original_length=1024, "
                        "low_frequency_factor=0.125, high_frequency_factor=0.5, base=500000)")],
    "blt_global_transformer": [(dict(), "rope(base=500000, layout='interleaved')")],
    "gpt_neox_japanese": [(dict(rotary_pct=0.5, intermediate_multiple_size=1),
                           "rope(fraction=0.5)")],
    "axk1": [(DEEPSEEK, YARN_16 + ", layout='interleaved')")],
    "longcat_flash": [(DEEPSEEK | dict(num_layers=LAYERS // 2, ffn_hidden_size=32,
                                       expert_ffn_hidden_size=16, zero_expert_num=1, moe_topk=2,
                                       num_key_value_heads=4, head_dim=16),
                       YARN_16 + ", layout='interleaved')")],
    "minicpm3": [(DEEPSEEK, YARN_16 + ")")],
    "mistral4": [
        (DEEPSEEK | dict(rope_scaling=None, rope_parameters=dict(
            type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=4,
            max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
         "rope_yarn(factor=16, original_length=4, mscale=1, mscale_all_dim=1, scale_logits=True, "
         "layout='interleaved')"
         "+log_n(original_length=4, coefficient=0.1, smooth=True, stepped=True, count='earlier')"),
    ],
    "axk2": [(INDEXED, YARN_16 + ", layout='interleaved')")],
    "deepseek_v32": [(INDEXED, YARN_16 + ", layout='interleaved')")],
    "glm_moe_dsa": [(INDEXED, YARN_16 + ", layout='interleaved')")],
    "hy_v4": [(INDEXED, YARN_16 + ")")],
    "qwen2_5_omni_text": [(dict(rope_scaling=dict(mrope_section=[2, 3, 3])),
                           "mrope(sections=(2, 3, 3), base=1000000)")],
    "qwen2_5_omni_talker": [(dict(head_dim=16, rope_scaling=dict(mrope_section=[2, 3, 3])),
                             "mrope(sections=(2, 3, 3), base=1000000)")],
    "paddleocr_vl_text": [(dict(head_dim=16, rope_scaling=dict(mrope_section=[2, 3, 3])),
                           "mrope(sections=(2, 3, 3), base=500000)")],
    "qwen3_omni_moe_text": [(EXPERTS | dict(head_dim=16, rope_scaling=dict(
        mrope_section=[4, 2, 2])), "mrope(sections=(4, 2, 2), interleaved=True, base=1000000)")],
    "qwen3_omni_moe_talker_text": [
        (EXPERTS | dict(head_dim=16, rope_scaling=dict(mrope_section=[4, 2, 2])),
         "mrope(sections=(4, 2, 2), interleaved=True)"),
    ],
    "qwen3_omni_moe_talker_code_predictor": [
        (dict(head_dim=16), "rope"),
        (dict(head_dim=16, sliding_window=8, max_window_layers=7),
         "cycle(" + "rope, " * 7 + "rope+window(max_distance=7))"),
    ],
    "cosmos3_edge_text": [(dict(head_dim=16, rope_scaling=dict(mrope_section=[4, 2, 2])),
                           "mrope(sections=(4, 2, 2), interleaved=True, base=100000000)")],
    "glm4v_text": [(dict(rope_parameters=dict(
        rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        "mrope(sections=(2, 1, 1), fraction=0.5, layout='interleaved')")],
    "glm_ocr_text": [(dict(head_dim=16, rope_parameters=dict(rope_theta=1e4,
                                                             mrope_section=[2, 3, 3])),
                      "mrope(sections=(2, 3, 3), layout='interleaved')")],
    "glm4v_moe_text": [(EXPERTS | dict(rope_parameters=dict(
        rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])),
        "mrope(sections=(2, 1, 1), fraction=0.5)")],
    "glm_image_text": [(dict(rope_parameters=dict(rope_theta=1e4, mrope_section=[2, 3, 3])),
                        "mrope(sections=(2, 3, 3))")],
    "phi4_multimodal": [(dict(sliding_window=8), "rope+window(max_distance=7)")],
    "doge": [(dict(), "rope"), (dict(sliding_window=8), "rope+window(max_distance=7)")],
    "mimi": [(dict(sliding_window=8, head_dim=16), "rope+window(max_distance=7)")],
    "pocket_tts_audio_tokenizer": [(dict(sliding_window=8, head_dim=16),
                                    "rope+window(max_distance=7)")],
    "voxtral_realtime_text": [(dict(sliding_window=8, head_dim=16), "rope+window(max_distance=7)")],
    "voxtral_realtime_encoder": [(dict(sliding_window=8, head_dim=16),
                                  "rope+window(max_distance=7)")],
    "cwm": [(dict(head_dim=16, sliding_window=8), "cycle(rope_llama3(factor=16, "
             "original_length=8192, base=1000000), "
             + ", ".join(["rope_llama3(factor=16, original_length=8192, "
                                            "base=1000000)+window(max_distance=7)"] * 3) + ")")],
    "step3p5": [(EXPERTS | dict(head_dim=16, sliding_window=8, layer_types=HALVES, rope_parameters={
        "sliding_attention": dict(rope_type="default", rope_theta=1e4),
        "full_attention": dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5)}),
        "cycle(rope+window(max_distance=7), rope(base=1000000, fraction=0.5))")],
    "laguna": [(EXPERTS | dict(head_dim=16, sliding_window=8, layer_types=HALVES),
                "cycle(rope+window(max_distance=7), rope(base=500000, fraction=0.5))")],
    "mellum": [(EXPERTS | dict(head_dim=16, sliding_window=8, layer_types=HALVES),
                "cycle(rope+window(max_distance=7), rope(base=500000))")],
    "mimo_v2_flash": [(EXPERTS | dict(head_dim=24, v_head_dim=16, sliding_window=9),
                       "cycle(rope(base=5000000, fraction=0.334), "
                       + ", ".join(["rope(fraction=0.334)+window(max_distance=8)"] * 4) + ")")],
    "zaya": [(EXPERTS | dict(head_dim=16, sliding_window=8, num_experts_per_tok=1,
                             layer_types=["hybrid", "hybrid_sliding"] * 4),
              "cycle(rope(base=5000000, fraction=0.5), "
              "rope(fraction=0.5)+window(max_distance=7))")],
    "t5_gemma_module": [
        (dict(head_dim=16, sliding_window=8), "cycle(rope+window(max_distance=8), rope)"),
        (dict(head_dim=16, sliding_window=8, is_decoder=True),
         "cycle(rope+window(max_distance=7), rope)"),
    ],
    "diffusion_gemma_text": [
        (dict(head_dim=16, global_head_dim=32, sliding_window=8, num_hidden_layers=6),
         "cycle(" + "rope+window(max_distance=7), " * 5 + "rope(base=1000000, proportional=0.25))"),
    ],
    "gemma4_unified_text": [
        (dict(head_dim=16, global_head_dim=32, sliding_window=8, num_hidden_layers=6),
         "cycle(" + "rope+window(max_distance=7), " * 5 + "rope(base=1000000, proportional=0.25))"),
    ],
    "exaone_moe": [
        (EXPERTS | dict(sliding_window=8, rope_theta=1e6, num_shared_experts=1),
         "cycle(" + "rope(base=1000000)+window(max_distance=7), " * 3 + "none)"),
    ],
    "flint": [(EXPERTS | dict(head_dim=16, sliding_window=8),
               "cycle(none, none, rope+window(max_distance=7), rope+window(max_distance=7), "
               "rope+window(max_distance=7), none, rope+window(max_distance=7))")],
    "kolibri1": [(EXPERTS | dict(head_dim=16, sliding_window=8, num_hidden_layers=5),
                  "cycle(" + "rope+window(max_distance=7), " * 4 + "none)")],
    "muse_glimmer_text": [(dict(head_dim=16, sliding_window=8),
                           "cycle(" + "rope+window(max_distance=7), " * 3 + "none)")],
    "muse_spark_text": [(EXPERTS | dict(head_dim=16, sliding_window=8, num_hidden_layers=6),
                         "cycle(rope(base=500000)+window(max_distance=7), none, "
                         "rope(base=500000)+window(max_distance=7), "
                         "rope(base=500000)+window(max_distance=7))")],
    "bailing_hybrid": [(DEEPSEEK | dict(head_dim=16, layer_group_size=4, num_experts=4),
                        f"cycle(none, none, none, {YARN_16}, layout='interleaved'))")],
    "glm5_next_text": [(INDEXED | dict(num_key_value_heads=4, qk_rope_head_dim=0, head_dim=16),
                        "none")],
    "kimi_linear": [(dict(), "none")],
    "nemotron_h": [(dict(), "none")],
    "lara_mini": [(LINEAR | dict(head_dim=16, sliding_window=8, num_hidden_layers=5),
                   "cycle(none, rope+window(max_distance=7), none, none, "
                   "rope+window(max_distance=7))")],
    "lfm2_moe": [(EXPERTS | dict(layer_types=["conv", "full_attention"] * 4),
                  "cycle(none, rope(base=1000000))")],
    "lfm3": [(dict(head_dim=16, sliding_window=8),
              "cycle(none, none, rope(base=1000000, proportional=0.5), none, "
              "rope+window(max_distance=7), none, rope(base=1000000, proportional=0.5))")],
    "minimax": [(EXPERTS, "cycle(rope(base=1000000), none)")],
    "minimax_m3_vl_text": [(EXPERTS | dict(head_dim=16, rope_parameters=dict(
        rope_theta=1e6, partial_rotary_factor=0.5)), "rope(base=1000000, fraction=0.5)")],
    "olmo_hybrid": [
        (dict(rope_theta=5e5), "cycle(none, none, none, rope(base=500000))"),
        (dict(rope_parameters=dict(rope_theta=None, rope_type="default")), "none"),
    ],
    "recurrent_gemma": [(dict(attention_window_size=8, num_hidden_layers=6),
                         "cycle(none, none, rope(fraction=0.5)+window(max_distance=7))")],
    "zamba2": [
        (dict(layers_block_type=["mamba", "hybrid"] * 4, attention_head_dim=32), "none"),
        (dict(layers_block_type=["mamba", "hybrid"] * 4, attention_head_dim=32,
              use_mem_rope=True), "cycle(none, rope)"),
    ],
    "qwen4_exp_text": [(LINEAR | EXPERTS | dict(
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=32, indexer_budget=64,
        indexer_compress_ratio=2, head_dim=64, rope_parameters=dict(
        rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[4, 2, 2])),
        "cycle(none, none, none, mrope(sections=(4, 2, 2), interleaved=True, base=10000000, "
        "fraction=0.25))")],
    "inkling_text": [(dict(sliding_window_size=8, rel_extent=12, d_rel=4, num_hidden_layers=6),
                      "per_layer(" + "inkling(max_distance=7, rank=4, bidirectional=False)"
                      "+window(max_distance=7), " * 5
                      + "inkling(max_distance=11, rank=4, bidirectional=False))")],
    "blt_local_decoder": [(dict(), "rope(base=500000, layout='interleaved')")],
    "blt_local_encoder": [(dict(), "rope(base=500000, layout='interleaved')")],
    "blt_patcher": [(dict(rope_theta=1e4), "rope(layout='interleaved')")],
    "deepseek_ocr2_encoder": [(dict(), "rope")],
    "moonshine": [(dict(decoder_num_attention_heads=4, decoder_num_hidden_layers=8,
                        partial_rotary_factor=0.5), "rope(layout='interleaved', fraction=0.5)")],
    "moonshine_streaming": [(dict(rope_parameters=dict(
        rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
        "rope(layout='interleaved', fraction=0.5)")],
    "mpnet": [(dict(pad_token_id=1), "learned_absolute+t5")],
}  # fmt: skip


def cases() -> list[tuple[str, dict[str, Any], str]]:
    """`(model_type, config, name)` of each."""
    renamed = ("gptj", "codegen", "gpt2", "gpt_bigcode", "mpt")
    return [
        (
            model_type,
            {
                **({} if model_type in renamed else SIZES),
                **said,
                "model_type": model_type,
            },
            name,
        )
        for model_type, several in CONFIGS.items()
        for said, name in several
    ]
