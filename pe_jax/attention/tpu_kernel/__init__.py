"""Fused attention with relative terms for TPUs, in Pallas; `flash` documents it."""

from pe_jax.attention.tpu_kernel.flash import flash_attention

__all__ = ["flash_attention"]
