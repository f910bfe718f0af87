"""CoPE: a position counts the keys that a query chooses to count.

Golovneva et al. 2024, "Contextual position encoding: learning to count what's important", arXiv
2405.18719.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content.row_order import indices, rows_of_queries
from pe_jax.encodings.pairwise import map_query_blocks
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
def cope(*, head_size: int, num_positions: int = 64) -> Part:
    """Contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719), causal.

        logit_ij += q_i·e[p_ij],   p_ij = min(Σ_{j ≤ t ≤ i} σ(q_i·k_t / sqrt(d)), num_positions - 1)

    with e[p] interpolated between its neighbours at whole numbers. As in the paper's listing, gates
    are of the scaled logits and e meets the query before it is scaled. e is shared by the heads, as
    x-transformers has it. A temperature of another encoding multiplies q in gates and e.

    **Causal only**: join it with `causal`, `cope+causal`. Counting goes from the query to the left,
    in the order of the row (see `row_order`): all keys to its right would have position 0. Keys
    that a mask hides from the query are not counted, as in the authors' code
    (github.com/facebookresearch/RAM, projects/cope).

    Params: `{"table": [num_positions, d]}`, zeros as in the paper's listing. There, and in
    x-transformers, every layer has a table: `causal+per_layer(cope)`.

    Args:
      num_positions: rows of e; positions beyond the last count as it.

    Raises:
      ValueError: for fewer than 2 positions; in attention, for queries that are not among the keys.
    """
    check_at_least(2, num_positions=num_positions)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        rows, known = rows_of_queries(context, q, k, "cope")
        return LogitTerms(
            function=counted_positions,
            query_arrays=(rows, known, q),
            key_arrays=(indices(k), k),
            shared=params["table"],
        )

    def counted_positions(
        query_arrays: tuple, key_arrays: tuple, table: Array, mask: Array | None
    ) -> Logits:
        rows, known, q = query_arrays
        indices_k, k = key_arrays
        products = jnp.einsum(
            "bqhd,bkhd->bhqk", q, k, preferred_element_type=wide_dtype(q, k)
        )
        index_q = rows[:, None, :, None]
        index_k = indices_k[:, None, None, :]
        counted = jnp.asarray(index_k <= index_q)
        if mask is not None:
            counted = counted & mask
        # q_i·e[p] at whole numbers p, of unscaled queries: [B, H, Lq, num_positions].
        at_integers = jnp.einsum("bqhd,pd->bhqp", q, table)
        at_integers = math.sqrt(head_size) * at_integers
        terms = map_query_blocks(
            interpolated,
            params=None,
            arrays=(products, counted, at_integers),
            # About: gates, positions, rows of the table and what is looked up there.
            width=8,
        )
        return jnp.where(known[:, None, :, None], terms, jnp.nan)

    def interpolated(_: None, arrays: tuple) -> Float[Array, "B H Lq Lk"]:
        products, counted, at_integers = arrays
        gates = jnp.where(counted, jax.nn.sigmoid(products), 0.0)
        count = jax.lax.cumsum(gates, axis=3, reverse=True)
        p = jnp.minimum(count, num_positions - 1)
        below = jnp.floor(p)
        row = below.astype(jnp.int32)
        next_row = jnp.minimum(row + 1, num_positions - 1)
        low = jnp.take_along_axis(at_integers, row, axis=-1)
        high = jnp.take_along_axis(at_integers, next_row, axis=-1)
        return low + (p - below) * (high - low)

    return Part(
        init=lambda rng: {"table": jnp.zeros((num_positions, head_size))},
        logits=logits,
        traits=Traits(
            causal_only="it counts the keys from each key to the query, which leaves all that are "
            "to the right of the query at position 0",
            ordered=True,
        ),
        metadata=Metadata(
            formula="q·e[p], p = Σ σ(q·k_t/√d), t from key to query",
            source="Golovneva et al. 2024",
            parameters="num_positions·d",
            invariant=True,
            monotone=False,  # Constant past the last row.
            symmetric=False,
        ),
    )
