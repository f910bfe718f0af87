"""xPos: RoPE whose pairs decay with the distance, the fast ones most."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

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
    from the middle exponents stay at a limit (the authors' code has none).

    Args:
      scale_base: B, 512 in the authors' code.
      gamma: γ, 0.4 in the paper; larger ones decay less.
      base: as in `rope`.
      layout: as in `rope`; the authors' code has "interleaved".
    """
    check_positive(scale_base=scale_base, gamma=gamma)
    w = default_frequencies(head_size, base)[None]
    decay = (
        np.log((np.arange(0, head_size, 2) / head_size + gamma) / (1 + gamma))
        / scale_base
    )

    def heads(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        factors = context.frequency_factors
        turning = w if factors is None else jnp.array(w) * factors(jnp.array(w))
        i, j = context.arrays()
        first, last = j.min(-1, keepdims=True), j.max(-1, keepdims=True)
        middle = first + (last - first) // 2

        def rotated(
            x: Array, positions: Real[Array, "*B L"], away: Real[Array, "*B L"]
        ) -> Array:
            """ζ^away R(ω · position) x, with exponents that this dtype holds for both."""
            limit = math.log(float(jnp.finfo(x.dtype).max)) / 2
            exponent = jnp.clip(
                jnp.asarray(away, float)[..., None] * decay, -limit, limit
            )
            return rotate_by(
                x, angles(positions, turning), layout, jnp.exp(exponent)[..., None, :]
            )

        return rotated(q, i, i - middle), rotated(k, j, middle - j), v

    return Part(
        map_qkv=heads,
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
