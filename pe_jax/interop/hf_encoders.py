"""Families of published encoders as data: what their config.json and their tensors are called.

`ours` is pe_jax, `theirs` a Hugging Face folder: keys of its config.json, and names of its tensors
without the prefix of the encoder, which some of its classes have. Names of layers contain a `*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pe_jax.configs.model import MODERNBERT
from pe_jax.encodings import PUBLISHED

# Activations of transformers, and ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# A module of ours: the modules of theirs that hold it, concatenated along their outputs.
Modules = Mapping[str, str | tuple[str, ...]]
# What `only` has in every family: keys of transformers' base class that change any model.
_ANY_FAMILY = {"per_layer_config": None, "quantization_config": None}
_ROPE = ("rope_theta", "rope_parameters", "rope_scaling")


class Family(NamedTuple):
    """Encoders with the same tensors and the same keys.

    `keys`, `optional_keys`, `only`, `positions` and `derived` have every key that changes what the
    model computes: those fields of its class in transformers, and keys of code outside transformers
    that published files have. Every other key is ignored, as transformers does.

    Attributes:
      model_types: `model_type` in their config.json; the first is written.
      name: of their classes in transformers, before `Model`.
      classes: what follows the name in the class that has some heads.
      prefixes: of the encoder's tensors in classes with heads; the first is written.
      settings: fields of BertConfig, where they differ from the defaults and config.json does not
        say otherwise.
      keys: field of BertConfig: required key in config.json.
      optional_keys: the same for keys that may be missing.
      only: for each key, the only supported value, which is that of a missing key as well. None
        stands for no value.
      positions: keys that `encodings.from_hf` reads.
      derived: keys whose value follows from others: property of BertConfig that it must equal.
      has_remote_code: `auto_map` may name models; their code computes what transformers' does.
      embeddings, layer: tables of the encoder's modules.
      heads: tables of the heads that are read, by name. That of a classifier may include what
        comes before it.
      swapped: packed tensors whose two halves are in the other order than ours.
      constants: tensors that are not parameters -> their value, from sizes `(length, head_size)`,
        to be written; None for one that need not be.
      aliases: other names of keys, as older configs have them.
    """

    model_types: tuple[str, ...]
    name: str
    prefixes: tuple[str, ...]
    classes: Mapping[tuple[str, ...], str]
    embeddings: Modules
    layer: Modules
    heads: Mapping[str, Modules]
    keys: Mapping[str, str]
    optional_keys: Mapping[str, str]
    only: Mapping[str, Any] = _ANY_FAMILY
    settings: Mapping[str, Any] = {}
    positions: tuple[str, ...] = _ROPE
    derived: Mapping[str, str] = {}
    has_remote_code: bool = False
    swapped: tuple[str, ...] = ()
    constants: Mapping[str, Callable[[int, int], np.ndarray] | None] = {
        "embeddings.position_ids": None
    }
    aliases: Mapping[str, str] = {}


_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_length": "max_position_embeddings",
}
_SEGMENTS = {"num_segments": "type_vocab_size"}
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
_BERT_ONLY = {**_ANY_FAMILY, "is_decoder": False, "add_cross_attention": False}
_TABLE_ONLY = {**_BERT_ONLY, "position_embedding_type": "absolute", "alibi_starting_size": None}
_ROTARY_HEAD = {"head_dim": "head_size"}
_TABLE = f"bert/position/{PUBLISHED[0]}"

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

_BERT = Family(
    model_types=("bert",),
    name="Bert",
    prefixes=("bert.",),
    classes={
        **_POOLED,
        ("pooler", "masked_lm", "next_sentence"): "ForPreTraining",
        ("pooler", "classifier"): "ForSequenceClassification",
        ("spans",): "ForQuestionAnswering",
    },
    keys={**_SIZES, **_SEGMENTS},
    optional_keys={**_ACTIVATIONS, **_POST_NORM},
    only=_TABLE_ONLY,
    positions=("pad_token_id",),
    embeddings={
        "bert/token": "embeddings.word_embeddings",
        _TABLE: "embeddings.position_embeddings",
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
_ROBERTA = _BERT._replace(
    model_types=("roberta",),
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
        "spans": _BERT.heads["spans"],
    },
)

# --- Encoders with rotary positions ---


def _sines_and_cosines(length: int, head_size: int) -> np.ndarray:
    """RoFormer's rotations: the sines of each position's angles, then the cosines, `[L, d]`."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, head_size, 2) / head_size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


_ROFORMER = _BERT._replace(
    model_types=("roformer",),
    name="RoFormer",
    prefixes=("roformer.",),
    classes={**_ENCODER, ("spans",): "ForQuestionAnswering"},
    # The last two are of RoFormerV2, whose code is outside transformers.
    only={**_BERT_ONLY, "rotary_value": False, "norm_type": "layer_norm", "use_bias": True},
    positions=(),
    derived={"embedding_size": "hidden_size"},
    constants={"encoder.embed_positions.weight": _sines_and_cosines},
    embeddings={ours: theirs for ours, theirs in _BERT.embeddings.items() if ours != _TABLE},
    heads={head: _BERT.heads[head] for head in ("masked_lm", "spans")},
)

_MODERNBERT = Family(
    model_types=("modernbert",),
    name="ModernBert",
    prefixes=("model.",),
    classes={
        **_ENCODER,
        ("classifier",): "ForSequenceClassification",
        ("spans",): "ForQuestionAnswering",
    },
    settings={k: v for k, v in MODERNBERT.items() if k not in ("position", "max_length")},
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
    only={**_ANY_FAMILY, "mlp_dropout": 0.0, "sliding_window": None},
    positions=(
        *("rope_parameters", "rope_scaling", "layer_types", "global_attn_every_n_layers"),
        *("local_attention", "global_rope_theta", "local_rope_theta"),
    ),
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
_EUROBERT = Family(
    model_types=("eurobert",),
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
        num_segments=0,
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
    positions=_ROPE,
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
_NOMIC = Family(
    model_types=("nomic_bert",),
    name="NomicBert",
    prefixes=("nomic_bert.", "bert."),
    classes=_ENCODER,
    settings=dict(
        activation="silu", gated_mlp=True, head_activation="silu", **_NO_BIASES, **_NO_DROPOUT
    ),
    keys={**_SIZES, **_SEGMENTS},
    optional_keys={**_ACTIVATIONS, **_POST_NORM},
    only={
        **_ANY_FAMILY,
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
    positions=(*_ROPE, "rotary_emb_base"),
    derived=_ROTARY_HEAD,
    has_remote_code=True,
    aliases={
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "attn_pdrop": "attention_probs_dropout_prob",
        "resid_pdrop": "hidden_dropout_prob",
        "embd_pdrop": "hidden_dropout_prob",
    },
    embeddings={
        "bert/token": "embeddings.word_embeddings",
        "bert/segment": "embeddings.token_type_embeddings",
        "bert/embedding_norm": "emb_ln",
    },
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
_GTE = Family(
    model_types=("gte", "new"),
    name="Gte",
    prefixes=("gte.", "new."),
    classes=_POOLED,
    settings=dict(gated_mlp=True, up_bias=False, attention_dropout_rate=0.0),
    keys={**_SIZES, **_SEGMENTS},
    optional_keys={**_ACTIVATION, **_POST_NORM},  # Its masked-LM head always has gelu.
    only={
        **_ANY_FAMILY,
        # Keys of the first configs, of code outside transformers.
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
    },
    derived=_ROTARY_HEAD,
    has_remote_code=True,
    swapped=("encoder.layer.*.mlp.up_gate_proj",),
    embeddings={
        "bert/token": "embeddings.word_embeddings",
        "bert/segment": "embeddings.token_type_embeddings",
        "bert/embedding_norm": "embeddings.LayerNorm",
    },
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

ENCODERS: Mapping[str, Family] = {
    family.model_types[0]: family
    for family in (
        _BERT,
        _ROBERTA,
        _ROBERTA._replace(model_types=("xlm-roberta",), name="XLMRoberta"),
        _MODERNBERT,
        _EUROBERT,
        _ROFORMER,
        _NOMIC,
        _GTE,
    )
}
FAMILY_OF = {kind: family for family in ENCODERS.values() for kind in family.model_types}
HEADS = tuple(_BERT.heads)


def head_parts(family: Family, heads: Iterable[str]) -> set[str]:
    """Return the modules of ours that the tables of these heads have parameters of."""
    return {path.split("/")[0] for head in heads for path in family.heads[head]}


def is_table(family: Family) -> bool:
    """Return whether positions are a learned table."""
    return _TABLE in family.embeddings
