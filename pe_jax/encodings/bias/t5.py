"""T5's bias: a learned number for each head and bucket of offsets.

Raffel et al. 2019, "Exploring the limits of transfer learning with a unified text-to-text
transformer", arXiv 1910.10683.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Int, Real
from pe_jax.encodings.part import HookContext, Metadata, OffsetTerms, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.tables import look_up


@register_encoding
def t5(
    *,
    num_heads: int,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Part:
    """bias(j - i) = b[bucket(j - i), h], added to the logits (Raffel et al. 2019, section 2.1).

    Half of the buckets are for keys to the right. On each side, offsets up to a quarter of the
    buckets have one each; those beyond share buckets that widen with the logarithm of the distance.
    Integer positions only.

    T5 itself does not divide q·k by sqrt(d): it draws W_q smaller by that factor. The logits of
    content are divided here, and the bias is not. For weights of a T5, multiply its W_q by sqrt(d):
    the numbers are then the same.

    Params: `{"table": [num_buckets, H]}`, drawn by Glorot's rule as in T5X.

    Args:
      num_buckets: of both sides together.
      max_distance: from there on, all offsets share the last bucket of their side.
      bidirectional: False gives all buckets to keys to the left; those to the right share bucket 0.

    Raises:
      ValueError: for fewer than 2 buckets a side, an odd number of buckets for two sides, or a
        `max_distance` that is not above the distances with a bucket of their own; in attention, for
        positions that are not integers.
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    if side < 2 or (bidirectional and num_buckets % 2):
        raise ValueError(
            f"num_buckets must be at least {4 if bidirectional else 2}, and even with "
            f"bidirectional=True; got {num_buckets}."
        )
    if max_distance <= side // 2:
        raise ValueError(
            f"max_distance={max_distance} must be greater than {side // 2}, the number of "
            "distances with a separate bucket. Raise it, or use fewer buckets."
        )
    buckets = _buckets(side, max_distance, bidirectional)
    clip = len(buckets) // 2

    def init(rng: jax.Array) -> Params:
        draw = jax.nn.initializers.glorot_uniform()
        return {"table": draw(rng, (num_buckets, num_heads), jnp.float32)}

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        by_offset = params["table"][buckets]  # [2 clip + 1, H]
        return look_up(by_offset, x.clip(-clip, clip) + clip)

    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias, max_distance=clip),
        metadata=Metadata(
            formula="b_h[bucket(m)], b free",
            source="Raffel et al. 2019",
            parameters="num_buckets·H",
            invariant=True,
            monotone=False,  # Equal within a bucket.
        ),
    )


def _buckets(
    side: int, max_distance: int, bidirectional: bool
) -> Int[np.ndarray, " M"]:
    """The bucket of the offsets -clip .. clip, with clip the first distance of the last bucket.

    Args:
      side: the number of buckets of a side.
    """
    exact = side // 2  # Distances with a bucket of their own.
    far = np.arange(exact, max_distance + 1)
    # In float64 and rounded up by a hair: bucket edges at whole numbers stay where they belong.
    share = np.log(far / exact) / np.log(max_distance / exact)
    beyond = (share * (side - exact) + 1e-9).astype(int)
    far_buckets = np.minimum(exact + beyond, side - 1)
    by_distance = np.concatenate([np.arange(exact), far_buckets])
    clip = max(1, int(np.argmax(by_distance == side - 1)))

    left = by_distance[clip:0:-1]
    right = np.zeros(clip, int)
    if bidirectional:
        right = by_distance[1 : clip + 1] + side
    return np.concatenate([left, by_distance[:1], right])
