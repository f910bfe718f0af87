"""The positional basis: what hidden states have in common at a position, in all texts.

Song & Zhong 2023 (arXiv 2310.04861), equation 1, a two-way analysis of variance without replicates:

    h[c, t] = mean + pos[t] + ctx[c] + resid[c, t]

Shapes: C texts, T positions, D hidden size.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.fft import dct

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float
from pe_jax.properties.arithmetic import ratio
from pe_jax.properties.compiled import compiled

_HELD = 0.95  # The share of pos's variance that its dimensions are counted for.


class Basis(Record, pytree=True):
    """Shares of positions, texts and the rest in hidden states, and the shape of pos.

    A mean over C texts holds a C-th of the residual's variance as well. That is subtracted in all
    but `coherence` and `largest_coherence`: exactly unbiased for pos if the texts are independent,
    and for ctx if the residuals of a text are, too.

    Attributes:
      position, context, residual: shares of the variance, which sum to 1; no share is below 0. All
        are 0 for constant hidden states.
      floor: what was subtracted from the share of pos. Where `position` is not well above it, what
        follows are properties of noise.
      gram: pos·posᵀ.
      stable_rank: ‖pos‖² / its largest squared singular value (paper, table 1); 0 without pos.
      dimensions: how many singular values of pos hold 95 % of its variance; 0 without pos.
      relative_norm: ‖pos‖ / ‖h - mean‖, spectral norms of all C·T rows (paper, table 1).
      smoothness: share of pos's variance in the lowest frequencies of the discrete cosine transform
        over positions.
      coherence, largest_coherence: mean and maximum of |cos(pos[t], ctx[c])|; of random directions
        the mean is √(2 / πD).
    """

    position: Float[jax.Array, "*B"]
    context: Float[jax.Array, "*B"]
    residual: Float[jax.Array, "*B"]
    floor: Float[jax.Array, "*B"]
    gram: Float[jax.Array, "*B T T"]
    stable_rank: Float[jax.Array, "*B"]
    dimensions: Float[jax.Array, "*B"]
    relative_norm: Float[jax.Array, "*B"]
    smoothness: Float[jax.Array, "*B"]
    coherence: Float[jax.Array, "*B"]
    largest_coherence: Float[jax.Array, "*B"]


@compiled()
def decompose(
    hidden: Float[Array, "*B C T D"],
) -> tuple[
    Float[jax.Array, "*B D"],
    Float[jax.Array, "*B T D"],
    Float[jax.Array, "*B C D"],
    Float[jax.Array, "*B C T D"],
]:
    """Return the four terms mean, pos, ctx and resid of hidden states.

    pos and resid have mean 0 over positions, ctx and resid over texts.
    """
    # Sums of what differs from the first state are exact for constant ones.
    first = hidden[..., :1, :1, :]
    from_first = hidden - first
    mean = from_first.mean((-3, -2), keepdims=True)
    centered = from_first - mean
    position = centered.mean(-3, keepdims=True)
    context = centered.mean(-2, keepdims=True)
    residual = centered - position - context
    mean = (first + mean)[..., 0, 0, :]
    return mean, position[..., 0, :, :], context[..., 0, :], residual


@compiled("low")
def positional_basis(hidden: Float[Array, "*B C T D"], *, low: int = 10) -> Basis:
    """Return the shares of positions and texts in hidden states, and the shape of pos.

    Args:
      hidden: hidden states.
      low: how many frequencies count as low, without the constant one; the paper shows so many.
        White noise has low / (T - 1) of its variance there.

    Raises:
      ValueError: for fewer than two texts or positions.
    """
    texts, length, _ = hidden.shape[-3:]
    if min(texts, length) < 2:
        raise ValueError(
            f"The positional basis needs at least two texts and two positions, got {texts} and "
            f"{length}."
        )
    mean, position, context, residual = decompose(hidden)
    product = partial(jnp.einsum, precision="highest")

    rest = _variance(residual).mean(-1)
    whole = _variance(position) + _variance(context) + rest
    # What rounding leaves of hidden states that should all be the same.
    largest_number = jnp.abs(hidden).max((-3, -2, -1))
    rounding = 8 * jnp.finfo(hidden.dtype).eps * largest_number
    is_constant = whole <= rounding**2 * hidden.shape[-1]
    whole = jnp.where(is_constant, 0.0, whole)

    # The errors of pos have the covariance of a text's residuals, over C - 1.
    squares = product("...ctd,...csd->...ts", residual, residual)
    noise = squares / (texts * (texts - 1))
    gram = product("...td,...sd->...ts", position, position) - noise
    trace = jnp.trace(gram, axis1=-2, axis2=-1)
    trace = jnp.maximum(jnp.where(whole > 0, trace, 0.0), 0.0)
    position_share = ratio(trace / length, whole, 0.0)
    context_part = jnp.maximum(_variance(context) - rest / (length - 1), 0.0)
    context_share = ratio(context_part, whole, 0.0)
    residual_share = 1 - position_share - context_share

    values = jnp.linalg.eigvalsh(gram)[..., ::-1]  # Squared singular values of pos.
    largest = values[..., 0]
    is_needed = jnp.cumsum(values, axis=-1) < _HELD * trace[..., None]
    centered = hidden - mean[..., None, None, :]
    scatter = product("...ctd,...cte->...de", centered, centered)
    largest_of_all = jnp.linalg.eigvalsh(scatter)[..., -1]
    squared_norm = ratio(texts * largest, largest_of_all, 0.0)

    # The orthonormal cosine transform (II), frequencies by positions, without the constant one.
    waves = dct(np.eye(length), norm="ortho", axis=0).astype(np.float32)
    waves = waves[1 : low + 1]
    lowest = product("ft,...ts,fs->...", waves, gram, waves)
    cosines = product("...td,...cd->...tc", _unit(position), _unit(context))
    cosines = jnp.abs(cosines)

    def if_present(value: Array) -> jax.Array:
        return jnp.where(trace > 0, value, 0.0)

    return Basis(
        position=position_share,
        context=context_share,
        residual=jnp.where(whole > 0, residual_share, whole),
        floor=ratio(rest / (texts - 1), whole, 0.0),
        gram=gram,
        stable_rank=if_present(ratio(trace, largest, 0.0)),
        dimensions=if_present(1.0 + is_needed.sum(-1)),
        relative_norm=if_present(jnp.sqrt(squared_norm)),
        smoothness=jnp.clip(ratio(lowest, trace, 0.0), 0.0, 1.0),
        coherence=cosines.mean((-2, -1)),
        largest_coherence=cosines.max((-2, -1)),
    )


def _variance(x: Array) -> jax.Array:
    return (x**2).sum(-1).mean(-1)


def _unit(x: Array) -> jax.Array:
    """Return vectors of length 1, or 0."""
    length = jnp.sqrt((x**2).sum(-1, keepdims=True))
    return ratio(x, length, 0.0)
