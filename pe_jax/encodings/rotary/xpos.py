"""xPos: RoPE whose pairs decay with the distance, the fast ones most."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from pe_jax.common.errors import check_positive
from pe_jax.common.shapes import Array, Real
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import Layout, pairs, rotate_by
from pe_jax.encodings.sinusoid import angles, default_frequencies


@register_encoding
def xpos(
    *,
    head_size: int,
    base: float = 10_000.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    layout: Layout = "half",
) -> Part:
    """Extrapolatable position embedding (Sun et al. 2022, arXiv 2212.10554, section 3).

        q_i -> ζ^(i/B) R(ω i) q_i        k_j -> ζ^(-j/B) R(ω j) k_j
        so that q_i·k_j -> Σ_m ζ_m^((i - j)/B) · (pair m of RoPE)

    ζ_m = (2m/d + γ) / (1 + γ) in (0, 1), smallest for the fastest pair, and B = `scale_base`. For
    causal attention only: to the right the factor ζ^(-distance) would grow without bound. No
    parameters.

    ζ^(i/B) by itself vanishes or overflows far out, so exponents count from c, the middle of the
    row's keys, (i - c)/B and -(j - c)/B, which leaves the product as it is. float32 and bfloat16
    hold it exactly for rows of 36,000 positions (at B = 512), float16 for rows of 4,500. Further
    from the middle exponents stay at a limit: two tokens that are both beyond it, on one side, no
    longer decay with their distance. (The authors' code has no limit.)

    Args:
      scale_base: B, 512 in the authors' code.
      gamma: γ, 0.4 in the paper; larger ones decay less.
      base: as in `rope`.
      layout: as in `rope`; the authors' code has "interleaved".

    Raises:
      ValueError: for a `scale_base` or `gamma` that is not positive.
    """
    check_positive(scale_base=scale_base, gamma=gamma)
    w = default_frequencies(head_size, base)[None]
    zeta = (np.arange(0, head_size, 2) / head_size + gamma) / (1 + gamma)
    decay = np.log(zeta) / scale_base

    def scale_of(distance: Real[Array, "*B L"], dtype: DTypeLike) -> Array:
        """Return ζ^(distance/B), of an exponent that this dtype holds for queries and keys both."""
        limit = math.log(float(jnp.finfo(dtype).max)) / 2
        exponent = jnp.asarray(distance, float)[..., None] * decay
        return jnp.exp(jnp.clip(exponent, -limit, limit))[..., None, :]

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        frequencies = w
        if context.frequency_factors is not None:
            frequencies = jnp.array(w) * context.frequency_factors(jnp.array(w))
        i, j = context.arrays()
        first = j.min(-1, keepdims=True)
        last = j.max(-1, keepdims=True)
        middle = first + (last - first) // 2
        scale_q = scale_of(i - middle, q.dtype)
        scale_k = scale_of(middle - j, k.dtype)
        q = rotate_by(q, angles(i, frequencies), layout, scale_q)
        k = rotate_by(k, angles(j, frequencies), layout, scale_k)
        return q, k, v

    return Part(
        map_qkv=map_qkv,
        traits=Traits(
            causal_only="what decays to the left grows without bound to the right"
        ),
        metadata=Metadata(
            formula="ζ^(i/B) R(ω i) q_i, ζ^(−j/B) R(ω j) k_j, ζ_m = (2m/d + γ)/(1 + γ)",
            source="Sun et al. 2022, 3",
            invariant=True,
            monotone=False,
            symmetric=False,
            frequencies=lambda _: jnp.array(w),
            pairs=pairs(w.size, layout),
        ),
    )
