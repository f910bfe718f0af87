"""TUPE: positions attend to positions by projections of their own, apart from the content."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float, Real
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
from pe_jax.encodings.tables import look_up, resize_table


@register_encoding
def tupe(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    max_length: int,
    untied_cls: bool = True,
    stddev: float = 0.02,
) -> Part:
    """Untied positional encoding, TUPE-A (Ke et al. 2021, arXiv 2006.15595, section 3).

        logit_ij = (q_i·k_j + c_ij) / sqrt(2d),   c_ij = (norm(P_i) U_Q)·(norm(P_j) U_K)

    with P and U shared by all layers. `untied_cls` replaces c_ij / sqrt(2d) by θ1 for the query at
    position 0, [CLS], and by θ2 for other queries and the key there. In packed rows position 0 is
    each document's own.

    As in the authors' code, positions pass through a layer norm, whose gain and bias are part of U
    and its bias. Its θ are products of further rows of P; here they are the numbers themselves.

    Params: `{"table": [max_length, D], "query": {"kernel": [D, H, d], "bias": [H, d]}, "key":
    {...}, "theta": [2, H]}`; table and kernels drawn from a normal of `stddev`, the others zeros;
    no theta without `untied_cls`. A position past the table is a ValueError (see
    `tables.look_up`).
    """

    def init(rng: jax.Array) -> Params:
        draw = jax.nn.initializers.normal(stddev)
        for_table, for_query, for_key = jax.random.split(rng, 3)

        def projection(rng: jax.Array) -> Params:
            shape = num_heads, head_size
            return {
                "kernel": draw(rng, (hidden_size, *shape)),
                "bias": jnp.zeros(shape),
            }

        table, theta = (
            draw(for_table, (max_length, hidden_size)),
            jnp.zeros((2, num_heads)),
        )
        params = {
            "table": table,
            "query": projection(for_query),
            "key": projection(for_key),
        }
        return {**params, "theta": theta} if untied_cls else params

    def projected(
        params: Params, which: str, x: Real[Array, "*B"]
    ) -> Float[Array, "*B H d"]:
        # The whole table at once: the same in every layer, and compilers merge what is the same.
        table = jax.nn.standardize(params["table"], axis=-1)
        rows = (
            jnp.einsum("nD,Dhd->nhd", table, params[which]["kernel"])
            + params[which]["bias"]
        )
        return look_up(rows.reshape(len(rows), -1), x).reshape(*x.shape, -1, head_size)

    def correlation(
        query_arrays: tuple, key_arrays: tuple, theta: Array | None, mask: Array | None
    ) -> Logits:
        (i, rows_q), (j, rows_k) = query_arrays, key_arrays
        c = jnp.einsum("...qhd,...khd->...hqk", rows_q, rows_k) / jnp.sqrt(
            2.0 * head_size
        )
        if theta is not None:
            to_cls, from_cls = j[:, None, None, :] == 0, i[:, None, :, None] == 0
            theta = theta[:, :, None, None]
            c = jnp.where(from_cls, theta[0], jnp.where(to_cls, theta[1], c))
        return c

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        query_arrays = i, projected(params, "query", i)
        key_arrays = j, projected(params, "key", j)
        return LogitTerms(
            function=correlation,
            query_arrays=query_arrays,
            key_arrays=key_arrays,
            shared=params.get("theta"),
        )

    return Part(
        init=init,
        logits=logits,
        scale=lambda params, context: 2**-0.5,
        traits=Traits(
            max_length=max_length,
            resize=lambda params, *to: {
                **params,
                "table": resize_table(params["table"], *to),
            },
        ),
        metadata=Metadata(
            formula="(norm(P_i)·U_Q)·(norm(P_j)·U_K) / √(2d)",
            source="Ke et al. 2021, 3",
            parameters=f"L·D + 2·(D + 1)·H·d{' + 2·H' if untied_cls else ''}",
            kind="absolute",
            vectors=lambda params, x: look_up(
                jax.nn.standardize(params["table"], axis=-1), x
            ),
        ),
    )
