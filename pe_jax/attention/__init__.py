"""Attention for q, k, v and a position encoding; no Flax."""

from pe_jax.attention.attention import attention, attention_logits, attention_weights
from pe_jax.attention.cache import Cache, cached_attention, init_cache, with_index
from pe_jax.attention.dropout import dropout
from pe_jax.attention.kernel_check import KernelCheck, KernelDifference, check_kernel
from pe_jax.attention.masks import (
    document_mask,
    document_positions,
    masked_softmax,
    padding_mask,
)

__all__ = [
    "Cache", "KernelCheck", "KernelDifference", "attention", "attention_logits",
    "attention_weights", "cached_attention", "check_kernel", "document_mask", "document_positions",
    "dropout", "init_cache", "masked_softmax", "padding_mask", "with_index",
]  # fmt: skip
