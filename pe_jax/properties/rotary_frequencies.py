"""Which frequencies of a rotary encoding a model uses (Barbero et al. 2024, arXiv 2410.06205).

A pair m of a head's dimensions adds q_i^(m)·R(ω_m (j - i)) k_j^(m) to a logit, at most
‖q_i^(m)‖ ‖k_j^(m)‖ whatever the positions are: a pair of small norms is hardly used.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float, Int


@jax.jit
def pair_norms(x: Float[Array, "*B d"], pairs: Int[Array, "F 2"]) -> Float[Array, "*B F"]:
    """‖x^(m)‖ of each pair of dimensions; a rotation does not change it.

    Args:
      x: queries or keys.
      pairs: `Rotation.pairs`.
    """
    return jnp.linalg.norm(x[..., pairs], axis=-1)


@partial(jax.jit, static_argnames="count")
def bands(frequencies: Float[Array, "*B F"], *, count: int = 4) -> Int[Array, "*B F"]:
    """The band of each frequency: 0 the fastest F / `count` of them, `count` - 1 the slowest.

    Of equal frequencies the first is the faster, so that bands are equally large (up to one) for
    frequencies of 0 as well. The sign is the direction of a rotation, not its speed.
    """
    order = jnp.argsort(-jnp.abs(frequencies), axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1)
    return rank * count // frequencies.shape[-1]
