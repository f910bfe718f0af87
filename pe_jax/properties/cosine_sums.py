"""Sums of cosines: the frequencies of a sinusoid decide its monotonicity (paper, section 3.2).

The dot product of the sinusoids of two positions that are m apart is ψ(m) = sum_i cos(w_i m).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float, Int


@jax.jit
def cosines(frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]) -> Float[Array, "*B F M"]:
    """cos(w_i m), the summands of ψ; frequencies in radians per position (paper, figure 4a)."""
    return jnp.cos(frequencies[..., None] * offsets)


@jax.jit
def psi(frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]) -> Float[Array, "*B M"]:
    """ψ(m) = sum_i cos(w_i m), the dot product of sinusoids m apart (paper, section 3.2)."""
    return cosines(frequencies, offsets).sum(-2)


@jax.jit
def turning_point(values: Float[Array, "*B M"]) -> Int[Array, "*B"]:
    """The first m with ψ(m+1) >= ψ(m), for values ψ(0), ψ(1), ...; M - 1 if there is none.

    Up to there the proximity of sinusoids decreases with their distance.
    """
    rising = values[..., 1:] >= values[..., :-1]
    return jnp.where(rising.any(-1), jnp.argmax(rising, axis=-1), values.shape[-1] - 1)
