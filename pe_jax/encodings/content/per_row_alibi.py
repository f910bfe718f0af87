"""A bias of gates between two tokens that each query has for itself.

There is no paper: it is `PerRowDataDependentAlibi` of x-transformers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content.row_order import hidden_states, indices, rows_of_queries
from pe_jax.encodings.part import (
    HookContext,
    LogitTerms,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding


@register_encoding
def per_row_alibi(
    *, hidden_size: int, num_heads: int, rank: int = 8, stddev: float = 0.02
) -> Part:
    """Forgetting attention whose gates depend on the query too (x-transformers'
    `PerRowDataDependentAlibi`; no paper).

        bias_ij = Σ_{j ≤ l < i} log σ(q'_i·k'_l / sqrt(r)),   q' = W_q x,   k' = W_k x

    with r = `rank`. **Causal only**, as there: join it with `causal`. Keys that a mask hides from
    the query have no gate. Tokens are in the order of the row, and the hidden states `Context.x_q`
    and `x_k`, of all keys, are needed: see `row_order`.

    Params: `{"query": [D, H, r], "key": [D, H, r]}`, drawn from a normal of `stddev`. In
    x-transformers each layer has its own: `causal+per_layer(per_row_alibi)`.

    Args:
      rank: r, the numbers of a head whose product is a gate.

    Raises:
      ValueError: for a rank below 1; in attention, without `Context.x_q` and `x_k`, or if these
        have another hidden size; for queries that are not among the keys.
    """
    check_at_least(1, rank=rank)
    shape = (hidden_size, num_heads, rank)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        rows, known = rows_of_queries(context, q, k, "per_row_alibi")
        x_q = hidden_states(context, "per_row_alibi", hidden_size, "q")
        x_k = hidden_states(context, "per_row_alibi", hidden_size, "k")
        gate_q = jnp.einsum("blD,Dhr->blhr", x_q, params["query"])
        gate_k = jnp.einsum("blD,Dhr->blhr", x_k, params["key"])
        return LogitTerms(
            function=bias,
            query_arrays=(rows, known, gate_q * rank**-0.5),
            key_arrays=(indices(k), gate_k),
        )

    def bias(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Float[Array, "B H Lq Lk"]:
        rows, known, gate_q = query_arrays
        indices_k, gate_k = key_arrays
        products = jnp.einsum("bqhr,bkhr->bhqk", gate_q, gate_k)
        gates = jax.nn.log_sigmoid(products)
        index_q = rows[:, None, :, None]
        index_k = indices_k[:, None, None, :]
        between = jnp.asarray(index_k < index_q)
        if mask is not None:
            between = between & mask
        # From each key up to the query, since all gates behind are 0.
        gates = jnp.where(between, gates, 0.0)
        sums = jax.lax.cumsum(gates, axis=3, reverse=True)
        return jnp.where(known[:, None, :, None], sums, jnp.nan)

    return Part(
        init=normal_init(stddev, query=shape, key=shape),
        logits=logits,
        traits=Traits(
            reads_hidden_states=True,
            causal_only="its gates are of the tokens from each key to the query, which leaves all "
            "that are to the right of the query without a bias",
            ordered=True,
        ),
        metadata=Metadata(
            formula="Σ log σ(W_q x_i·W_k x_l / √r), l from key to query",
            source="x-transformers, code",
            parameters="2·D·H·r",
            invariant=True,
            monotone=True,
            symmetric=False,
        ),
    )
