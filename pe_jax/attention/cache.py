"""Decoding with a cache: attention of new tokens to themselves and to all before them.

Keys are cached as they were projected, before any encoding, and attention does the rest anew at
each step. So every encoding decodes in the same way, whatever it does to keys; rotating them again
costs as much as reading them.

Shapes: B batch, N room for so many tokens, T new tokens, H heads of queries, G of keys and values,
d head size, D hidden size.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from pe_jax.attention.attention import attention, check_hidden_states
from pe_jax.attention.masks import check_mask, combine_masks
from pe_jax.common.dtypes import check_floats, standard_promotion
from pe_jax.common.errors import former_arguments
from pe_jax.common.mesh_axes import automatic_sharding, spec_of
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.common.values import shown
from pe_jax.encodings.encoding import (
    PositionEncoding,
    check_acts_in_attention,
    check_context,
    check_heads,
    checked_encoding,
)
from pe_jax.encodings.part import Context, Params
from pe_jax.encodings.positions import Positions, as_array, checked_positions

CacheTree = TypeVar("CacheTree")


class Cache(Record, pytree=True):
    """Keys, values and positions of a layer's tokens; a pytree whose shapes never change.

    Attributes:
      keys, values: as they were projected.
      positions: of the tokens.
      index: the number of tokens of each row, where its next ones are written; see `with_index`.
      hidden: hidden states that keys were projected from; None where the encoding reads none.
    """

    keys: Float[jax.Array, "B N G d"]
    values: Float[jax.Array, "B N G f"]
    positions: Int[jax.Array, "B N *A"]
    index: Int[jax.Array, " B"]
    hidden: Float[jax.Array, "B N D"] | None = None


@former_arguments(rows="It is batch_size now.", num_heads="It is num_kv_heads now.")
def init_cache(
    encoding: PositionEncoding,
    batch_size: int,
    length: int,
    *,
    num_kv_heads: int,
    head_size: int,
    hidden_size: int,
    dtype: DTypeLike = jnp.float32,
) -> Cache:
    """Make an empty cache.

    Args:
      batch_size: Number B of rows.
      length: N, room for so many tokens.
      num_kv_heads: G, heads of keys and values, which may be fewer than those of queries.
      hidden_size: D; hidden states are kept where `encoding` reads those of keys.
      dtype: of keys, values and hidden states, floating.

    Raises:
      ValueError: for another dtype, a negative size, or an encoding that changes what it computes
        for a token once more tokens follow: it is not causal, or `Traits.cacheable` is False.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"dtype of a cache must be floating, such as jnp.bfloat16, got {jnp.dtype(dtype)}. "
            "Keys and values would be truncated."
        )
    _check_decodes(encoding)
    for name, size in (("batch_size", batch_size), ("length", length)):
        if isinstance(size, int) and size < 0:
            raise ValueError(
                f"{name} of a cache must be an integer from 0, got {size}."
            )
    tokens = batch_size, length
    hidden = None
    if encoding.reads_hidden_states:
        hidden = jnp.zeros((*tokens, hidden_size), dtype)
    return Cache(
        keys=jnp.zeros((*tokens, num_kv_heads, head_size), dtype),
        values=jnp.zeros((*tokens, num_kv_heads, head_size), dtype),
        positions=jnp.zeros((*tokens, *_position_axes(encoding)), jnp.int32),
        index=jnp.zeros(batch_size, jnp.int32),
        hidden=hidden,
    )


def _position_axes(encoding: PositionEncoding) -> tuple[int, ...]:
    """The axes of positions beyond those of tokens."""
    return () if encoding.axes == 1 else (encoding.axes,)


def _sharding_of_results(
    q: Array, k: Array, v: Array, cache: Cache, *_: Any, **__: Any
) -> Any:
    """The sharding of outputs `[B, T, H, f]`, and of the cache."""
    cached = jax.tree.map(lambda x: spec_of(x, *range(x.ndim)), cache)
    return spec_of(q, 0, 1, 2), cached


@automatic_sharding(_sharding_of_results)
@standard_promotion()
def cached_attention(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B T G d"],
    v: Float[Array, "B T G f"],
    cache: Cache,
    encoding: PositionEncoding,
    params: Params | None = None,
    context: Context | None = None,
    *,
    mask: Bool[Array, "#B #H #T N"] | None = None,
    implementation: str = "auto",
) -> tuple[Float[jax.Array, "B T H f"], Cache]:
    """Append new tokens to a cache; each attends to itself and to all before it in its row.

    Pass a prompt at once, then one token at a time: the outputs equal those of causal attention
    over all tokens. Under `jit` it compiles once for each number of new tokens. For
    cross-attention, project keys and values once and call `attention` with both positions.

    Args:
      q, k, v: of the new tokens; `jnp.swapaxes(x, 1, 2)` makes them from `[B, H, T, d]`.
      cache: of `init_cache`, for this encoding and these heads.
      context: of the new tokens only: `positions_q`, by default their index in the cache, and
        their hidden states `x_q`.
      mask: over the whole cache, such as False for padding. Empty places are always masked.

    Returns:
      outputs, and the cache with the new tokens in it.

    Raises:
      ValueError: for a cache that does not fit, keys of other tokens than q's, an encoding that
        `init_cache` refuses, arguments that `attention` refuses, document ids, or more tokens than
        a row has room for. Under `jit` the index is unknown: then these outputs of the row, and all
        later ones, are NaN.
    """
    check_floats(q=q, k=k, v=v)
    _check_decodes(encoding)
    context = check_context(context)
    check_heads(encoding, q, k, v)
    rows, new, heads, _ = q.shape
    if k.shape[1] != new:
        raise ValueError(
            f"k and v must have the {new} new tokens of q, got {k.shape[1]}. Earlier tokens are in "
            "the cache; for cross-attention call attention."
        )
    _check_cache(cache, encoding, k, v, context)
    check_hidden_states("q", context.x_q, (rows, new))
    length = cache.keys.shape[1]
    traced = isinstance(cache.index, jax.core.Tracer)
    count = 0 if traced else int(np.max(np.asarray(cache.index), initial=0))
    if count + new > length:
        raise ValueError(
            f"The cache has room for {length} tokens, but {count} are written and {new} more were "
            "passed. Make a longer cache."
        )
    if context.positions_k is not None or context.x_k is not None:
        raise ValueError(
            "context must not contain positions or hidden states of keys: they come from the "
            "cache. Pass those of the new tokens only, Context(positions_q=..., x_q=x)."
        )
    if context.document_ids is not None:
        raise ValueError(
            "Context.document_ids must be [B, L] of self-attention, got those of new tokens with a "
            "cache. Pass mask, False for keys of other documents, and positions in the document."
        )
    check_mask(mask, (rows, heads, new, length))
    index = cache.index[:, None] + jnp.arange(new)
    positions = _positions(context.positions_q, index, encoding)

    def append(old: Array, tokens: Array) -> jax.Array:
        # Past the end of the cache XLA writes over the last tokens.
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
        return jax.vmap(write)(old, tokens.astype(old.dtype), cache.index)

    hidden = None if cache.hidden is None else append(cache.hidden, context.x_q)
    longer = Cache(
        keys=append(cache.keys, k),
        values=append(cache.values, v),
        positions=append(cache.positions, positions),
        index=cache.index + new,
        hidden=hidden,
    )
    written = (jnp.arange(length) <= index[..., None])[:, None]
    out = attention(
        q,
        longer.keys.astype(k.dtype),
        longer.values.astype(v.dtype),
        encoding,
        params,
        context.replace(
            positions_q=positions, positions_k=longer.positions, x_k=hidden
        ),
        mask=combine_masks(mask, written),
        implementation=implementation,
    )
    fits = (longer.index <= length)[:, None, None, None]
    return jnp.where(fits, out, jnp.nan), longer


def with_index(caches: CacheTree, index: ArrayLike) -> CacheTree:
    """Set the number of tokens in each row of caches; new tokens are written after them.

    Pass the lengths of prompts that are padded on the right, 0 to start a row again, or a smaller
    number than before to discard the last tokens.

    Args:
      caches: a `Cache`, or a tree with caches and counts of `PositionEmbedding`: Linen's collection
        "cache", or `nnx.state(model, nnx.Cache)`.
      index: integers `[B]`, or one for all rows, from 0.

    Raises:
      ValueError: for an index that is not an integer, or known and negative.
    """
    counts = index if isinstance(index, jax.Array) else np.asarray(index)
    is_integer = jnp.issubdtype(counts.dtype, jnp.integer)
    is_known = not isinstance(counts, jax.core.Tracer)
    if not is_integer or (is_known and np.asarray(counts).min(initial=0) < 0):
        raise ValueError(
            f"index must be integers from 0, got {shown(index)}. Pass the number of tokens in each "
            "row."
        )

    def replaced(path: tuple, leaf: Array) -> jax.Array:
        # In NNX an array is the `value` of a variable.
        names = [jax.tree_util.keystr((key,), simple=True) for key in path[-2:]]
        if "index" not in names:
            return leaf
        return jnp.broadcast_to(jnp.asarray(index, leaf.dtype), leaf.shape)

    return jax.tree_util.tree_map_with_path(replaced, caches)


def _check_decodes(encoding: PositionEncoding) -> None:
    """Raise a ValueError for an encoding whose full pass is not what decoding computes."""
    check_acts_in_attention(checked_encoding(encoding))
    grow = [part.name for part in encoding.parts if not part.traits.cacheable]
    if grow:
        raise ValueError(
            f"{', '.join(grow)} cannot decode with a cache: results for earlier tokens change when "
            "more tokens follow (Traits.cacheable is False). Run all tokens at each step."
        )
    # `causal` compares positions of one axis: with several, the full pass needs a causal mask.
    if not encoding.is_causal and encoding.axes == 1:
        joined = f"{encoding.name}+causal" if encoding.parts else "causal"
        raise ValueError(
            f"encoding {encoding.name!r} cannot decode with a cache, where tokens attend to those "
            "before them alone: without a cache they attend to all, so outputs would differ. "
            f"Combine it with causal: {joined!r}, or + encodings.causal()."
        )


def _check_cache(
    cache: Cache, encoding: PositionEncoding, k: Array, v: Array, context: Context
) -> None:
    """Raise a ValueError for new tokens, or an encoding, that do not fit the cache."""
    if not isinstance(cache, Cache):
        raise ValueError(
            f"cache must be a Cache, got {type(cache).__name__}. Make it by init_cache."
        )
    kinds = {
        "keys": jnp.floating,
        "values": jnp.floating,
        "positions": jnp.integer,
        "index": jnp.integer,
    }
    for name, kind in kinds.items():
        dtype = jnp.result_type(getattr(cache, name))
        if not jnp.issubdtype(dtype, kind):
            raise ValueError(
                f"cache.{name} must be {kind.__name__}, got {dtype}. Make the cache by init_cache, "
                "and set its index by with_index."
            )
    known = not isinstance(cache.index, jax.core.Tracer)
    if known and np.min(np.asarray(cache.index), initial=0) < 0:
        raise ValueError(
            f"cache.index must be integers from 0, got {shown(cache.index)}. Set it by with_index."
        )
    rows, length = cache.keys.shape[:2]
    for name, x, cached in (("k", k, cache.keys), ("v", v, cache.values)):
        head_axes = cached.shape[2:]
        if (len(x), *x.shape[2:]) != (rows, *head_axes):
            raise ValueError(
                f"{name} must be [{rows}, T, {', '.join(map(str, head_axes))}] for this "
                f"cache, got {list(x.shape)}: rows, new tokens, heads and their size."
            )
    hidden = None
    if encoding.reads_hidden_states:
        if context.x_q is None:
            raise ValueError(
                f"{encoding.name} reads hidden states of keys, which come from the cache. Pass "
                "those of the new tokens, Context(positions_q=..., x_q=x)."
            )
        hidden = (rows, length, context.x_q.shape[-1])
    shapes = {
        "index": (rows,),
        "positions": (rows, length, *_position_axes(encoding)),
        "hidden": hidden,
    }
    for name, expected in shapes.items():
        value = getattr(cache, name)
        shape = None if value is None else np.shape(value)
        if shape != expected:
            raise ValueError(
                f"cache.{name} must have the shape {expected} for {encoding!r}, got {shape}: make "
                "the cache by init_cache with this encoding."
            )


def _positions(
    positions: Positions | None, index: Int[Array, "B T"], encoding: PositionEncoding
) -> Int[Array, "B T *A"]:
    """Positions of the new tokens, in every row."""
    if positions is None and encoding.axes == 1:
        return index
    x = as_array(checked_positions(positions, index.shape, encoding.axes, "q"))
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"positions must be integers when a cache is used, got {x.dtype}."
        )
    tokens_axis = x.ndim - 1 - len(_position_axes(encoding))
    shape = len(index), *x.shape[tokens_axis:]
    return jnp.broadcast_to(jnp.asarray(x, jnp.int32), shape)
