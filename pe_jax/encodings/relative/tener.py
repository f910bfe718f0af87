"""TENER: sinusoids of the signed offset on the keys, two biases for the queries, no scaling."""

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

    R is the sinusoid of d numbers of the signed offset; it meets the query without Transformer-XL's
    projection W. The logits are not divided by sqrt(d); `scale=True` does. The factor sqrt(d)
    reaches the terms of encodings that this one is joined with, but for their biases.

    **The sign** is the paper's, query minus key, as in `transformer_xl`. The k_j·R_{i-j} of the
    authors' code is neither in the paper nor here.

    By the identity of `rotate_pairs`, (q + v)·R_{i-j} is (q + v) rotated by i times a sinusoid of
    j: queries and keys grow to 2d, in linear memory.

    Params: `{"u": [H, d], "v": [H, d]}`, drawn by Glorot's rule as in the authors' code, which has
    them for each layer: `per_layer(tener)`.
    """
    w = default_frequencies(head_size, base)

    def init(rng: jax.Array) -> Params:
        draw, shape = jax.nn.initializers.glorot_normal(), (num_heads, head_size)
        return {
            x: draw(rng, shape, jnp.float32)
            for x, rng in zip("uv", jax.random.split(rng))
        }

    def heads(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        content, position = (q + params[name].astype(q.dtype) for name in ("u", "v"))
        rotated = rotate_pairs(position, -i[..., None], jnp.asarray(w))
        position_keys = jnp.broadcast_to(
            sinusoid(-j, jnp.asarray(w))[..., None, :], k.shape
        )
        q = jnp.concatenate([content, rotated.astype(content.dtype)], axis=-1)
        return q, jnp.concatenate([k, position_keys.astype(k.dtype)], axis=-1), v

    return Part(
        init=init,
        map_qkv=heads,
        scale=None if scale else lambda params, context: math.sqrt(head_size),
        metadata=Metadata(
            formula="(q+u)·k + (q+v)·S(ω, −m)"
            + ("" if scale else ", not divided by √d"),
            source="Yan et al. 2019",
            parameters="2·H·d",
            invariant=True,
            monotone=False,  # A sum of cosines of the offset, see `sinusoidal_absolute`.
            vectors=lambda params, x: sinusoid(-x, jnp.asarray(w)),
            frequencies=lambda params: jnp.asarray(w),
        ),
    )
