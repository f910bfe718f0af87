"""A short causal convolution over a row, for encodings whose gates look at neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings.part import Context
from pe_jax.encodings.positions import as_array, check_length
from pe_jax.shapes import Array, Float, Real


def short_convolution(
    x: Float[Array, "B L *C"], kernel: Float[Array, "W *C"], context: Context
) -> Float[jax.Array, "B L *C"]:
    """Return y_t = Σ_n kernel[W-1-n] x_{t-n} for n = 0 .. W-1, channel by channel.

    Without `segments`, a document starts at every token whose position is not larger than the one
    before, as packed and left-padded rows have it. Tokens of other documents count as zeros.

    Args:
      x: tokens in the order of the row.
      kernel: the last row belongs to the token itself.
      context: of the tokens, which are its keys, with positions of one axis.

    Raises:
      ValueError: for a symbolic length.
    """
    check_length(x.shape[1], "A short convolution")
    if context.segments is None:
        assert context.positions_k is not None
        document = _documents(as_array(context.positions_k))
    else:
        document = jnp.asarray(context.segments)
    width, length = kernel.shape[0], x.shape[1]
    y = jnp.asarray(x * kernel[-1])
    for lag in range(1, min(width, length)):
        near = document[..., lag:] == document[..., :-lag]
        near = near.reshape(*near.shape, *[1] * (x.ndim - 2))
        tap = jnp.where(near, x[:, :-lag] * kernel[-1 - lag], 0.0)
        y = y.at[:, lag:].add(tap)
    return y


def _documents(positions: Real[Array, "*B L"]) -> Array:
    """A number for each token that is the same within a document and rises from one to the next."""
    starts = jnp.asarray(positions[..., 1:] <= positions[..., :-1], jnp.int32)
    return jnp.pad(jnp.cumsum(starts, axis=-1), [(0, 0)] * (starts.ndim - 1) + [(1, 0)])
