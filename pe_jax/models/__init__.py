"""Flax Linen BERT; one encoder class, encodings are data."""

from pe_jax.models.bert import Bert, BertForPretraining, Pooler, PretrainingLogits
from pe_jax.models.config import PRESETS, BertConfig, preset

__all__ = [
    "PRESETS",
    "Bert",
    "BertConfig",
    "BertForPretraining",
    "Pooler",
    "PretrainingLogits",
    "preset",
]
