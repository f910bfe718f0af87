"""A layer of attention as pure functions: what the modules of Linen and of NNX share.

Shapes: B batch, Lq and Lk lengths, H heads, d head size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from pe_jax.attention.attention import attention
from pe_jax.attention.cache import Cache, cached_attention
from pe_jax.attention.forms import Form
from pe_jax.encodings.base import (
    Context,
    Params,
    PositionEncoding,
    Projections,
    checked_encoding,
)
from pe_jax.encodings.positions import Positions
from pe_jax.shapes import Array, Bool, Float

Map = Callable[[Array], jax.Array]  # [..., D] -> [..., H, d]


class Inputs(NamedTuple):
    """What a layer of attention is called with.

    Attributes:
      q, k, v: hidden states `[B, L, D]`; keys default to queries, values to keys.
      positions_q, positions_k: as `encodings.Context` takes them.
      mask: as `attention` takes it; with a cache over all of the cache.
      position_rng: for encodings that draw while training.
    """

    q: Float[Array, "B Lq D"]
    k: Float[Array, "B Lk E"] | None = None
    v: Float[Array, "B Lk G"] | None = None
    positions_q: Positions | None = None
    positions_k: Positions | None = None
    mask: Bool[Array, "#B #H #Lq Lk"] | None = None
    position_rng: jax.Array | None = None


def attend(
    inputs: Inputs,
    maps: tuple[Map, Map, Map],
    encoding: PositionEncoding,
    params: Params,
    *,
    cache: Cache | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    form: str | Form = "auto",
) -> tuple[Float[Array, "B Lq H d"], Cache | None]:
    """Outputs of all heads, and the cache with the new tokens in it where there is one.

    Args:
      maps: projections to queries, keys and values.

    Raises:
      ValueError: for values without keys, or a cache and keys of another sequence.
    """
    if inputs.k is None and inputs.v is not None:
        raise ValueError("There are inputs_v and no inputs_k: for both to be the same, inputs_k.")
    if cache is not None and inputs.k is not None:
        raise ValueError(
            "A cache is for self-attention, whose keys are new tokens at each step; those of "
            "another sequence are all there: give inputs_k without decode."
        )
    x_k = inputs.q if inputs.k is None else inputs.k
    x_v = x_k if inputs.v is None else inputs.v
    query, key, value = maps
    q, k, v = query(inputs.q), key(x_k), value(x_v)
    context = Context(
        inputs.positions_q,
        inputs.positions_k,
        x_q=inputs.q,
        x_k=x_k if cache is None else None,
        projections=Projections(query, key),
        rng=inputs.position_rng,
    )
    if cache is not None:
        return cached_attention(
            q, k, v, cache, encoding, params, context, mask=inputs.mask, form=form
        )
    out = attention(
        q,
        k,
        v,
        encoding,
        params,
        context,
        mask=inputs.mask,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        form=form,
    )
    return out, None


def head_size(features: int, num_heads: int) -> int:
    """d.

    Raises:
      ValueError: if heads do not divide the features.
    """
    if features % num_heads:
        raise ValueError(f"qkv_features {features} is not a multiple of num_heads {num_heads}.")
    return features // num_heads


def in_attention(encoding: PositionEncoding) -> PositionEncoding:
    """The parts of an encoding that act in attention.

    Raises:
      ValueError: for something else than an encoding, or one that a layer cannot take.
    """
    checked_encoding(encoding).check_layer()
    return PositionEncoding(tuple(part for part in encoding.parts if part.in_attention))


def at_input(encoding: PositionEncoding) -> PositionEncoding:
    """The parts of an encoding that act at the input of a model.

    Raises:
      ValueError: for something else than an encoding.
    """
    return PositionEncoding(tuple(part for part in checked_encoding(encoding).parts if part.embed))
