"""Sizes of the dimensions of queries and keys: rotary frequencies in use, and massive values.

A pair m of a head's dimensions that RoPE rotates adds q_i^(m)·R(ω_m (j - i)) k_j^(m) to a logit, at
most ‖q_i^(m)‖ ‖k_j^(m)‖ whatever the positions are: a pair of small norms is hardly used (Barbero
et al. 2024, arXiv 2410.06205).

Massive values of Jin et al. 2025 (arXiv 2502.01563): M_hd is the norm over tokens of dimension d of
head h, and a dimension is massive where M_hd exceeds λ times the mean over the dimensions of its
head. Functions of M take it with any leading axes, `[*B, H, d]` or `[*B, d]`, in any unit: the
norm, or the root mean square, which does not grow with the number of tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.properties.arithmetic import matrix_sum, ratio
from pe_jax.properties.compiled import compiled


@compiled()
def pair_norms(
    x: Float[Array, "*B d"], pairs: Int[Array, "F 2"]
) -> Float[jax.Array, "*B F"]:
    """Return ‖x^(m)‖ of each pair of dimensions; a rotation does not change it.

    Args:
      x: queries or keys.
      pairs: `Rotation.pairs`.
    """
    return jnp.linalg.norm(x[..., pairs], axis=-1)


@compiled("count", refuse_nan=True)
def frequency_bands(
    frequencies: Float[Array, "*B F"], *, count: int = 4
) -> Int[jax.Array, "*B F"]:
    """Return the band of each frequency, from 0 for the fastest F / `count` to `count` - 1.

    Of equal frequencies the first is the faster, so that bands are equally large (up to one) for
    frequencies of 0 as well. The sign is the direction of a rotation, not its speed.

    Raises:
      ValueError: for complex frequencies or NaN; under `jit`, NaN goes to the last band.
    """
    order = jnp.argsort(-jnp.abs(frequencies), axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1)
    return rank * count // frequencies.shape[-1]


@compiled()
def is_massive(
    norms: Float[Array, "*B d"], factor: ArrayLike = 5.0
) -> Bool[jax.Array, "*B d"]:
    """Return whether M is above λ times its head's mean; False in heads that are 0 or not finite.

    Args:
      factor: λ.
    """
    return norms > factor * norms.mean(-1, keepdims=True)


@compiled()
def peak_to_mean(norms: Float[Array, "*B d"]) -> Float[jax.Array, "*B"]:
    """Return the largest M over its head's mean, from 1 (all equal) to d (all others are 0)."""
    return ratio(norms.max(-1), norms.mean(-1), 1.0)


@compiled()
def massive_overlap(massive: Bool[Array, "*B H d"]) -> Float[jax.Array, "*B"]:
    """Return the overlap of the heads' massive dimensions, from 0 to 1: of two heads, those that
    both have over those that either has, the mean over pairs of heads in which one has any; NaN
    where none is, or of one head."""
    members = massive.astype(jnp.float32)
    both = jnp.einsum("...gd,...hd->...gh", members, members)
    size = members.sum(-1)
    either = size[..., :, None] + size[..., None, :] - both
    counted = (either > 0) & ~jnp.eye(massive.shape[-2], dtype=bool)
    shares = jnp.where(counted, both / jnp.maximum(either, 1), 0)
    return ratio(matrix_sum(shares), matrix_sum(counted), jnp.nan)


@compiled()
def profile_correlation(norms: Float[Array, "*B H d"]) -> Float[jax.Array, "*B"]:
    """Return Pearson's correlation of M between two heads over dimensions, the mean over pairs.

    1 where all heads have one profile up to level and scale, about 0 where they have nothing in
    common. NaN of one head, or where a head's M is constant.
    """
    centered = norms - norms.mean(-1, keepdims=True)
    size = jnp.linalg.norm(centered, axis=-1, keepdims=True)
    flat = size <= 1e-6 * jnp.linalg.norm(norms, axis=-1, keepdims=True)
    unit = centered / jnp.where(flat, jnp.nan, size)
    heads = norms.shape[-2]
    if heads == 1:
        return jnp.full(norms.shape[:-2], jnp.nan)
    # The sum over all pairs is the square of the sum; each head with itself is 1.
    all_pairs = jnp.square(unit.sum(-2)).sum(-1)
    return (all_pairs - heads) / (heads * (heads - 1))


@compiled()
def random_other_dimensions(
    rng: jax.Array, massive: Bool[Array, "*B d"]
) -> Bool[jax.Array, "*B d"]:
    """Return as many random dimensions of each head as are massive, for comparison.

    None of them is massive, and they are fewer where fewer are left.
    """
    draw = jax.random.uniform(rng, massive.shape)
    order = jnp.argsort(jnp.where(massive, 2.0, draw), axis=-1)  # Massive ones last.
    rank = jnp.argsort(order, axis=-1)
    return (rank < massive.sum(-1, keepdims=True)) & ~massive
