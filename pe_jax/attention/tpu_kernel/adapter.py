"""Which encodings the TPU kernel (`flash`) can run, and what it is given for each.

Clipped relative terms go in as tables of 2·clip + 1 vectors, learned or made of waves. Unclipped
waves go in as a wider head, by rotation (see `relative`): queries beside their turned selves meet
keys beside P(j), values beside P(j) give outputs that are turned back.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from pe_jax.attention.core import Place
from pe_jax.attention.tpu_kernel.flash import flash_attention
from pe_jax.encodings.base import Params, PositionEncoding, split
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid
from pe_jax.shapes import Array, Float

NEEDS = (
    "consecutive positions that are known while compiling, no mask but of keys, and no terms but "
    "relative ones with a clip or made of waves"
)


def serves(encoding: PositionEncoding, contiguous: bool, mask: Any) -> bool:
    """Whether `attend` can compute this attention."""
    parts = [part for part, _ in split(encoding, {})]
    of_keys = mask is None or (mask.shape[1] == mask.shape[2] == 1)
    return contiguous and of_keys and all(map(_serves_part, parts))


def _serves_part(part: PositionEncoding) -> bool:
    if part.relative is None:
        return part.logits is None and part.values is None
    return part.relative.clip is not None or part.relative.key_frequencies is not None


def attend(
    encoding: PositionEncoding,
    params: Params,
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    v: Float[Array, "B Lk H d"],
    place: Place,
    rate: float,
    interpret: bool,
) -> Float[Array, "B Lq H d"]:
    """Attention whose queries are scaled and turned already; see `attention`."""
    terms: list[tuple[Any, Params]] = [
        (part.relative, own) for part, own in split(encoding, params) if part.relative
    ]
    clipped = [(term, own) for term, own in terms if term.clip is not None]
    waves = [(term, own) for term, own in terms if term.clip is None]
    size, positions_q, positions_k = q.shape[-1], place.positions_q, place.positions_k
    beside = [_beside(term, own, q, k, positions_q, positions_k) for term, own in waves]
    out = flash_attention(
        jnp.concatenate([q, *(turned for turned, _, _ in beside)], axis=-1),
        jnp.concatenate([k, *(p for _, p, _ in beside)], axis=-1),
        jnp.concatenate([v, *(p for _, _, p in beside)], axis=-1),
        _table([(term.clip, term.keys, own) for term, own in clipped], size * len(beside)),
        _table([(term.clip, term.values, own) for term, own in clipped], size * len(beside)),
        offset=int(positions_k[0] - positions_q[0]),
        valid=None if place.mask is None else jnp.broadcast_to(place.mask[:, 0, 0], k.shape[:2]),
        scale=1.0,
        dropout_rate=rate,
        seed=place.seed,
        interpret=interpret,
    )
    first, *more = jnp.split(out, 1 + len(beside), axis=-1)
    for (term, own), part in zip(waves, more, strict=True):
        turns = -jnp.asarray(positions_q)[:, None]
        first += rotate_pairs(part, turns, term.value_frequencies(own)).astype(first.dtype)
    return first


def _table(terms: list[tuple[int, Any, Params]], pad: int) -> Float[Array, "M d"] | None:
    """The vectors of clipped offsets, summed over the terms; `pad` zeros after each."""
    if not terms:
        return None
    clip = max(clip for clip, _, _ in terms)
    table = sum(vectors(own, np.arange(-clip, clip + 1)) for _, vectors, own in terms)
    return jnp.pad(table, ((0, 0), (0, pad)))


def _beside(term: Any, params: Params, q: Array, k: Array, positions_q: Any, positions_k: Any):
    """What stands beside queries, keys and values for unclipped waves."""
    w = term.key_frequencies(params)
    turned = rotate_pairs(q, jnp.asarray(positions_q)[:, None], w).astype(q.dtype)

    def wide(frequencies):
        p = sinusoid(jnp.asarray(positions_k), frequencies).astype(k.dtype)  # [Lk, d]
        return jnp.broadcast_to(p[None, :, None], k.shape)

    return turned, wide(w), wide(term.value_frequencies(params))
