"""Attention for q, k, v and a position encoding; no Flax."""

from pe_jax.attention.attention import attention, attention_logits, attention_weights
from pe_jax.attention.cache import Cache, cached_attention, init_cache, with_index
from pe_jax.attention.dropout import dropout
from pe_jax.attention.masks import masked_softmax, padding_mask, segment_mask, segment_positions

__all__ = [
    "Cache",
    "attention",
    "attention_logits",
    "attention_weights",
    "cached_attention",
    "dropout",
    "init_cache",
    "masked_softmax",
    "padding_mask",
    "segment_mask",
    "segment_positions",
    "with_index",
]
