"""The relative tables that BERT of Hugging Face's transformers had up to version 4."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.encodings.part import (
    HookContext,
    Metadata,
    OffsetTerms,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.tables import look_up


@register_encoding
def relative_key(*, head_size: int, max_length: int, stddev: float = 0.02) -> Part:
    """logit_ij = q_i·(k_j + P_{j-i}) / sqrt(d): Shaw et al. 2018, with nothing at the values.

    `position_embedding_type="relative_key"` of transformers 4 (removed in 5): a free vector for
    each offset of a row of `max_length` tokens, shared by the heads. In transformers every layer
    has a table: `per_layer(relative_key)`.

    **The sign** of the offset is transformers' other way round: its distance is i - j. The rows are
    in the order of its `distance_embedding`, which is this table as it is: offset j - i has row
    `max_length - 1 - (j - i)`. Farther offsets, for which transformers raises
    an IndexError, have the row of ±(max_length - 1). Resized, the table keeps its rows and repeats
    the first and the last.

    Params: `{"table": [2 max_length - 1, d]}`, drawn from a normal of `stddev`.

    Raises:
      ValueError: for a `max_length` below 2; in attention, for positions that are not integers.
    """
    return _relative(head_size, max_length, stddev, at_queries=False)


@register_encoding
def relative_key_query(
    *, head_size: int, max_length: int, stddev: float = 0.02
) -> Part:
    """logit_ij = (q_i·k_j + q_i·P_{j-i} + P_{j-i}·k_j) / sqrt(d) (Huang et al. 2020, arXiv
    2009.13658, method 4).

    `position_embedding_type="relative_key_query"` of transformers 4: `relative_key`, all of which
    holds here, with the same vectors at the queries.

    Raises:
      ValueError: as `relative_key`.
    """
    return _relative(head_size, max_length, stddev, at_queries=True)


def _resize(params: Params, length: int, method: str) -> Params:
    """Return the table of `length` positions that has the same vector at each offset."""
    table = params["table"]
    more = length - (len(table) + 1) // 2  # Rows at either end.
    if more < 0:
        return {"table": table[-more:more]}
    return {"table": jnp.pad(table, [(more, more), (0, 0)], mode="edge")}


def _relative(head_size: int, max_length: int, stddev: float, at_queries: bool) -> Part:
    check_at_least(2, max_length=max_length)
    clip = max_length - 1
    formula = "q·P_m, P free"
    source = "Shaw et al. 2018; transformers 4"
    if at_queries:
        formula = "q·P_m + P_m·k, P free"
        source = "Huang et al. 2020"

    def vectors(
        params: Params, x: Int[Array, "*B"], _: HookContext | None = None
    ) -> Float[Array, "*B d"]:
        return look_up(params["table"], clip - x.clip(-clip, clip))

    return Part(
        init=normal_init(stddev, table=(2 * clip + 1, head_size)),
        offsets=OffsetTerms(
            key_vectors=vectors,
            query_vectors=vectors if at_queries else None,
            max_distance=clip,
        ),
        traits=Traits(resize=_resize),
        metadata=Metadata(
            formula=formula,
            source=source,
            parameters="(2L−1)·d",
            invariant=True,
            monotone=False,  # Constant beyond the table.
            vectors=vectors,
        ),
    )
