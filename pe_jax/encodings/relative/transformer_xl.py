"""Transformer-XL: sinusoids of the offset through a projection, and two biases for the queries."""

from __future__ import annotations

import math

import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import (
    HookContext,
    Metadata,
    OffsetTerms,
    Params,
    Part,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid


@register_encoding
def transformer_xl(
    *,
    head_size: int,
    num_heads: int,
    hidden_size: int,
    max_distance: int | None = None,
    base: float = 10_000.0,
    stddev: float = 0.02,
) -> Part:
    """logit_ij = ((q_i + u)·k_j + (q_i + v)·W R_{i-j}) / sqrt(d) (Dai et al. 2019, section 3.3).

    R is the sinusoid of D numbers. **The sign** is the paper's, query minus key: R is that of
    -(j - i), whose sines alone differ. Offsets have both signs here, as in XLNet.

    W (the paper's W_{k,R}), u and v are shared by the layers in which the encoding acts. The paper
    has a W for each layer and u and v in common; with `per_layer(transformer_xl)` each layer has
    all three, as the authors' `untie_r` and XLNet.

    The term v·W R is a bias, which the factor of another encoding does not reach.

    Params: `{"kernel": [D, H, d], "u": [H, d], "v": [H, d]}`, drawn from a normal of `stddev`.

    Args:
      max_distance: offsets beyond it count as ±max_distance (the authors' `clamp_len`). Packed rows
        want one: without it, positions that are arrays take [B, Lq, Lk, H, d] numbers.
    """
    check_at_least(1, max_distance=max_distance)
    frequencies = default_frequencies(hidden_size, base)
    head = num_heads, head_size

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        x = x if max_distance is None else x.clip(-max_distance, max_distance)
        return sinusoid(-x, jnp.asarray(frequencies))

    def keys(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H d"]:
        return jnp.einsum("...D,Dhd->...hd", vectors(params, x), params["kernel"])

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        head_vectors = jnp.einsum("Dhd,hd->Dh", params["kernel"], params["v"])
        return vectors(params, x) @ head_vectors / math.sqrt(head_size)

    return Part(
        init=normal_init(stddev, kernel=(hidden_size, *head), u=head, v=head),
        map_qkv=lambda params, q, k, v, _: (q + params["u"].astype(q.dtype), k, v),
        offsets=OffsetTerms(key_vectors=keys, bias=bias, max_distance=max_distance),
        metadata=Metadata(
            formula="(q+u)·k + (q+v)·W S(ω, −m)",
            source="Dai et al. 2019",
            parameters="D·H·d + 2H·d",
            invariant=True,
            monotone=False,
            vectors=vectors,
            frequencies=lambda params: jnp.asarray(frequencies),
        ),
    )
