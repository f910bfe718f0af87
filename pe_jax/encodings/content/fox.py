"""Forgetting attention: tokens have gates that weaken attention across them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
def fox(*, hidden_size: int, num_heads: int, gate_bias: float = 5.0) -> Part:
    """Forgetting attention, in both directions (Lin et al. 2025, arXiv 2503.02130).

        bias_ij = Σ_{j < l ≤ i} log σ(x_l·a_h + b_h)        for keys to the left (the paper's)
        bias_ij = Σ_{i < l ≤ j} log σ(x_l·a'_h + b'_h)      for keys to the right

    The paper's attention is causal. An encoder needs the second line, with gates of its own: as
    x-transformers' `DataDependentAlibi(causal=False)`, lower plus upper triangle.

    Params: `{"left": {"kernel": [D, H], "bias": [H]}, "right": {...}}`; kernels drawn from a normal
    of 0.02, biases `gate_bias`: gates of σ(5) = 0.993 start nearly open, as in x-transformers.

    Tokens are in the order of the row, and hidden states of all keys are needed: see `row_order`.
    """

    def init(rng: jax.Array) -> Params:
        def gate(rng: jax.Array) -> Params:
            kernel = 0.02 * jax.random.normal(
                rng, (hidden_size, num_heads), jnp.float32
            )
            return {"kernel": kernel, "bias": jnp.full(num_heads, gate_bias)}

        for_left, for_right = jax.random.split(rng)
        return {"left": gate(for_left), "right": gate(for_right)}

    def bias(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Logits:
        (rows, *sums_q), (key, *sums_k) = query_arrays, key_arrays
        left_q, right_q = (jnp.swapaxes(x, 1, 2)[..., :, None] for x in sums_q)
        left, right = (jnp.swapaxes(x, 1, 2)[..., None, :] for x in sums_k)
        is_left = (key[:, None] <= rows[..., None])[:, None]
        return jnp.where(is_left, left_q - left, right - right_q)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = row_order.hidden_states(context, "fox", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "fox")
        gates = (
            x @ params[side]["kernel"] + params[side]["bias"]
            for side in ("left", "right")
        )
        logs = (
            row_order.without_padding(jax.nn.log_sigmoid(gate), context)
            for gate in gates
        )
        sums = [
            jnp.cumsum(log, axis=1) for log in logs
        ]  # From the first token on, [B, Lk, H].
        taken = [row_order.take_queries(y, rows, known) for y in sums]
        return LogitTerms(
            function=bias,
            query_arrays=(rows, *taken),
            key_arrays=(row_order.indices(k), *sums),
        )

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
