"""Forgetting attention: tokens have gates that weaken attention across them.

Lin et al. 2025, "Forgetting transformer: softmax attention with a forget gate", arXiv 2503.02130.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content import row_order
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding


@register_encoding
def fox(*, hidden_size: int, num_heads: int, gate_bias: float = 5.0) -> Part:
    """Forgetting attention, in both directions (Lin et al. 2025, arXiv 2503.02130).

        bias_ij = Σ_{j < l ≤ i} log σ(x_l·a_h + b_h)        for keys to the left (the paper's)
        bias_ij = Σ_{i < l ≤ j} log σ(x_l·a'_h + b'_h)      for keys to the right

    The paper's attention is causal. An encoder needs the second line, with gates of its own: as
    x-transformers' `DataDependentAlibi(causal=False)`, lower plus upper triangle. Under a causal
    mask only the first remains. A bias is 0 for a token's own key and decreases away from it,
    faster where tokens close their gates.

    Params: `{"left": {"kernel": [D, H], "bias": [H]}, "right": {...}}`; kernels drawn from a normal
    of 0.02, biases `gate_bias`: gates of σ(5) = 0.993 start nearly open, as in x-transformers.

    Tokens are in the order of the row, and hidden states of all keys are needed: see `row_order`.

    Raises:
      ValueError: in attention, without `Context.x_k`, or if that has another hidden size; for
        queries that are not among the keys.
    """
    draw = normal_init(
        0.02, left=(hidden_size, num_heads), right=(hidden_size, num_heads)
    )

    def init(rng: jax.Array) -> Params:
        return {
            side: {"kernel": kernel, "bias": jnp.full(num_heads, gate_bias)}
            for side, kernel in draw(rng).items()
        }

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = row_order.hidden_states(context, "fox", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "fox")

        def gate_sums(gate_params: Params) -> Float[Array, "B Lk H"]:
            gates = x @ gate_params["kernel"] + gate_params["bias"]
            return row_order.prefix_sums(jax.nn.log_sigmoid(gates), context)

        left = gate_sums(params["left"])
        right = gate_sums(params["right"])
        left_q = row_order.take_queries(left, rows, known)
        right_q = row_order.take_queries(right, rows, known)
        return LogitTerms(
            function=bias,
            query_arrays=(rows, left_q, right_q),
            key_arrays=(row_order.indices(k), left, right),
        )

    def bias(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Logits:
        rows, *sums_q = query_arrays
        indices_k, *sums_k = key_arrays
        # Queries as [B, H, Lq, 1], keys as [B, H, 1, Lk].
        left_q, right_q = (jnp.swapaxes(x, 1, 2)[..., :, None] for x in sums_q)
        left_k, right_k = (jnp.swapaxes(x, 1, 2)[..., None, :] for x in sums_k)
        is_left = (indices_k[:, None] <= rows[..., None])[:, None]
        return jnp.where(is_left, left_q - left_k, right_k - right_q)

    return Part(
        init=init,
        logits=logits,
        traits=Traits(reads_hidden_states=True, ordered=True),
        metadata=Metadata(
            formula="Σ log σ(x_l·a + b), l between query and key",
            source="Lin et al. 2025",
            parameters="2·(D + 1)·H",
            invariant=True,
            monotone=True,
        ),
    )
