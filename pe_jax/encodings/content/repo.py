"""RePo: RoPE at positions that a network reads from each token, not those of the row.

Li et al. 2025, "RePo: language models with context re-positioning", arXiv 2512.14391.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content.row_order import hidden_states
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
from pe_jax.encodings.sinusoid import angles, default_frequencies


@register_encoding
def repo(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    rank: int | None = None,
    base: float = 10_000.0,
    stddev: float = 0.02,
) -> Part:
    """Context re-positioning (Li et al. 2025, arXiv 2512.14391; code in SakanaAI/repo).

        z_i = (silu(x_i W_g) ⊙ x_i W_c) W_o        one number for each head
        q_i -> R(ω z_i) q_i,   k_j -> R(ω z_j) k_j,   ω_m = base^(-2m/d)

    Positions of tokens are not read: an encoder with it alone is a bag of words. The paper's
    decoders have an order by causal attention and by layers with `rope`; they take `repo` from the
    fifth layer on. While training, the authors' code moves from a token's position to z_i.

    Params: `{"gate": [D, rank], "content": [D, rank], "out": [rank, H]}`, drawn from a normal of
    `stddev`. The authors have them for each layer: `per_layer(repo)`.

    Needs the hidden states `Context.x_q` and `x_k`.

    Args:
      rank: of the network; default D/8, as in the authors' code.
      base: of the frequencies ω.

    Raises:
      ValueError: for a rank below 1, an odd head size, or a base that is not positive; in
        attention, without `Context.x_q` and `x_k`, or if these have another hidden size.
    """
    if rank is None:
        rank = hidden_size // 8
    check_at_least(1, rank=rank)
    frequencies = default_frequencies(head_size, base)

    def rotated(
        params: Params, heads: Array, states: Float[Array, "B L D"]
    ) -> Float[Array, "B L H d"]:
        gates = jax.nn.silu(states @ params["gate"])
        hidden = gates * (states @ params["content"])  # [B, L, rank]
        z = hidden @ params["out"]  # [B, L, H]
        return rotate_by(heads, angles(z, frequencies))

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        x_q = hidden_states(context, "repo", hidden_size, "q")
        x_k = hidden_states(context, "repo", hidden_size, "k")
        return rotated(params, q, x_q), rotated(params, k, x_k), v

    return Part(
        init=normal_init(
            stddev,
            gate=(hidden_size, rank),
            content=(hidden_size, rank),
            out=(rank, num_heads),
        ),
        map_qkv=map_qkv,
        traits=Traits(reads_hidden_states=True),
        metadata=Metadata(
            formula="R(ω z_i) q_i, R(ω z_j) k_j, z = (silu(x W_g) ⊙ x W_c) W_o, "
            f"ω_m = {base:g}^(−2m/d)",
            source="Li et al. 2025 (RePo), code",
            parameters="(2·D + H)·rank",
            invariant=True,
            monotone=False,  # Equal tokens are at one position.
            symmetric=True,
            frequencies=lambda params: jnp.array(frequencies),
        ),
    )
