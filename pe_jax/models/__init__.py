"""Flax Linen BERT; one encoder class, encodings are data."""

from pe_jax.models.bert import Bert, BertForPretraining, Pooler, PretrainingLogits
from pe_jax.models.config import PRESETS, BertConfig, preset
from pe_jax.models.flops import forward_flops, train_flops
from pe_jax.models.inspection import (
    attention_map,
    projections,
    queries_and_keys,
    query_key_matrices,
)

__all__ = [
    "PRESETS",
    "Bert",
    "BertConfig",
    "BertForPretraining",
    "Pooler",
    "PretrainingLogits",
    "attention_map",
    "forward_flops",
    "preset",
    "projections",
    "queries_and_keys",
    "query_key_matrices",
    "train_flops",
]
