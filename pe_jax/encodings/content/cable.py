"""CABLE: tokens have lengths of their own, and attention weakens with the length in between."""

from __future__ import annotations

import math
from typing import Literal

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
def cable(
    *,
    hidden_size: int,
    num_heads: int,
    weighted: bool = True,
    gate: Literal["relu", "softplus"] = "relu",
    stddev: float = 0.02,
) -> Part:
    """Context-aware biases for length extrapolation (Veisi et al. 2025, arXiv 2503.08067).

        bias_ij = -g_i |S_i - S_j|,   S_i = Σ_{l ≤ i} relu(x_l·a_h),   g_i = softplus(x_i·w_h)

    in every head, added to the logits as it is: each token adds a length of its own (eq. 2 to 5)
    and the query says how much lengths count (eq. 6 and 7, without their minus).
    `weighted=False` leaves g out: the paper's CABLE_NW. For keys to the left |S_i - S_j| is the
    paper's; for its BERT (section 5.5) it writes down no bias.

    In the authors' code (github.com/axiomlab/Cable, src/Cable.py) the length is softplus(x_l·a_h +
    b_h), and there are no weights: `per_layer(cable(weighted=False, gate='softplus'))`, for their
    checkpoints.

    Params: `{"length": [D, H], "weight": [D, H]}`, without `weight` if not weighted, drawn from a
    normal of `stddev`; with `gate="softplus"` also `"bias": [H]`, b, zeros. The paper has them for
    each layer: `per_layer(cable)`.

    Tokens are in the order of the row, and hidden states of all keys are needed: see `row_order`.
    """
    names = ("length", "weight") if weighted else ("length",)

    def init(rng: jax.Array) -> Params:
        rngs, shape = jax.random.split(rng, len(names)), (hidden_size, num_heads)
        params = {
            name: stddev * jax.random.normal(rng, shape)
            for name, rng in zip(names, rngs)
        }
        return params if gate == "relu" else {**params, "bias": jnp.zeros(num_heads)}

    def lengths(params: Params, x: Array) -> jax.Array:
        y = x @ params["length"]
        return jax.nn.relu(y) if gate == "relu" else jax.nn.softplus(y + params["bias"])

    def penalty(taken: tuple, sums: Array, shared: tuple, mask: Array | None) -> Logits:
        sums_q, *weights = (jnp.swapaxes(x, 1, 2)[..., None] for x in taken)
        between = jnp.abs(sums_q - jnp.swapaxes(sums, 1, 2)[:, :, None])
        return -math.prod(weights, start=between)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = row_order.hidden_states(context, "cable", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "cable")
        sums = jnp.cumsum(
            row_order.without_padding(lengths(params, x), context), axis=1
        )
        weights = (jax.nn.softplus(x @ params["weight"]),) if weighted else ()
        taken = tuple(row_order.take_queries(y, rows, known) for y in (sums, *weights))
        return LogitTerms(function=penalty, query_arrays=taken, key_arrays=sums)

    length = "relu(x_l·a)" if gate == "relu" else "softplus(x_l·a + b)"
    return Part(
        init=init,
        logits=logits,
        traits=Traits(reads_hidden_states=True, ordered=True),
        metadata=Metadata(
            formula=f"−g_i·|Σ_l {length}|, l between "
            + (
                "query and key, g = softplus(x·w)"
                if weighted
                else "query and key, g = 1"
            ),
            source="Veisi et al. 2025",
            parameters=f"{'2·' if weighted else ''}D·H"
            + (" + H" if gate == "softplus" else ""),
            invariant=True,
            symmetric=True,  # Identical tokens have one weight; their length may be 0.
        ),
    )
