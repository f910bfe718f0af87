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
    Positions,
    Projections,
    none,
)
from pe_jax.encodings.names import from_name
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


def built(
    encoding: PositionEncoding | str | None,
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    max_length: int | None,
) -> PositionEncoding:
    """The encoding that a module was given, or the one that its name stands for.

    Raises:
      ValueError: for a name of an encoding with a table and no `max_length`, or an unknown one.
    """
    if not isinstance(encoding, str):
        return none() if encoding is None else encoding
    found = from_name(
        encoding,
        hidden_size=hidden_size,
        head_size=head_size,
        num_heads=num_heads,
        max_length=max_length or 1,
    )
    if max_length is None and found.longest == 1:
        raise ValueError(f"{encoding} has a table of positions: give max_length, its rows.")
    return found


def in_attention(encoding: PositionEncoding) -> PositionEncoding:
    """The parts of an encoding that act in attention."""
    return PositionEncoding(tuple(part for part in encoding.parts if part.in_attention))


def at_input(encoding: PositionEncoding) -> PositionEncoding:
    """The parts of an encoding that act at the input of a model."""
    return PositionEncoding(tuple(part for part in encoding.parts if part.embed))
