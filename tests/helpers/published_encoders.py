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
}  # fmt: skip
