"""Published encoders as data: what their config.json and their tensors are called."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pe_jax.configs.model import MODERNBERT as MODERNBERT_SETTINGS
from pe_jax.interop.encoder_format import GPT2_NAMES, POSITION_MODULE, EncoderFormat, Modules

# Activations of transformers, and ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_length": "max_position_embeddings",
}
_TOKEN_TYPES = {"num_token_types": "type_vocab_size"}
_DROPOUT = {
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}
_INITIAL = {"initializer_stddev": "initializer_range"}
_TIED = {"tied_decoder": "tie_word_embeddings"}
_POST_NORM = {"layer_norm_epsilon": "layer_norm_eps", **_DROPOUT, **_INITIAL, **_TIED}
_ACTIVATION = {"activation": "hidden_act"}
_ACTIVATIONS = {**_ACTIVATION, "head_activation": "hidden_act"}
# Fields of classes that can be decoders, and a key of version 4 that selected other positions.
_BERT_ONLY = {"is_decoder": False, "add_cross_attention": False}
_TABLE_ONLY = {**_BERT_ONLY, "position_embedding_type": "absolute", "alibi_starting_size": None}
_ROTARY_HEAD = {"head_dim": "head_size"}
_POSITION_TABLE = "embeddings.position_embeddings"

_Classes = Mapping[tuple[str, ...], str]
_ENCODER: _Classes = {(): "Model", ("masked_lm",): "ForMaskedLM"}
_POOLED: _Classes = {(): "Model", ("pooler",): "Model", ("masked_lm",): "ForMaskedLM"}
_POOLER: Modules = {"pooler/dense": "pooler.dense"}


def _masked_lm(transform: str, norm: str, decoder: str, bias: str) -> Modules:
    """The head "masked_lm": a dense layer and a norm, and a decoder whose bias `bias` has."""
    return {
        "masked_lm/dense": f"{transform}.dense",
        "masked_lm/norm": f"{transform}.{norm}",
        "masked_lm/decoder": decoder,
        "masked_lm": bias,
    }


_DECODER = "cls.predictions.decoder", "cls.predictions"  # BERT's, and the module of its bias.
_NO_BIASES = {"attention_bias": False, "up_bias": False, "down_bias": False}
_NO_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}

# --- BERT and RoBERTa ---

BERT = EncoderFormat(
    name="Bert",
    prefixes=("bert.",),
    classes={
        **_POOLED,
        ("pooler", "masked_lm", "next_sentence"): "ForPreTraining",
        ("pooler", "classifier"): "ForSequenceClassification",
        ("spans",): "ForQuestionAnswering",
    },
    keys={**_SIZES, **_TOKEN_TYPES},
    optional_keys={**_ACTIVATIONS, **_POST_NORM},
    only=_TABLE_ONLY,
    embeddings={
        "bert/token": "embeddings.word_embeddings",
        POSITION_MODULE: _POSITION_TABLE,
        "bert/segment": "embeddings.token_type_embeddings",
        "bert/embedding_norm": "embeddings.LayerNorm",
    },
    layer={
        "attention/qkv": tuple(
            f"encoder.layer.*.attention.self.{name}" for name in ("query", "key", "value")
        ),
        "attention/out": "encoder.layer.*.attention.output.dense",
        "attention_norm": "encoder.layer.*.attention.output.LayerNorm",
        "up": "encoder.layer.*.intermediate.dense",
        "down": "encoder.layer.*.output.dense",
        "mlp_norm": "encoder.layer.*.output.LayerNorm",
    },
    heads={
        "pooler": _POOLER,
        "masked_lm": _masked_lm("cls.predictions.transform", "LayerNorm", *_DECODER),
        "next_sentence": {"next_sentence": "cls.seq_relationship"},
        "classifier": {"classifier": "classifier"},
        "spans": {"spans": "qa_outputs"},
    },
)
ROBERTA = BERT._replace(
    name="Roberta",
    prefixes=("roberta.",),
    optional_keys={**_ACTIVATION, **_POST_NORM},  # Its masked-LM head always has gelu.
    settings={"positions_from_mask": True},
    classes={
        **_POOLED,
        ("classifier",): "ForSequenceClassification",
        ("spans",): "ForQuestionAnswering",
    },
    heads={
        "pooler": _POOLER,
        "masked_lm": _masked_lm("lm_head", "layer_norm", "lm_head.decoder", "lm_head"),
        "classifier": {"pooler/dense": "classifier.dense", "classifier": "classifier.out_proj"},
        "spans": BERT.heads["spans"],
    },
)

XLM_ROBERTA = ROBERTA._replace(name="XLMRoberta")

MPNET = ROBERTA._replace(
    name="MPNet",
    prefixes=("mpnet.",),
    settings={"positions_from_mask": True, "num_token_types": 0},
    keys=_SIZES,
    # Constants in the code of transformers.
    only={"relative_attention_num_buckets": 32, "pad_token_id": 1},
    embeddings={
        "bert/token": "embeddings.word_embeddings",
        POSITION_MODULE: _POSITION_TABLE,
        "bert/position/t5": "encoder.relative_attention_bias",
        "bert/embedding_norm": "embeddings.LayerNorm",
    },
    layer={
        **BERT.layer,
        "attention/qkv": tuple(f"encoder.layer.*.attention.attn.{name}" for name in "qkv"),
        "attention/out": "encoder.layer.*.attention.attn.o",
        "attention_norm": "encoder.layer.*.attention.LayerNorm",
    },
)

DISTILBERT = EncoderFormat(
    name="DistilBert",
    prefixes=("distilbert.",),
    # Its classifier has relu where ours have tanh, and is not read.
    classes={**_ENCODER, ("spans",): "ForQuestionAnswering"},
    settings={"num_token_types": 0},
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_length": "max_position_embeddings",
    },
    optional_keys={
        "activation": "activation",
        "head_activation": "activation",
        "dropout_rate": "dropout",
        "attention_dropout_rate": "attention_dropout",
        **_INITIAL,
        **_TIED,
    },
    only={"sinusoidal_pos_embds": False},
    embeddings={name: BERT.embeddings[name] for name in BERT.embeddings if name != "bert/segment"},
    layer={
        "attention/qkv": tuple(f"transformer.layer.*.attention.{name}_lin" for name in "qkv"),
        "attention/out": "transformer.layer.*.attention.out_lin",
        "attention_norm": "transformer.layer.*.sa_layer_norm",
        "up": "transformer.layer.*.ffn.lin1",
        "down": "transformer.layer.*.ffn.lin2",
        "mlp_norm": "transformer.layer.*.output_layer_norm",
    },
    heads={
        "masked_lm": {
            "masked_lm/dense": "vocab_transform",
            "masked_lm/norm": "vocab_layer_norm",
            "masked_lm/decoder": "vocab_projector",
            "masked_lm": "vocab_projector",
        },
        "spans": BERT.heads["spans"],
    },
)

# --- Encoders with rotary positions ---


def _sines_and_cosines(length: int, head_size: int) -> np.ndarray:
    """RoFormer's rotations: the sines of each position's angles, then the cosines, `[L, d]`."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, head_size, 2) / head_size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


ROFORMER = BERT._replace(
    name="RoFormer",
    prefixes=("roformer.",),
    classes={**_ENCODER, ("spans",): "ForQuestionAnswering"},
    # The last two are of RoFormerV2, whose code is outside transformers.
    only={**_BERT_ONLY, "rotary_value": False, "norm_type": "layer_norm", "use_bias": True},
    derived={"embedding_size": "hidden_size"},
    constants={"encoder.embed_positions.weight": _sines_and_cosines},
    embeddings={
        ours: theirs for ours, theirs in BERT.embeddings.items() if ours != POSITION_MODULE
    },
    heads={head: BERT.heads[head] for head in ("masked_lm", "spans")},
)

MODERNBERT = EncoderFormat(
    name="ModernBert",
    prefixes=("model.",),
    classes={
        **_ENCODER,
        ("classifier",): "ForSequenceClassification",
        ("spans",): "ForQuestionAnswering",
    },
    settings={k: v for k, v in MODERNBERT_SETTINGS.items() if k not in ("position", "max_length")},
    keys=_SIZES,
    optional_keys={
        "layer_norm_epsilon": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "up_bias": "mlp_bias",
        "down_bias": "mlp_bias",
        "activation": "hidden_activation",
        "head_bias": "classifier_bias",
        "head_activation": "classifier_activation",
        "classifier_pooling": "classifier_pooling",
        "decoder_bias": "decoder_bias",
        "attention_dropout_rate": "attention_dropout",
        "dropout_rate": "embedding_dropout",
        **_INITIAL,
        **_TIED,
    },
    # `sliding_window` would set `local_attention`.
    only={"mlp_dropout": 0.0, "sliding_window": None},
    derived=_ROTARY_HEAD,
    embeddings={
        "bert/token": "embeddings.tok_embeddings",
        "bert/embedding_norm": "embeddings.norm",
        "bert/final_norm": "final_norm",
    },
    layer={
        "attention_norm": "layers.*.attn_norm",
        "attention/qkv": "layers.*.attn.Wqkv",
        "attention/out": "layers.*.attn.Wo",
        "mlp_norm": "layers.*.mlp_norm",
        "up": "layers.*.mlp.Wi",
        "down": "layers.*.mlp.Wo",
    },
    heads={
        "masked_lm": _masked_lm("head", "norm", "decoder", "decoder"),
        "classifier": {
            "pooler/dense": "head.dense",
            "pooler/norm": "head.norm",
            "classifier": "classifier",
        },
        "spans": {
            "span_head/dense": "head.dense",
            "span_head/norm": "head.norm",
            "spans": "classifier",
        },
    },
)
EUROBERT = EncoderFormat(
    name="EuroBert",
    prefixes=("model.",),
    classes=_ENCODER,
    settings=dict(
        pre_norm=True,
        norm="rms_norm",
        norm_bias=False,
        layer_norm_epsilon=1e-5,
        embedding_norm=False,
        final_norm=True,
        num_token_types=0,
        activation="silu",
        gated_mlp=True,
        head_dense=False,
        tied_decoder=False,
        decoder_bias=False,
        **_NO_BIASES,
        **_NO_DROPOUT,
    ),
    keys=_SIZES,
    optional_keys={
        "layer_norm_epsilon": "rms_norm_eps",
        "num_key_heads": "num_key_value_heads",
        **_ACTIVATION,
        "attention_bias": "attention_bias",
        "up_bias": "mlp_bias",
        "down_bias": "mlp_bias",
        "decoder_bias": "mlp_bias",
        "attention_dropout_rate": "attention_dropout",
        **_INITIAL,
        **_TIED,
    },
    derived=_ROTARY_HEAD,
    has_remote_code=True,
    embeddings={"bert/token": "embed_tokens", "bert/final_norm": "norm"},
    layer={
        "attention_norm": "layers.*.input_layernorm",
        "attention/qkv": tuple(f"layers.*.self_attn.{name}_proj" for name in "qkv"),
        "attention/query": "layers.*.self_attn.q_proj",
        "attention/key_value": tuple(f"layers.*.self_attn.{name}_proj" for name in "kv"),
        "attention/out": "layers.*.self_attn.o_proj",
        "mlp_norm": "layers.*.post_attention_layernorm",
        "up": ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"),
        "down": "layers.*.mlp.down_proj",
    },
    heads={"masked_lm": {"masked_lm/decoder": "lm_head", "masked_lm": "lm_head"}},
)
NOMIC = EncoderFormat(
    name="NomicBert",
    prefixes=("nomic_bert.", "bert."),
    classes=_ENCODER,
    settings=dict(
        activation="silu", gated_mlp=True, head_activation="silu", **_NO_BIASES, **_NO_DROPOUT
    ),
    keys={**_SIZES, **_TOKEN_TYPES},
    optional_keys={**_ACTIVATIONS, **_POST_NORM},
    only={
        # Keys of the first configs, of code outside transformers.
        "activation_function": "swiglu",
        "causal": False,
        "prenorm": False,
        "use_rms_norm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "num_experts": 0,
        "parallel_block": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_head_dim": False,
        "rotary_scaling_factor": None,
    },
    derived=_ROTARY_HEAD,
    has_remote_code=True,
    aliases={
        **GPT2_NAMES,
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "attn_pdrop": "attention_probs_dropout_prob",
        "resid_pdrop": "hidden_dropout_prob",
        "embd_pdrop": "hidden_dropout_prob",
    },
    embeddings={**ROFORMER.embeddings, "bert/embedding_norm": "emb_ln"},
    layer={
        "attention/qkv": "encoder.layers.*.attn.Wqkv",
        "attention/out": "encoder.layers.*.attn.out_proj",
        "attention_norm": "encoder.layers.*.norm1",
        "up": ("encoder.layers.*.mlp.fc12", "encoder.layers.*.mlp.fc11"),
        "down": "encoder.layers.*.mlp.fc2",
        "mlp_norm": "encoder.layers.*.norm2",
    },
    heads={"masked_lm": _masked_lm("cls.predictions.transform", "layer_norm", *_DECODER)},
)
GTE = EncoderFormat(
    name="Gte",
    prefixes=("gte.", "new."),
    classes=_POOLED,
    settings=dict(gated_mlp=True, up_bias=False, attention_dropout_rate=0.0),
    keys={**_SIZES, **_TOKEN_TYPES},
    optional_keys={**_ACTIVATION, **_POST_NORM},  # Its masked-LM head always has gelu.
    only={
        # Keys of the first configs, of code outside transformers.
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
    },
    derived=_ROTARY_HEAD,
    types_are_optional=True,
    has_remote_code=True,
    swapped=("encoder.layer.*.mlp.up_gate_proj",),
    embeddings=ROFORMER.embeddings,
    layer={
        "attention/qkv": "encoder.layer.*.attention.qkv_proj",
        "attention/out": "encoder.layer.*.attention.o_proj",
        "attention_norm": "encoder.layer.*.attn_ln",
        "up": "encoder.layer.*.mlp.up_gate_proj",
        "down": "encoder.layer.*.mlp.down_proj",
        "mlp_norm": "encoder.layer.*.mlp_ln",
    },
    heads={
        "pooler": _POOLER,
        "masked_lm": _masked_lm("lm_head", "norm", "lm_head.decoder", "lm_head.decoder"),
    },
)
HEADS = tuple(BERT.heads)
# By `model_type`.
FORMATS: Mapping[str, EncoderFormat] = {
    "bert": BERT,
    "distilbert": DISTILBERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "eurobert": EUROBERT,
    "roformer": ROFORMER,
    "nomic_bert": NOMIC,
    "gte": GTE,
}
