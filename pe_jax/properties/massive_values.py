"""Massive values: dimensions of queries and keys much larger than the others of their head.

Of Jin et al. 2025 (arXiv 2502.01563): M_hd is the norm over tokens of dimension d of head h, and a
dimension is massive where M_hd exceeds λ times the mean over the dimensions of its head. They find
them in queries and keys of language models with RoPE, in the same dimensions of all heads, and not
in values.

Functions of M take it with any leading axes, `[*B, H, d]` or `[*B, d]`, in any unit: the norm, or
the root mean square, which does not grow with the number of tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.shapes import Array, Bool, Float


@jax.jit
def is_massive(norms: Float[Array, "*B d"], factor: ArrayLike = 5.0) -> Bool[Array, "*B d"]:
    """Whether M is above λ times its head's mean; nothing is in a head that is 0 or not finite.

    Args:
      factor: λ.
    """
    return norms > factor * norms.mean(-1, keepdims=True)


@jax.jit
def largest_ratio(norms: Float[Array, "*B d"]) -> Float[Array, "*B"]:
    """The largest M over its head's mean, from 1 (all the same, or all 0) to d (one alone)."""
    mean = norms.mean(-1)
    return jnp.where(mean == 0, 1, norms.max(-1) / jnp.where(mean == 0, 1, mean))


@jax.jit
def overlap(massive: Bool[Array, "*B H d"]) -> Float[Array, "*B"]:
    """How far heads have the same massive dimensions: of two heads, those that both have over those
    that either has, the mean over pairs of heads in which one has any.

    1 where all have the same, 0 where no two have one in common; NaN where none is, or of one head.
    """
    one = massive.astype(jnp.float32)
    both = jnp.einsum("...gd,...hd->...gh", one, one)
    size = one.sum(-1)
    either = size[..., :, None] + size[..., None, :] - both
    heads = massive.shape[-2]
    counted = (either > 0) & ~jnp.eye(heads, dtype=bool)
    shares = jnp.where(counted, both / jnp.maximum(either, 1), 0)
    pairs = counted.sum((-2, -1))
    return jnp.where(pairs > 0, shares.sum((-2, -1)) / jnp.maximum(pairs, 1), jnp.nan)


@jax.jit
def agreement(norms: Float[Array, "*B H d"]) -> Float[Array, "*B"]:
    """Pearson's correlation over dimensions of M between two heads, the mean over pairs of heads.

    1 where all heads have one profile up to level and scale, about 0 where they have nothing in
    common; it needs no threshold. NaN of one head, or where a head's M is constant.
    """
    centred = norms - norms.mean(-1, keepdims=True)
    size = jnp.linalg.norm(centred, axis=-1, keepdims=True)
    flat = size <= 1e-6 * jnp.linalg.norm(norms, axis=-1, keepdims=True)
    unit = centred / jnp.where(flat, jnp.nan, size)
    heads = norms.shape[-2]
    if heads == 1:
        return jnp.full(norms.shape[:-2], jnp.nan)
    # The sum over all pairs is the square of the sum; each head with itself is 1.
    return (jnp.square(unit.sum(-2)).sum(-1) - heads) / (heads * (heads - 1))


@jax.jit
def random_others(key: jax.Array, massive: Bool[Array, "*B d"]) -> Bool[Array, "*B d"]:
    """As many dimensions of each head at random, none of them massive; fewer where fewer are left.

    What the massive ones are to be compared with.
    """
    draw = jnp.where(massive, 2.0, jax.random.uniform(key, massive.shape))
    rank = jnp.argsort(jnp.argsort(draw, axis=-1), axis=-1)
    return (rank < massive.sum(-1, keepdims=True)) & ~massive
