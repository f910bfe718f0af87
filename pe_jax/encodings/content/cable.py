"""CABLE: tokens have lengths of their own, and attention weakens with the length in between.

Veisi et al. 2025, "Context-aware biases for length extrapolation", arXiv 2503.08067.
"""

from __future__ import annotations

import math
from typing import Literal

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
    and the query says how much lengths count (eq. 6 and 7, which leave out the minus of what the
    text calls a penalty). With lengths of 1 and constant weights it is ALiBi. |S_i - S_j| is the
    paper's for keys to the left; it trains a BERT as well (section 5.5) without writing down its
    bias. (`fox` has gates of its own for each direction.)

    In the authors' code (github.com/axiomlab/Cable, src/Cable.py) the length is softplus(x_l·a_h +
    b_h), and there are no weights: `per_layer(cable(weighted=False, gate='softplus'))`, for their
    checkpoints.

    Params: `{"length": [D, H], "weight": [D, H]}`, without `weight` if not weighted, drawn from a
    normal of `stddev`; with `gate="softplus"` also `"bias": [H]`, b, zeros. The paper has them for
    each layer: `per_layer(cable)`.

    Tokens are in the order of the row, and hidden states of all keys are needed: see `row_order`.

    Args:
      weighted: False leaves g out: the paper's CABLE_NW.
      gate: the function of x_l·a_h, or of x_l·a_h + b_h, that gives the length of a token.

    Raises:
      ValueError: in attention, without `Context.x_k`, or if that has another hidden size; for
        queries that are not among the keys.
    """
    names = ("length", "weight") if weighted else ("length",)

    def init(rng: jax.Array) -> Params:
        params = {}
        for name, name_rng in zip(names, jax.random.split(rng, len(names))):
            draw = jax.random.normal(name_rng, (hidden_size, num_heads))
            params[name] = stddev * draw
        if gate != "relu":
            params["bias"] = jnp.zeros(num_heads)
        return params

    def lengths(params: Params, x: Float[Array, "B L D"]) -> Float[Array, "B L H"]:
        if gate == "relu":
            return jax.nn.relu(x @ params["length"])
        return jax.nn.softplus(x @ params["length"] + params["bias"])

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = row_order.hidden_states(context, "cable", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "cable")
        sums = row_order.prefix_sums(lengths(params, x), context)  # [B, Lk, H]
        query_arrays = [row_order.take_queries(sums, rows, known)]
        if weighted:
            weights = jax.nn.softplus(x @ params["weight"])
            query_arrays.append(row_order.take_queries(weights, rows, known))
        return LogitTerms(
            function=penalty, query_arrays=tuple(query_arrays), key_arrays=sums
        )

    def penalty(
        query_arrays: tuple, sums_k: Array, shared: tuple, mask: Array | None
    ) -> Logits:
        # Queries as [B, H, Lq, 1], keys as [B, H, 1, Lk].
        sums_q, *weights = (jnp.swapaxes(x, 1, 2)[..., None] for x in query_arrays)
        sums_k = jnp.swapaxes(sums_k, 1, 2)[:, :, None]
        between = jnp.abs(sums_q - sums_k)
        return -math.prod(weights, start=between)

    length = "relu(x_l·a)" if gate == "relu" else "softplus(x_l·a + b)"
    weight = "1"
    parameters = "D·H"
    if weighted:
        weight = "softplus(x·w)"
        parameters = "2·D·H"
    if gate != "relu":
        parameters += " + H"
    return Part(
        init=init,
        logits=logits,
        traits=Traits(reads_hidden_states=True, ordered=True),
        metadata=Metadata(
            formula=f"−g_i·|Σ_l {length}|, l between query and key, g = {weight}",
            source="Veisi et al. 2025",
            parameters=parameters,
            invariant=True,
            symmetric=True,  # Identical tokens have one weight; their length may be 0.
        ),
    )
