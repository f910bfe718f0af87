"""RoPE at the centres of an image's patches, which are drawn anew while training (DINOv3)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import rotate_by
from pe_jax.encodings.rotary.several_axes import by_share, of_patch


@register_encoding
def rope_centered(
    *,
    head_size: int,
    height: int,
    width: int,
    prefix: int = 0,
    base: float = 100.0,
    max_shift: float = 0.0,
    max_jitter: float = 1.0,
    max_rescale: float = 1.0,
) -> Part:
    """RoPE of patches at their centres in an image from -1 to 1 on each axis (DINOv3: Siméoni et
    al. 2025, arXiv 2508.10104; `dinov3_vit` of transformers).

        y = 2 (row + 1/2) / height - 1,   x = 2 (column + 1/2) / width - 1
        pair t of the head: angle 2π ω_t y,   pair d/4 + t: 2π ω_t x,   ω_t = base^(-4t/d)

    So images of other sizes have the same angles at their ends. Pairs are dimensions m and m + d/2.
    Positions count the patches row by row: x is patch (x // width, x % width). No parameters.

    With an rng, while training, (y, x) -> ((y, x) + Δ) μ λ, with Δ ~ U(-a, a) and log μ ~ U(-log b,
    log b) for each axis, and log λ ~ U(-log c, log c). All rows of a batch share these draws.

    Args:
      head_size: d, a multiple of 4.
      height, width: of the image, in patches.
      prefix: the first positions are [CLS] and registers, which are not rotated; patches count from
        here.
      base: of the frequencies.
      max_shift, max_jitter, max_rescale: a, and b and c of at least 1. By default nothing is drawn;
        transformers' configs have c = 2.

    Raises:
      ValueError: for a head size that is no multiple of 4, an image without patches, a negative
        prefix or shift, or a jitter or rescaling below 1.
    """
    w = by_share(head_size, 2, base)
    check_at_least(
        1, height=height, width=width, max_jitter=max_jitter, max_rescale=max_rescale
    )
    check_at_least(0, prefix=prefix, max_shift=max_shift)
    draws = max_shift > 0 or max_jitter > 1 or max_rescale > 1

    def augment(centres: Float[Array, "*B 2"], rng: jax.Array) -> Float[Array, "*B 2"]:
        shift_key, jitter_key, rescale_key = jax.random.split(rng, 3)
        shift = _uniform(shift_key, 2, max_shift)
        jitter = _uniform(jitter_key, 2, math.log(max_jitter))
        rescale = _uniform(rescale_key, 1, math.log(max_rescale))
        return (centres + shift) * jnp.exp(jitter + rescale)

    def rotate(
        x: Array, positions: Real[Array, "*B L"], rng: jax.Array | None
    ) -> Array:
        patch = of_patch(positions - prefix, width)
        centres = (2 * patch + 1) / np.array([height, width], np.float32) - 1
        if draws and rng is not None:
            centres = augment(centres, rng)
        is_prefix = (positions < prefix)[..., None]
        centres = jnp.where(is_prefix, 0.0, centres)
        angle = 2 * jnp.pi * centres[..., None] * w  # [#B, L, 2, d/4]
        return rotate_by(x, angle.reshape(*angle.shape[:-2], 1, 2 * w.size))

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        rng = context.position_rng
        return rotate(q, i, rng), rotate(k, j, rng), v

    return Part(
        map_qkv=map_qkv,
        metadata=Metadata(
            formula=f"R(2π ω, centre), centres in [−1, 1]², ω_t = {base:g}^(−4t/d)",
            source="Siméoni et al. 2025 (DINOv3), code",
            monotone=False,
        ),
    )


def _uniform(rng: jax.Array, size: int, limit: float) -> Float[jax.Array, " N"]:
    """Draw numbers between -limit and limit."""
    return jax.random.uniform(rng, (size,), minval=-limit, maxval=limit)
