"""Attention for q, k, v and a position encoding; no Flax."""

from pe_jax.attention.attention import attention, attention_logits
from pe_jax.attention.dropout import dropout
from pe_jax.attention.masks import masked_softmax, padding_mask, segment_mask

__all__ = [
    "attention",
    "attention_logits",
    "dropout",
    "masked_softmax",
    "padding_mask",
    "segment_mask",
]
