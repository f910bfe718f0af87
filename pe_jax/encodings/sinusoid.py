"""The sinusoid: P(x) = [..., sin(w_i x), cos(w_i x), ...], and its rotation identity.

Paper, table 1 and section 3.2; Vaswani et al. 2017. Angles are computed in float32 whatever the
compute dtype: in bfloat16 the angle of position 300 would already be off by a whole radian.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array, Float, Int


def default_frequencies(dim: int, base: float = 10_000.0) -> Float[Array, " F"]:
    """w_i = base^(-2i/dim) for i = 0 .. dim/2 - 1, radians per position, float32.

    Raises:
      ValueError: if dim is odd or not positive: sines and cosines come in pairs.
    """
    if dim <= 0 or dim % 2:
        raise ValueError(f"A sinusoid needs an even, positive dimension, got {dim}.")
    return (base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)).astype(np.float32)


def sinusoid(x: Int[Array, "*B"], frequencies: Float[Array, " F"]) -> Float[Array, "*B D"]:
    """Position vectors P(x), sine and cosine interleaved in that order; float32."""
    sin, cos = _sin_cos(x, frequencies)
    return jnp.stack([sin, cos], axis=-1).reshape(*sin.shape[:-1], 2 * sin.shape[-1])


def rotate_pairs(
    x: Float[Array, "*B D"], positions: Int[Array, "*P"], frequencies: Float[Array, " F"]
) -> Float[Array, "*B D"]:
    """Turns each (sine, cosine) pair of `x` by the angle w_i · position; float32.

    The identity behind fast relative terms: for every vector q and positions i, j
    `q · P(j - i) = rotate_pairs(q, i) · P(j)`, which needs no [Lq, Lk, d] array and no gather.
    The inverse turn is `rotate_pairs(x, -positions, frequencies)`.

    Args:
      x: pairs on the last axis, in the order of `sinusoid`.
      positions: broadcasts against the leading axes of `x`.
    """
    sin, cos = _sin_cos(positions, frequencies)
    s, c = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    turned = jnp.stack([s * cos + c * sin, c * cos - s * sin], axis=-1)
    return turned.reshape(*turned.shape[:-2], x.shape[-1])


def _sin_cos(x, frequencies):
    angles = jnp.asarray(x, jnp.float32)[..., None] * jnp.asarray(frequencies, jnp.float32)
    return jnp.sin(angles), jnp.cos(angles)
