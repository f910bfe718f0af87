"""Wall attention: each dimension of a head forgets at a rate that tokens decide.

Averbuch and Pai 2026; `wall_attn` of flash-linear-attention 0.6.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.shapes import Array
from pe_jax.encodings.content import row_order
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    Params,
    Part,
    Traits,
)
from pe_jax.encodings.registry import register_encoding


@register_encoding
def wall(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    gate_bias: float = 8.0,
    stddev: float = 0.02,
) -> Part:
    """Wall attention (Averbuch and Pai 2026; `wall_attn` of flash-linear-attention 0.6).

        logit_ij = Σ_n q_in k_jn exp(P_in - P_jn) / sqrt(d),   P_i = Σ_{l ≤ i} log σ(x_l W + b)

    so that dimension n of a pair decays by the gates of the tokens after the key, up to the query.
    **Causal only**: join it with `causal`. To the right it would grow. Computed pair by pair, one
    dimension of the heads after the other, at d times the memory traffic of plain attention. Tokens
    are in the order of the row, and hidden states of all keys are needed: see `row_order`.

    Params: `{"kernel": [D, H, d], "bias": [H, d]}`, the kernel drawn from a normal of `stddev`, the
    bias `gate_bias`: gates of σ(8) start nearly open, as in the authors' code. There each layer has
    its own: `causal+per_layer(wall)`. Its optional gate of whole heads is that of `fox`.

    Raises:
      ValueError: in attention, without `Context.x_k`, or if that has another hidden size; for
        queries that are not among the keys.
    """

    def init(rng: jax.Array) -> Params:
        kernel = stddev * jax.random.normal(rng, (hidden_size, num_heads, head_size))
        return {"kernel": kernel, "bias": jnp.full((num_heads, head_size), gate_bias)}

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = row_order.hidden_states(context, "wall", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "wall")
        gates = jnp.einsum("blD,Dhd->blhd", x, params["kernel"]) + params["bias"]
        sums = row_order.prefix_sums(jax.nn.log_sigmoid(gates), context)
        sums_q = row_order.take_queries(sums, rows, known)
        return LogitTerms(function=term, query_arrays=(q, sums_q), key_arrays=(k, sums))

    def term(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Logits:
        """Σ_n q_in k_jn (exp(P_in - P_jn) - 1): attention has added q·k itself."""
        by_dimension = tuple(  # [d, B, H, L] each.
            jnp.moveaxis(at_least_float32(x), (3, 2), (0, 2))
            for x in (*query_arrays, *key_arrays)
        )

        # The backward pass computes the decay again, instead of keeping it for d dimensions.
        @jax.checkpoint
        def add(total: Array, arrays: tuple[Array, ...]) -> tuple[Array, None]:
            q, sums_q, k, sums_k = arrays
            between = sums_q[..., :, None] - sums_k[..., None, :]
            decay = jnp.expm1(jnp.minimum(between, 0.0))
            products = q[..., :, None] * k[..., None, :]
            return total + products * decay, None

        q, _, k, _ = by_dimension
        start = jnp.zeros((*q.shape[1:], k.shape[-1]), q.dtype)
        total, _ = jax.lax.scan(add, *vary_alike((start, by_dimension)))
        return total

    return Part(
        init=init,
        logits=logits,
        traits=Traits(
            reads_hidden_states=True,
            causal_only="what its gates let decay to the left would grow to the right",
            ordered=True,
        ),
        metadata=Metadata(
            formula="Σ_n q_in k_jn exp(P_in − P_jn), P_i = Σ_(l ≤ i) log σ(x_l W + b)",
            source="Averbuch and Pai 2026 (Wall), code",
            parameters="(D + 1)·H·d",
            invariant=True,
            symmetric=False,
        ),
    )
