"""A short causal convolution over a row, for encodings whose gates look at neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings.part import Context
from pe_jax.encodings.positions import as_array, check_length
from pe_jax.shapes import Array, Float, Real


def short_convolution(
    x: Float[Array, "B L *C"], kernel: Float[Array, " W *C"], context: Context
) -> Float[jax.Array, "B L *C"]:
    """Return y_t = Σ_n kernel[W-1-n] x_{t-n} for n = 0 .. W-1, channel by channel.

    Tokens of other documents count as zeros. Without `document_ids`, two tokens are of one document
    if some query may attend to both by the mask, and positions rise between them and stay on one
    side of 0, where documents start. So padding on the left may have zeros or negative positions,
    or the same as other tokens and a mask.

    Args:
      x: tokens in the order of the row.
      kernel: the last row belongs to the token itself.
      context: of the tokens, which are its keys, with positions of one axis.

    Raises:
      ValueError: for a symbolic length.
    """
    check_length(x.shape[1], "A short convolution")
    if context.document_ids is None:
        assert context.positions_k is not None
        document = _documents(as_array(context.positions_k))
    else:
        document = jnp.asarray(context.document_ids)
    mask = context.mask
    width, length = kernel.shape[0], x.shape[1]
    y = jnp.asarray(x * kernel[-1])
    for lag in range(1, min(width, length)):
        near = document[..., lag:] == document[..., :-lag]
        if mask is not None:
            near = near & (mask[..., lag:] & mask[..., :-lag]).any((1, 2))
        near = near.reshape(*near.shape, *[1] * (x.ndim - 2))
        tap = jnp.where(near, x[:, :-lag] * kernel[-1 - lag], 0.0)
        y = y.at[:, lag:].add(tap)
    return y


def _documents(positions: Real[Array, "*B L"]) -> Array:
    """A number for each token that is the same within a document and rises from one to the next."""
    before, after = positions[..., :-1], positions[..., 1:]
    starts = (after <= before) | ((before < 0) & (after >= 0))
    numbers = jnp.cumsum(jnp.asarray(starts, jnp.int32), axis=-1)
    return jnp.pad(numbers, [(0, 0)] * (starts.ndim - 1) + [(1, 0)])
