"""Selective RoPE: tokens decide by how much the angles of a rotary encoding grow."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content import row_order
from pe_jax.encodings.part import (
    QKV,
    HookContext,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import rotate_by
from pe_jax.encodings.sinusoid import default_frequencies


@register_encoding
def selective_rope(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    rank: int = 32,
    width: int = 4,
    base: float = 500_000.0,
    stddev: float = 0.02,
) -> Part:
    """Selective rotary position embedding (Movahedi et al. 2025, arXiv 2511.17388).

        q_i -> R(ω Φ_i) q_i,   k_j -> R(ω Φ_j) k_j,   Φ_t = Σ_{l ≤ t} φ_l
        φ_l = Σ_n c_n (U V x'_{l-n}),   n = 0 .. width-1

    with ω_m = base^(-2m/d): each token adds an angle of its own to each pair of each head. The
    low-rank map U V and the causal convolution c are those of the authors' code, and so is x': the
    hidden state, each of its H shares y divided by sqrt(|y|² + 1e-6). Options that the authors'
    configs leave off (gates, biases, learned ω) are not here.

    The paper's models are causal. Sums between two tokens are defined in both directions, so an
    encoder can use it as well. The convolution looks to the left in either case, and starts again
    with each document. Tokens are in the order of the row, and hidden states of all keys are
    needed: see `row_order`.

    Params: `{"down": [D, rank], "up": [rank, H, d/2], "convolution": [width, H, d/2]}`, drawn from
    a normal of `stddev`, so that angles start near 0. Its last row belongs to the token itself. The
    paper has them for each layer: `per_layer(selective_rope)`.

    Args:
      hidden_size: D, a multiple of `num_heads`.
      rank: of U V.
      width: of the convolution; 1 leaves the neighbours out.
      base: of the frequencies.

    Raises:
      ValueError: for a rank or width below 1, or heads that do not divide the hidden states; in
        attention, without the hidden states of all keys.
    """
    w = default_frequencies(head_size, base)
    check_at_least(1, rank=rank, width=width)
    if hidden_size % num_heads:
        raise ValueError(
            "hidden_size must be a multiple of num_heads for selective_rope, which divides hidden "
            f"states among heads; got {hidden_size} and {num_heads}."
        )

    def sums(params: Params, context: HookContext) -> Float[Array, "B Lk H F"]:
        """Return Φ of all keys."""
        x = row_order.hidden_states(context, "selective_rope", hidden_size)
        shares = x.reshape(*x.shape[:-1], num_heads, -1)
        squares = jnp.sum(shares**2, axis=-1, keepdims=True)
        unit_shares = shares * jax.lax.rsqrt(squares + 1e-6)
        low_rank = unit_shares.reshape(x.shape) @ params["down"]
        steps = jnp.einsum("blr,rhf->blhf", low_rank, params["up"])
        steps = row_order.short_convolution(steps, params["convolution"], context)
        return row_order.prefix_sums(steps, context)

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        rows, known = row_order.rows_of_queries(context, q, k, "selective_rope")
        sums_k = sums(params, context)
        sums_q = row_order.take_queries(sums_k, rows, known)
        return rotate_by(q, sums_q * w), rotate_by(k, sums_k * w), v

    shapes = {
        "down": (hidden_size, rank),
        "up": (rank, num_heads, w.size),
        "convolution": (width, num_heads, w.size),
    }
    return Part(
        init=normal_init(stddev, **shapes),
        map_qkv=map_qkv,
        traits=Traits(reads_hidden_states=True, ordered=True),
        metadata=Metadata(
            formula="R(ω_m Σ_l φ_ml), l between query and key, φ = conv(U V x)",
            source="Movahedi et al. 2025 (Selective RoPE)",
            parameters="(D + H·d/2)·rank + width·H·d/2",
            invariant=True,
        ),
    )
