"""Small configs of published encoders, of odd sizes, as their config.json has them."""

from typing import Any

SIZES: dict[str, Any] = dict(
    vocab_size=37, hidden_size=12, num_hidden_layers=4, num_attention_heads=3, intermediate_size=19,
    max_position_embeddings=21, initializer_range=0.05,
)  # fmt: skip
_MODERNBERT: dict[str, Any] = dict(
    SIZES, model_type="modernbert", local_attention=6, global_attn_every_n_layers=3,
    global_rope_theta=160_000.0, local_rope_theta=10_000.0, pad_token_id=0, bos_token_id=2,
    eos_token_id=3, cls_token_id=2, sep_token_id=3,
)  # fmt: skip
_EUROBERT: dict[str, Any] = dict(
    SIZES, model_type="eurobert", rope_theta=250_000.0, pad_token_id=0, bos_token_id=2,
    eos_token_id=3, mask_token_id=4,
)  # fmt: skip
_NOMIC: dict[str, Any] = dict(
    SIZES, model_type="nomic_bert", type_vocab_size=2, pad_token_id=0
)
_FEW: dict[str, Any] = dict(SIZES, num_hidden_layers=2)
_DEBERTA: dict[str, Any] = dict(
    _FEW, model_type="deberta-v2", pad_token_id=0, relative_attention=True, position_buckets=4,
    max_relative_positions=-1, pos_att_type="p2c|c2p", share_att_key=True,
    position_biased_input=False, type_vocab_size=0,
)  # fmt: skip
_T5: dict[str, Any] = dict(
    vocab_size=37, d_model=12, d_kv=6, d_ff=19, num_layers=2, num_heads=3, pad_token_id=0,
    relative_attention_num_buckets=8, relative_attention_max_distance=12,
)  # fmt: skip

# Name: class of transformers, config.json.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", dict(SIZES, model_type="bert", type_vocab_size=2, pad_token_id=0)),
    "roberta": ("Roberta", dict(SIZES, model_type="roberta", type_vocab_size=1, pad_token_id=1)),
    "xlm-roberta": (
        "XLMRoberta",
        dict(SIZES, model_type="xlm-roberta", type_vocab_size=1, pad_token_id=2),
    ),
    "mpnet": ("MPNet", dict(SIZES, model_type="mpnet", pad_token_id=1)),
    "distilbert": (
        "DistilBert",
        dict(
            model_type="distilbert", vocab_size=37, dim=12, n_layers=4, n_heads=3, hidden_dim=19,
            max_position_embeddings=21, initializer_range=0.05, activation="relu", pad_token_id=0,
        ),
    ),
    "modernbert": ("ModernBert", _MODERNBERT),
    "modernbert, all biases": (
        "ModernBert",
        dict(
            _MODERNBERT, num_hidden_layers=7, attention_bias=True, mlp_bias=True, norm_bias=True,
            classifier_bias=True, decoder_bias=False, hidden_activation="silu",
            classifier_activation="relu", tie_word_embeddings=False,
        ),
    ),
    "eurobert": ("EuroBert", _EUROBERT),
    "eurobert, fewer key heads": (
        "EuroBert",
        dict(
            _EUROBERT, hidden_size=24, num_attention_heads=6, num_key_value_heads=2, mlp_bias=True,
            attention_bias=True, tie_word_embeddings=True,
        ),
    ),
    "roformer": (
        "RoFormer",
        dict(SIZES, model_type="roformer", type_vocab_size=2, pad_token_id=0, hidden_act="silu"),
    ),
    "nomic_bert": ("NomicBert", _NOMIC),
    "gte": (
        "Gte",
        dict(SIZES, model_type="gte", type_vocab_size=1, rope_theta=20_000.0, pad_token_id=1),
    ),
    "gte, no token types": (
        "Gte",
        dict(SIZES, model_type="gte", type_vocab_size=0, rope_theta=5e5, pad_token_id=0),
    ),
    "camembert": (
        "Camembert",
        dict(_FEW, model_type="camembert", type_vocab_size=1, pad_token_id=1),
    ),
    "data2vec-text": (
        "Data2VecText",
        dict(_FEW, model_type="data2vec-text", type_vocab_size=1, pad_token_id=1),
    ),
    "roberta-prelayernorm": (
        "RobertaPreLayerNorm",
        dict(_FEW, model_type="roberta-prelayernorm", type_vocab_size=1, pad_token_id=1),
    ),
    "xlm-roberta-xl": (
        "XLMRobertaXL",
        dict(_FEW, model_type="xlm-roberta-xl", type_vocab_size=1, pad_token_id=1),
    ),
    "megatron-bert": (
        "MegatronBert",
        dict(_FEW, model_type="megatron-bert", type_vocab_size=2, pad_token_id=0),
    ),
    "electra": (
        "Electra",
        dict(_FEW, model_type="electra", embedding_size=8, type_vocab_size=2, pad_token_id=0),
    ),
    "electra, as wide as its embeddings": (
        "Electra",
        dict(_FEW, model_type="electra", embedding_size=12, type_vocab_size=2, pad_token_id=0),
    ),
    "albert": (
        "Albert",
        dict(
            _FEW, model_type="albert", num_hidden_layers=3, embedding_size=8, type_vocab_size=2,
            pad_token_id=0,
        ),
    ),
    "roformer, narrow embeddings": (
        "RoFormer",
        dict(_FEW, model_type="roformer", embedding_size=8, type_vocab_size=2, pad_token_id=0),
    ),
    "deberta-v2": ("DebertaV2", dict(_DEBERTA, norm_rel_ebd="none")),
    "deberta-v2, convolution": (
        "DebertaV2",
        dict(
            _DEBERTA, norm_rel_ebd="none", conv_kernel_size=3, conv_act="gelu", type_vocab_size=2,
            position_buckets=-1, max_relative_positions=7, position_biased_input=True,
        ),
    ),
    "esm": (
        "Esm",
        dict(
            _FEW, model_type="esm", position_embedding_type="rotary", token_dropout=True,
            mask_token_id=4, pad_token_id=1, emb_layer_norm_before=False,
        ),
    ),
    "esm, learned positions": (
        "Esm",
        dict(
            _FEW, model_type="esm", position_embedding_type="absolute", token_dropout=False,
            mask_token_id=4, pad_token_id=1, emb_layer_norm_before=True,
        ),
    ),
    "t5": ("T5", dict(_T5, model_type="t5", feed_forward_proj="relu")),
    "mt5": ("MT5", dict(_T5, model_type="mt5", feed_forward_proj="gated-gelu")),
    "umt5": ("UMT5", dict(_T5, model_type="umt5", feed_forward_proj="gated-gelu")),
}  # fmt: skip
