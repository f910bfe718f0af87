"""TUPE: positions attend to positions by projections of their own, apart from the content.

Ke et al. 2021, "Rethinking positional encoding in language pre-training", arXiv 2006.15595.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.absolute.position_vectors import resize_params
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
from pe_jax.encodings.tables import look_up


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
    position 0, [CLS], and by θ2 for other queries and the key there, so that [CLS] does not prefer
    what is near the start. In packed rows position 0 is each document's own.

    As in the authors' code, positions pass through a layer norm: without one, c would start as
    small as stddev². Its gain and bias are part of U and its bias. The authors' θ are products of
    further rows of P; here they are the numbers themselves.

    Params: `{"table": [max_length, D], "query": {"kernel": [D, H, d], "bias": [H, d]}, "key":
    {...}, "theta": [2, H]}`; table and kernels drawn from a normal of `stddev`, the others zeros;
    no theta without `untied_cls`.

    Raises:
      ValueError: in attention, for a position past the table (traced ones give NaN), or positions
        that are not integers; see `tables.look_up`.
    """
    draw = normal_init(
        stddev,
        table=(max_length, hidden_size),
        query=(hidden_size, num_heads, head_size),
        key=(hidden_size, num_heads, head_size),
    )

    def init(rng: jax.Array) -> Params:
        drawn = draw(rng)
        params = {"table": drawn["table"]}
        for name in ("query", "key"):
            bias = jnp.zeros((num_heads, head_size))
            params[name] = {"kernel": drawn[name], "bias": bias}
        if untied_cls:
            params["theta"] = jnp.zeros((2, num_heads))
        return params

    def projected(
        table: Float[Array, "N D"], projection: Params, x: Real[Array, "*B"]
    ) -> Float[Array, "*B H d"]:
        # The whole table at once: the same in every layer, and compilers merge what is the same.
        normalized = jax.nn.standardize(table, axis=-1)
        rows = jnp.einsum("nD,Dhd->nhd", normalized, projection["kernel"])
        rows = rows + projection["bias"]
        # [N, H·d], since a gather of vectors is simpler than one of matrices.
        vectors = look_up(rows.reshape(len(rows), -1), x)
        return vectors.reshape(*x.shape, -1, head_size)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        return LogitTerms(
            function=correlation,
            query_arrays=(i, projected(params["table"], params["query"], i)),
            key_arrays=(j, projected(params["table"], params["key"], j)),
            shared=params.get("theta"),
        )

    def correlation(
        query_arrays: tuple, key_arrays: tuple, theta: Array | None, mask: Array | None
    ) -> Logits:
        i, vectors_q = query_arrays
        j, vectors_k = key_arrays
        c = jnp.einsum("...qhd,...khd->...hqk", vectors_q, vectors_k)
        c = c / jnp.sqrt(2.0 * head_size)
        if theta is None:
            return c
        from_cls = i[:, None, :, None] == 0
        to_cls = j[:, None, None, :] == 0
        theta = theta[:, :, None, None]  # [2, H, 1, 1]
        return jnp.where(from_cls, theta[0], jnp.where(to_cls, theta[1], c))

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        return look_up(jax.nn.standardize(params["table"], axis=-1), x)

    return Part(
        init=init,
        logits=logits,
        # The content's logits are q·k / sqrt(2d): those of attention over sqrt(2).
        scale=lambda params, context: 2**-0.5,
        traits=Traits(max_length=max_length, resize=resize_params),
        metadata=Metadata(
            formula="(norm(P_i)·U_Q)·(norm(P_j)·U_K) / √(2d)",
            source="Ke et al. 2021, 3",
            parameters=f"L·D + 2·(D + 1)·H·d{' + 2·H' if untied_cls else ''}",
            kind="absolute",
            vectors=vectors,
        ),
    )
