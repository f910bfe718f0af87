"""DeBERTa's disentangled attention: a table of offsets through the layer's own projections.

He et al. 2020, "DeBERTa: decoding-enhanced BERT with disentangled attention", arXiv 2006.03654.
"""

from __future__ import annotations

import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Int, Real
from pe_jax.encodings.part import (
    HookContext,
    Metadata,
    OffsetTerms,
    Params,
    Part,
    Projection,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.tables import look_up


@register_encoding
def deberta(
    *,
    hidden_size: int,
    num_buckets: int | None = 256,
    max_distance: int = 512,
    stddev: float = 0.02,
) -> Part:
    """logit_ij = (q_i·k_j + q_i·K_ij + Q_ij·k_j) / sqrt(3d), DeBERTa's disentangled attention.

    Source: He et al. 2020, eq. 4, and the authors' code of v2.

    K_ij and Q_ij are row δ(i, j) of a table of 2k rows through the layer's own projections of keys
    and queries, `Context.projections` (`share_att_key=True` of DeBERTa-v2 and v3), their biases
    included. δ counts query minus key, so rows above k are keys to the left. Eq. 4 has row δ(j, i)
    in Q, where the authors' code and transformers have δ(i, j), as here. Not here: absolute
    positions before the last layers (the enhanced mask decoder), which are no part of attention,
    and LayerNorm and dropout of the table.

    Params: `{"table": [2k, D]}`, drawn from a normal of `stddev`, shared by the layers.

    Args:
      num_buckets: k of v2: half of the offsets on each side have a row each, the others share rows
        that widen with the logarithm of the distance, up to `max_distance`. None: no buckets,
        k = `max_distance`, offsets beyond it clipped (v1).
      max_distance: the largest offset with a row that is not shared with all beyond it.

    Raises:
      ValueError: for a number of buckets that is odd, below 4 or at least 2 max_distance - 2; a
        `max_distance` below 1; in attention, without `Context.projections`, or for positions that
        are not integers.
    """
    if num_buckets is not None and (
        num_buckets % 2 or not 4 <= num_buckets < 2 * max_distance - 2
    ):
        raise ValueError(
            "num_buckets must be even, at least 4, with half of them below max_distance - 1 "
            f"= {max_distance - 1}; got {num_buckets}. For none, use num_buckets=None."
        )
    check_at_least(1, max_distance=max_distance)
    rows = _rows(num_buckets, max_distance)
    num_rows = 2 * (num_buckets or max_distance)

    def of_offsets(
        table: Float[Array, " N *D"], x: Real[Array, "*B"]
    ) -> Float[Array, "..."]:
        clipped = x.clip(-max_distance, max_distance)
        return look_up(table[rows], clipped + max_distance)

    def projections(context: HookContext) -> tuple[Projection, Projection]:
        if context.projections is None:
            raise ValueError(
                "DeBERTa projects its table with the layer's projections, but got none. Pass "
                "attention(..., context=Context(projections=(to_queries, to_keys))), functions "
                "[N, D] -> [N, H, d]."
            )
        return context.projections

    def query_vectors(
        params: Params, x: Real[Array, "*B"], context: HookContext
    ) -> Float[Array, "*B H d"]:
        to_queries, _ = projections(context)
        return of_offsets(to_queries(params["table"]), x)

    def key_vectors(
        params: Params, x: Real[Array, "*B"], context: HookContext
    ) -> Float[Array, "*B H d"]:
        _, to_keys = projections(context)
        return of_offsets(to_keys(params["table"]), x)

    return Part(
        init=normal_init(stddev, table=(num_rows, hidden_size)),
        offsets=OffsetTerms(
            key_vectors=key_vectors,
            query_vectors=query_vectors,
            max_distance=max_distance,
        ),
        # Three terms instead of one are divided by sqrt(3d).
        scale=lambda params, context: 3**-0.5,
        metadata=Metadata(
            formula="q·(k + W_k P_m) + W_q P_m·k, P free",
            source="He et al. 2020",
            parameters="2k·D",
            invariant=True,
            monotone=False,  # Beyond the last bucket.
            vectors=lambda params, x: of_offsets(params["table"], x),
        ),
    )


def _rows(num_buckets: int | None, max_distance: int) -> Int[np.ndarray, " M"]:
    """The row of the offsets j - i = -max_distance .. max_distance."""
    delta = np.arange(max_distance, -max_distance - 1, -1)  # i - j
    if num_buckets is None:
        return delta.clip(-max_distance, max_distance - 1) + max_distance
    middle = num_buckets // 2
    distance = np.maximum(np.abs(delta), 1)
    widening = np.log(distance / middle) / np.log((max_distance - 1) / middle)
    # In float64 and less a hair: bucket edges at whole numbers stay where they belong.
    further = np.ceil(widening * (middle - 1) - 1e-9).astype(int)
    shared = np.sign(delta) * (further + middle)
    bucket = np.where(distance <= middle, delta, shared)
    return bucket.clip(-num_buckets, num_buckets - 1) + num_buckets
