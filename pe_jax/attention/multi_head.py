"""A layer of attention as pure functions, shared by the modules of Linen and of NNX.

Shapes: B batch, Lq and Lk lengths, H heads, d head size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from pe_jax.attention.attention import attention
from pe_jax.attention.cache import Cache, cached_attention
from pe_jax.common.dtypes import check_floats
from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.encodings.encoding import (
    PositionEncoding,
    check_acts_in_attention,
    check_layer,
    checked_encoding,
)
from pe_jax.encodings.part import Context, Params

Map = Callable[[Array], jax.Array]  # [..., D] -> [..., H, d]


def attend(
    inputs: tuple[Array, Array | None, Array | None],
    maps: tuple[Map, Map, Map],
    encoding: PositionEncoding,
    params: Params,
    context: Context,
    *,
    mask: Bool[Array, "#B #H #Lq Lk"] | None = None,
    cache: Cache | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    implementation: str = "auto",
) -> tuple[Float[Array, "B Lq H d"], Cache | None]:
    """Return outputs of all heads, and the cache with the new tokens in it if one is given.

    Args:
      inputs: hidden states `[B, L, D]` of queries, keys and values; keys default to queries, values
        to keys.
      maps: projections to queries, keys and values.
      context: positions, and the rng of encodings that draw while training.
      mask: as `attention` takes it; with a cache over all of the cache.

    Raises:
      ValueError: for other dtypes than floats, values without keys, a cache and keys of another
        sequence; and see `attention` and `cached_attention`.
    """
    x_q, x_k, x_v = inputs
    if x_k is None and x_v is not None:
        raise ValueError(
            "inputs_v was given without inputs_k; pass inputs_k to use it for both."
        )
    if cache is not None and x_k is not None:
        raise ValueError(
            "decode is for self-attention only, where keys arrive step by step. For the keys of "
            "another sequence, pass inputs_k without decode."
        )
    for name, x in (("inputs_q", x_q), ("inputs_k", x_k), ("inputs_v", x_v)):
        if x is not None:
            check_floats(**{name: x})
    if x_k is None:
        x_k = x_q
    if x_v is None:
        x_v = x_k
    to_queries, to_keys, to_values = maps
    q = to_queries(x_q)
    k = to_keys(x_k)
    v = to_values(x_v)
    context = context.replace(x_q=x_q, projections=(to_queries, to_keys))
    if cache is not None:
        return cached_attention(
            q,
            k,
            v,
            cache,
            encoding,
            params,
            context,
            mask=mask,
            implementation=implementation,
        )
    out = attention(
        q,
        k,
        v,
        encoding,
        params,
        context.replace(x_k=x_k),
        mask=mask,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        implementation=implementation,
    )
    return out, None


def head_sizes(
    features: int, num_heads: int, num_kv_heads: int | None
) -> tuple[int, int]:
    """Return d, and G, the number of heads of keys and values.

    Raises:
      ValueError: if features do not divide into heads, or heads into those of keys and values.
    """
    if features % num_heads:
        raise ValueError(
            f"qkv_features must be a multiple of num_heads={num_heads}, got {features}."
        )
    if num_kv_heads is None:
        num_kv_heads = num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"num_kv_heads must divide num_heads={num_heads}, got {num_kv_heads}."
        )
    return features // num_heads, num_kv_heads


def in_attention(encoding: PositionEncoding) -> PositionEncoding:
    """Return the parts of an encoding that act in attention.

    Raises:
      ValueError: for an encoding that a layer of attention cannot take.
    """
    check_layer(checked_encoding(encoding))
    check_acts_in_attention(encoding)
    return encoding.in_attention
