"""TENER: sinusoids of the signed offset on the keys, two biases for the queries, no scaling.

Yan et al. 2019, "TENER: adapting transformer encoder for named entity recognition", arXiv
1911.04474.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import default_frequencies, rotate_pairs, sinusoid


@register_encoding
def tener(
    *, head_size: int, num_heads: int, base: float = 10_000.0, scale: bool = False
) -> Part:
    """logit_ij = (q_i + u)·k_j + (q_i + v)·R_{i-j} (Yan et al. 2019, arXiv 1911.04474).

    R is the sinusoid of d numbers of the signed offset, so that left and right differ; it meets the
    query without Transformer-XL's projection W. The logits are not divided by sqrt(d), for sharper
    attention. That factor is of all logits: it reaches the terms of encodings that this one is
    joined with, but for their biases.

    **The sign** is the paper's, query minus key, as in `transformer_xl`. The k_j·R_{i-j} of the
    authors' code is neither in the paper nor here.

    By the identity of `rotate_pairs`, (q + v)·R_{i-j} is (q + v) rotated by i times a sinusoid of
    j: queries and keys grow to 2d, in linear memory.

    Params: `{"u": [H, d], "v": [H, d]}`, drawn by Glorot's rule as in the authors' code, which has
    them for each layer: `per_layer(tener)`.

    Args:
      base: of the frequencies of R.
      scale: divide the logits by sqrt(d) after all.

    Raises:
      ValueError: for an odd head size, or a base that is not positive.
    """
    fixed = default_frequencies(head_size, base)
    formula = "(q+u)·k + (q+v)·S(ω, −m)"
    if not scale:
        formula += ", not divided by √d"

    def init(rng: jax.Array) -> Params:
        draw = jax.nn.initializers.glorot_normal()
        for_u, for_v = jax.random.split(rng)
        return {
            "u": draw(for_u, (num_heads, head_size), jnp.float32),
            "v": draw(for_v, (num_heads, head_size), jnp.float32),
        }

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        frequencies = jnp.asarray(fixed)
        content_q = q + params["u"].astype(q.dtype)
        position_q = q + params["v"].astype(q.dtype)
        position_q = rotate_pairs(position_q, -i[..., None], frequencies)
        position_k = sinusoid(-j, frequencies)[..., None, :]  # [#B, Lk, 1, d]
        position_k = jnp.broadcast_to(position_k, k.shape)
        # [B, L, H, 2d] each: one product gives the sum of both terms.
        joined_q = jnp.concatenate([content_q, position_q.astype(q.dtype)], axis=-1)
        joined_k = jnp.concatenate([k, position_k.astype(k.dtype)], axis=-1)
        return joined_q, joined_k, v

    return Part(
        init=init,
        map_qkv=map_qkv,
        scale=None if scale else lambda params, context: math.sqrt(head_size),
        metadata=Metadata(
            formula=formula,
            source="Yan et al. 2019",
            parameters="2·H·d",
            invariant=True,
            monotone=False,  # A sum of cosines of the offset, see `sinusoidal_absolute`.
            vectors=lambda params, x: sinusoid(-x, jnp.asarray(fixed)),
            frequencies=lambda params: jnp.asarray(fixed),
        ),
    )
