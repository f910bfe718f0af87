"""The sinusoid: P(x) = [..., sin(w_i x), cos(w_i x), ...], and its rotation identity.

Paper, table 1 and section 3.2; Vaswani et al. 2017. Angles are float32, float64 under
`JAX_ENABLE_X64`, whatever the compute dtype: in bfloat16 the angle of position 300 would already be
off by a whole radian.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from pe_jax.common.shapes import Array, Float, Real

# Up to here a float32 product w·x is precise to 2e-4 radians for w up to 1.
_PRECISE = 4096
# Of multiples of that: products with a fraction of a turn keep 1e-4 radians.
_DIGIT = 1024


def default_frequencies(
    dim: int, base: float = 10_000.0, dtype: DTypeLike = np.float32
) -> Float[np.ndarray, " F"]:
    """Return the dim/2 frequencies w_i = base^(-2i/dim), in radians per position.

    Raises:
      ValueError: if dim is odd or not positive, or for a base that is not positive.
    """
    if dim <= 0 or dim % 2:
        raise ValueError(
            f"The dimension of a sinusoid must be even and positive, got {dim}."
        )
    if not base > 0:
        raise ValueError(f"base must be positive, got {base}.")
    exponents = -np.arange(0, dim, 2, dtype=np.float64) / dim
    return (base**exponents).astype(dtype)


def sinusoid(
    x: Real[Array, "*B"], frequencies: Float[Array, " F"]
) -> Float[jax.Array, "*B D"]:
    """Return the position vectors P(x), sine and cosine interleaved in that order.

    Args:
      x: positions or offsets, integer or real.
      frequencies: w, radians per position.

    Returns:
      `[*B, 2F]`, float32 (see `angles`).
    """
    angle = angles(x, frequencies)
    cos, sin = cos_and_sin(angle)
    pairs = jnp.stack([sin, cos], axis=-1)
    return pairs.reshape(*angle.shape[:-1], 2 * angle.shape[-1])


def rotate_pairs(
    x: Float[Array, "*B D"],
    positions: Real[Array, "*P"],
    frequencies: Float[Array, " F"],
) -> Float[jax.Array, "*B D"]:
    """Rotate each (sine, cosine) pair of `x` by the angle w_i · position; float32 (see `angles`).

    The identity behind fast relative terms: for every vector q and positions i, j
    `q · P(j - i) = rotate_pairs(q, i) · P(j)`, which needs no [Lq, Lk, d] array and no gather.
    The inverse is `rotate_pairs(x, -positions, frequencies)`.

    Args:
      x: pairs on the last axis, in the order of `sinusoid`.
      positions: broadcasts against the leading axes of `x`.
    """
    angle = angles(positions, frequencies)
    cos, sin = cos_and_sin(angle)
    s = x[..., 0::2].astype(angle.dtype)
    c = x[..., 1::2].astype(angle.dtype)
    rotated = jnp.stack([s * cos + c * sin, c * cos - s * sin], axis=-1)
    return rotated.reshape(*rotated.shape[:-2], x.shape[-1])


def cos_and_sin(angle: Float[Array, "*B"]) -> tuple[jax.Array, jax.Array]:
    """Return the cosines and sines of angles that several heads share.

    The barrier keeps them arrays of their own: XLA on a CPU merges them into the rotation, which
    would compute angle, cosine and sine again for every head. (With jax 0.10 it still does.)
    """
    return jax.lax.optimization_barrier((jnp.cos(angle), jnp.sin(angle)))


def angles(
    x: Real[Array, "*B"], frequencies: Float[Array, "*F"]
) -> Float[jax.Array, "..."]:
    """Return w · x, `[*B, *F]`, up to whole turns where |x| > 4,096; float32, or float64 under
    `JAX_ENABLE_X64`.

    A plain product would lose a radian's fraction with the distance: at 2^17 positions it is off by
    all that a shift must not change. So x is taken apart, exactly for all integers and for floats
    up to 2^24, into the digits of x = (high · 1,024 + low) · 4,096 + near, and whole turns are
    removed before low and high are multiplied out.
    """
    dtype = jnp.result_type(float)
    if not isinstance(x, jax.core.Tracer):
        x = np.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        x = x.astype(dtype)
    w = jnp.asarray(frequencies, dtype)

    def times(digit: Array, w: Array) -> jax.Array:
        axes_of_w = [1] * w.ndim
        return jnp.asarray(digit, dtype).reshape(*x.shape, *axes_of_w) * w

    if isinstance(x, np.ndarray) and (not x.size or np.abs(x).max() <= _PRECISE):
        return times(x, w)
    far, near = _split(x, _PRECISE)
    high, low = _split(far, _DIGIT)
    turns_per_low = _fraction(w * (_PRECISE / (2 * np.pi)))
    turns_per_high = _fraction(turns_per_low * _DIGIT)
    turns = [times(low, turns_per_low), times(high, turns_per_high)]
    return times(near, w) + sum(map(_fraction, turns)) * (2 * np.pi)


def _split(x: Real[Array, "*B"], size: int) -> tuple[Array, Array]:
    """Return x as quotient · size + rest, both exact and of the sign of x."""
    module = np if isinstance(x, np.ndarray) else jnp
    rest = module.fmod(x, size)
    if np.issubdtype(x.dtype, np.integer):
        return (x - rest) // size, rest
    # Rounded: XLA may compute x twice, for x and for its rest, with a difference in the last digit.
    return module.round((x - rest) / size), rest


def _fraction(turns: jax.Array) -> jax.Array:
    """Return turns without whole ones; the derivative is 1."""
    return turns - jax.lax.stop_gradient(jnp.round(turns))
