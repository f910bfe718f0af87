"""FoPE: each pair of RoPE has a mixture of frequencies, and slow ones are left out."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Real
from pe_jax.encodings.part import Metadata, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import both
from pe_jax.encodings.sinusoid import angles, default_frequencies


@register_encoding
def fope(
    *,
    head_size: int,
    num_heads: int,
    original_length: int = 512,
    base: float = 10_000.0,
    gain: float = 0.3,
) -> Part:
    """Fourier position embedding (Hua et al. 2024, arXiv 2412.17739; the authors' code).

        pair p of q and k: (a, b) -> (a c_p - b s_p, b c_p + a s_p)
        c_p(x) = Σ_m C_hmp cos(ω_m x),   s_p(x) = Σ_m S_hmp sin(ω_m x),   ω_m = base^(-2m/d)

    The sums are over the M frequencies of at least one turn within L tokens, ω_m >= 2π/L. There are
    min(M, d/4) such pairs; the others have c = s = 1, which depends on no position. Pairs are
    dimensions p and p + d/2. Products of different frequencies depend on both positions, not on
    their difference alone.

    Params: `{"cosine": [H, M, P], "sine": [H, M, P]}`, C and S of P pairs. Both start at ones where
    a frequency belongs to the pair, plus a normal of Glorot's size times `gain`. The authors draw
    them once and leave most models' fixed.

    Args:
      head_size: d, at least 4.
      original_length: L, of the inputs trained on, at least 7: a turn of the fastest frequency.
      base: of the frequencies.
      gain: of what is drawn; 0.3 or 0.4 in the authors' configs.

    Raises:
      ValueError: for a head size below 4, or a length without a whole turn of any frequency.
    """
    w = default_frequencies(head_size, base)
    w = w[w >= 2 * np.pi / original_length]
    pairs = min(w.size, head_size // 4)
    if not pairs:
        raise ValueError(
            "fope needs head_size of at least 4, and original_length of at least 7 tokens, one "
            f"turn of its fastest frequency; got {head_size} and {original_length}."
        )
    own_frequency = np.zeros((w.size, pairs), np.float32)
    step = math.ceil(w.size / pairs)
    columns = np.arange(math.ceil(w.size / step))
    own_frequency[columns * step, columns] = 1
    # Glorot's rule as PyTorch has it for three axes: [out, in, size].
    stddev = gain * math.sqrt(2 / ((w.size + num_heads) * pairs))

    def init(rng: jax.Array) -> Params:
        cosine_key, sine_key = jax.random.split(rng)
        shape = (num_heads, *own_frequency.shape)
        cosine_noise = stddev * jax.random.normal(cosine_key, shape)
        sine_noise = stddev * jax.random.normal(sine_key, shape)
        return {
            "cosine": own_frequency[None] + cosine_noise,
            "sine": own_frequency[None] + sine_noise,
        }

    def series(terms: Array, coefficients: Array) -> Array:
        """Return c or s `[B, L, H, d/2]`, 1 for the pairs without a position."""
        sums = jnp.einsum("blm,hmp->blhp", terms, coefficients)
        padding = [(0, 0)] * 3 + [(0, head_size // 2 - pairs)]
        return jnp.pad(sums, padding, constant_values=1.0)

    def rotate(params: Params, x: Array, positions: Real[Array, "*P"]) -> Array:
        angle = angles(positions, w)
        if angle.ndim == 2:
            angle = angle[None]
        cos = series(jnp.cos(angle), params["cosine"])
        sin = series(jnp.sin(angle), params["sine"])
        a, b = jnp.split(at_least_float32(x), 2, axis=-1)
        rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return rotated.astype(x.dtype)

    return Part(
        init=init,
        map_qkv=both(rotate),
        metadata=Metadata(
            formula="(Σ C cos ωx, Σ S sin ωx) instead of (cos ωx, sin ωx), ω ≥ 2π/L",
            source="Hua et al. 2024 (FoPE), code",
            parameters="2·H·M·min(M, d/4)",
            monotone=False,
        ),
    )
