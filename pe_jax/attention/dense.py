"""Softmax attention that takes its position encoding as an argument.

Shapes: B batch, Lq and Lk lengths, H heads, d head size. float32 inside the softmax, whatever the
dtype of q, k and v.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.dropout import dropout
from pe_jax.encodings.base import Params, PositionEncoding, none
from pe_jax.shapes import Array, Bool, Float, Int


def attention(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    v: Float[Array, "B Lk H d"],
    encoding: PositionEncoding | None = None,
    params: Params | None = None,
    *,
    positions_q: Int[Array, "*P Lq"] | None = None,
    positions_k: Int[Array, "*P Lk"] | None = None,
    mask: Bool[Array, "#B #H #Lq Lk"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "B Lq H d"]:
    """Multi-head attention with the hooks of `encoding`.

        logits = (q·k + encoding.logits) / sqrt(d)      weights = softmax(logits)
        out = weights·v + encoding.values(weights)

    Args:
      encoding: a position encoding; None means no position information in the attention.
      params: what `encoding.init` returned, possibly trained since.
      positions_q, positions_k: integers `[L]` or `[B, L]`; default 0 .. L-1. A NumPy array is known
        when compiling, which lets an encoding leave out what cannot occur.
      mask: True where a query may look at a key (see `masks`). A query that may look at nothing
        gets zeros, in outputs and gradients.
      dropout_rate, dropout_key: dropout of the weights; no key, no dropout.

    Returns:
      `[B, Lq, H, d]` in the dtype of `v`.
    """
    encoding = encoding or none()
    params = params or {}
    positions_q = np.arange(q.shape[1]) if positions_q is None else positions_q
    positions_k = np.arange(k.shape[1]) if positions_k is None else positions_k
    logits = attention_logits(q, k, encoding, params, positions_q, positions_k)
    weights = masked_softmax(logits * q.shape[-1] ** -0.5, mask)
    weights = dropout(weights, dropout_rate, dropout_key).astype(v.dtype)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    if encoding.values:
        out = out + encoding.values(params, weights, positions_q, positions_k).astype(out.dtype)
    return out


def attention_logits(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    encoding: PositionEncoding,
    params: Params,
    positions_q: Int[Array, "*P Lq"],
    positions_k: Int[Array, "*P Lk"],
) -> Float[Array, "B H Lq Lk"]:
    """q·k plus the encoding's term, float32, before scaling: what identical word probing reads."""
    if encoding.rotate:
        q = encoding.rotate(params, q, positions_q)
        k = encoding.rotate(params, k, positions_k)
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if encoding.logits:
        logits = logits + encoding.logits(params, q, k, positions_q, positions_k)
    return logits


def masked_softmax(
    logits: Float[Array, "B H Lq Lk"], mask: Bool[Array, "#B #H #Lq Lk"] | None
) -> Float[Array, "B H Lq Lk"]:
    """Softmax over the keys that the mask allows; all zeros where it allows none."""
    if mask is None:
        return jax.nn.softmax(logits, axis=-1)
    # A finite floor instead of -inf: a row of -inf would be NaN, and so would its gradient.
    weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(logits.dtype).min), axis=-1)
    return jnp.where(mask, weights, 0.0)
