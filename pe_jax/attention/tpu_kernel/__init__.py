"""Fused attention with relative terms for TPUs, in Pallas; `flash` documents it."""

from pe_jax.attention.tpu_kernel.flash import fits, flash_attention

__all__ = ["fits", "flash_attention"]
