"""Softmax attention that takes its position encoding as an argument.

Shapes: B batch, Lq and Lk lengths, H heads, d head size. float32 inside the softmax, whatever the
dtype of q, k and v.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import dropout, forms
from pe_jax.attention.core import Place, attend, masked_logits, masked_weights, raw_logits
from pe_jax.attention.relative import contiguous
from pe_jax.attention.tpu_kernel import adapter as kernel
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
    form: str = "auto",
    platform: str | None = None,
) -> Float[Array, "B Lq H d"]:
    """Multi-head attention with the hooks of `encoding`.

        logits = (q·k + encoding.logits) / sqrt(d)      weights = softmax(logits)
        out = weights·v + encoding.values(weights)

    Gradients are those of a backward pass written by hand (see `core`): `jax.grad` and `jax.vjp`
    work, forward mode (`jax.jvp`) does not.

    Args:
      encoding: a position encoding; None means no position information in the attention.
      params: what `encoding.init` returned, possibly trained since.
      positions_q, positions_k: integers `[L]` or `[B, L]`; default 0 .. L-1. A NumPy array is known
        when compiling, which allows faster forms.
      mask: True where a query may look at a key (see `masks`). A query that may look at nothing
        gets zeros, in outputs and gradients.
      dropout_rate, dropout_key: dropout of the weights; no key, no dropout. Every form drops the
        same weights.
      form: `"auto"` chooses by platform, length and encoding; `"naive"`, `"buckets"` and
        `"rotation"` name the form of relative terms (see `relative`) and keep all weights at once;
        `"fused"` has memory linear in the length, and so has `"kernel"`, which is written for TPUs
        and slow elsewhere. Same numbers and gradients.
      platform: what `"auto"` chooses for: `"cpu"`, `"gpu"` or `"tpu"`; default: where this runs.

    Returns:
      `[B, Lq, H, d]` in the dtype of `v`.

    Raises:
      ValueError: for a form that is unknown, or named and unable to compute a term of `encoding`.
    """
    encoding = encoding or none()
    params = params or {}
    positions_q = _positions(positions_q, q.shape[1])
    positions_k = _positions(positions_k, k.shape[1])
    q, k = _rotated(encoding, params, q, k, positions_q, positions_k)
    # Scaled before the products, which are Lk/d times as many; exact where d is a power of 4.
    q = (q.astype(jnp.float32) * q.shape[-1] ** -0.5).astype(q.dtype)
    steady = contiguous(positions_q, positions_k)
    plan = forms.choose(form, k.shape[1], platform)
    seed = None if dropout_key is None or dropout_rate == 0.0 else dropout.seed(dropout_key)
    place = Place(positions_q, positions_k, mask, seed, np.uint32(0), q.shape[1])
    given = q, k, v, place, dropout_rate
    if plan.kernel and kernel.serves(encoding, steady, mask):
        here = (platform or jax.default_backend()) == "tpu"
        return kernel.attend(encoding, params, *given, interpret=not here)
    if form == "kernel":
        raise forms.unable(form, encoding, kernel.NEEDS)
    encoding = forms.in_form(encoding, form, plan, steady)
    return attend(encoding, params, *given, block=plan.block)


def attention_logits(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    encoding: PositionEncoding,
    params: Params,
    positions_q: Int[Array, "*P Lq"],
    positions_k: Int[Array, "*P Lk"],
) -> Float[Array, "B H Lq Lk"]:
    """q·k plus the encoding's term, float32, before scaling: what identical word probing reads."""
    q, k = _rotated(encoding, params, q, k, positions_q, positions_k)
    return raw_logits(encoding, params, q, k, positions_q, positions_k)


def _rotated(encoding, params, q, k, positions_q, positions_k):
    if not encoding.rotate:
        return q, k
    return encoding.rotate(params, q, positions_q), encoding.rotate(params, k, positions_k)


def _positions(positions: Array | None, length: int) -> Array:
    """Positions, as NumPy wherever they are known."""
    if positions is None:
        return np.arange(length)
    return positions if isinstance(positions, jax.core.Tracer) else np.asarray(positions)


def masked_softmax(
    logits: Float[Array, "B H Lq Lk"], mask: Bool[Array, "#B #H #Lq Lk"] | None
) -> Float[Array, "B H Lq Lk"]:
    """Softmax over the keys that the mask allows; all zeros where it allows none."""
    return masked_weights(jax.nn.softmax(masked_logits(logits, mask), axis=-1), mask)
