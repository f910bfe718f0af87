"""Additive GRAPE: ALiBi whose slopes depend on the query, the key or both.

Zhang et al. 2025, "Group representational position encoding", arXiv 2512.07805.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.bias.alibi import slopes
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    Params,
    Part,
)
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.registry import register_encoding


@register_encoding
def grape_a(
    *, head_size: int, num_heads: int, gate: Literal["query", "key", "both"] = "both"
) -> Part:
    """Additive group representational position encoding (GRAPE-A): ALiBi with slopes by content.

        bias_ij = -|j - i| ω_h (softplus(v_h·q_i / sqrt(d)) + softplus(u_h·k_j / sqrt(d)))

    Source: Zhang et al. 2025, arXiv 2512.07805, eq. 4.6. As in the authors' code, ω_h is ALiBi's
    slope of the head times softplus(raw_h), and v and u are divided by their lengths; queries and
    keys, which have passed through RMSNorm there, are those of the layer, before the maps of any
    encoding. The paper is causal; keys to the right have the
    bias of keys to the left here, as in `alibi`, its case of constant slopes. The path integral
    (GRAPE-AP) is not here.

    Added to the logits as it is; a temperature of another encoding multiplies q in it. Never
    positive, monotone in the distance.

    Params: `{"scale": [H], "query": [H, d], "key": [H, d]}`: raw, v and u, without the one that
    `gate` leaves out. ω starts at ALiBi's slopes; v and u are drawn from a normal of 1/sqrt(d).

    Args:
      gate: which slopes there are: the query's, the key's or their sum.

    Raises:
      ValueError: for fewer than one head.
    """
    fixed = slopes(num_heads)
    names = ("query", "key") if gate == "both" else (gate,)

    def init(rng: jax.Array) -> Params:
        # softplus of it is 1.
        params = {"scale": jnp.full(num_heads, math.log(math.e - 1))}
        for name, name_rng in zip(names, jax.random.split(rng, len(names))):
            direction = jax.random.normal(name_rng, (num_heads, head_size))
            params[name] = direction / math.sqrt(head_size)
        return params

    def bias(
        query_arrays: tuple, key_arrays: tuple, rate: Array, mask: Array | None
    ) -> Logits:
        i, *gates_q = query_arrays
        j, *gates_k = key_arrays
        gates = [jnp.swapaxes(x, 1, 2)[..., :, None] for x in gates_q]  # [B, H, Lq, 1]
        gates += [jnp.swapaxes(x, 1, 2)[..., None, :] for x in gates_k]  # [B, H, 1, Lk]
        distance = jnp.abs(jnp.asarray(offsets(i, j), jnp.float32))
        distance = distance[..., None, :, :]  # [#B, 1, Lq, Lk]
        return -distance * rate[:, None, None] * sum(gates)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        gates_q = []
        gates_k = []
        if gate != "key":
            # Queries are divided by sqrt(d) already.
            gates_q.append(_gate(params["query"], q))
        if gate != "query":
            gates_k.append(_gate(params["key"], k / math.sqrt(head_size)))
        return LogitTerms(
            function=bias,
            query_arrays=(i, *gates_q),
            key_arrays=(j, *gates_k),
            shared=jax.nn.softplus(params["scale"]) * fixed,
        )

    formula = {"query": "φ(v·q)", "key": "φ(u·k)", "both": "(φ(v·q) + φ(u·k))"}[gate]
    return Part(
        init=init,
        logits=logits,
        metadata=Metadata(
            formula=f"−|m|·ω_h·{formula}, φ = softplus",
            source="Zhang et al. 2025 (GRAPE), eq. 4.6",
            parameters=f"({len(names)}·d + 1)·H",
            invariant=True,
            monotone=True,
            symmetric=True,  # Identical tokens have one slope.
        ),
    )


def _gate(
    direction: Float[Array, "H d"], x: Float[Array, "B L H d"]
) -> Float[Array, "B L H"]:
    """softplus of `x` along a direction of each head, in float32 at least."""
    unit = direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
    products = jnp.einsum("blhd,hd->blh", at_least_float32(x), unit)
    return jax.nn.softplus(products)
