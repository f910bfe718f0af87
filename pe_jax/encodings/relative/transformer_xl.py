"""Transformer-XL: sinusoids of the offset through a projection, and two biases for the queries.

Dai et al. 2019, "Transformer-XL: attentive language models beyond a fixed-length context", arXiv
1901.02860.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import (
    QKV,
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
    -(j - i), whose sines alone differ. Offsets have both signs here, as in XLNet; in the paper's
    decoder i - j >= 0.

    W (the paper's W_{k,R}), u and v are shared by the layers in which the encoding acts. The paper
    has a W for each layer and u and v in common; with `per_layer(transformer_xl)` each layer has
    all three, as the authors' `untie_r` and XLNet.

    The term v·W R enters as a bias, which is added without further scaling, so it is divided by
    sqrt(d) here. The factor of another encoding that this one is joined with does not reach it.

    Params: `{"kernel": [D, H, d], "u": [H, d], "v": [H, d]}`, drawn from a normal of `stddev`.

    Args:
      max_distance: offsets beyond it count as ±max_distance (the authors' `clamp_len`). Packed rows
        want one: without it, positions that are arrays take [B, Lq, Lk, H, d] numbers.
      base: of the frequencies of R.

    Raises:
      ValueError: for an odd hidden size, a `max_distance` below 1, or a base that is not positive.
    """
    check_at_least(1, max_distance=max_distance)
    fixed = default_frequencies(hidden_size, base)

    def frequencies(params: Params) -> jax.Array:
        return jnp.asarray(fixed)

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        if max_distance is not None:
            x = x.clip(-max_distance, max_distance)
        return sinusoid(-x, frequencies(params))

    def key_vectors(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H d"]:
        """W R, which meets the queries as they are before `map_qkv`, without u."""
        return jnp.einsum("...D,Dhd->...hd", vectors(params, x), params["kernel"])

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        """v·W R / sqrt(d)."""
        v_kernel = jnp.einsum("Dhd,hd->Dh", params["kernel"], params["v"])
        return vectors(params, x) @ v_kernel / math.sqrt(head_size)

    def map_qkv(params: Params, q: Array, k: Array, v: Array, _: HookContext) -> QKV:
        """q + u, which meets the keys alone."""
        return q + params["u"].astype(q.dtype), k, v

    head = (num_heads, head_size)
    return Part(
        init=normal_init(stddev, kernel=(hidden_size, *head), u=head, v=head),
        map_qkv=map_qkv,
        offsets=OffsetTerms(
            key_vectors=key_vectors, bias=bias, max_distance=max_distance
        ),
        metadata=Metadata(
            formula="(q+u)·k + (q+v)·W S(ω, −m)",
            source="Dai et al. 2019",
            parameters="D·H·d + 2H·d",
            invariant=True,
            monotone=False,
            vectors=vectors,
            frequencies=frequencies,
        ),
    )
