"""Decoding with a cache: attention of new tokens to themselves and to all before them.

Keys are cached as they were projected, before any encoding, and attention does the rest anew at
each step. So every encoding decodes in the same way, whatever it does to keys; rotating them again
costs as much as reading them.

Shapes: B batch, N room for so many tokens, T new tokens, H heads of queries, G of keys and values,
d head size, D hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pe_jax.attention.attention import attention
from pe_jax.attention.forms import Form
from pe_jax.attention.masks import both, check_mask
from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.part import Context, Params
from pe_jax.encodings.positions import Positions, as_array, checked_positions
from pe_jax.explicit_sharding import automatic_sharding, spec_of
from pe_jax.shapes import Array, Bool, Float, Int


class Cache(NamedTuple):
    """Keys, values and positions of a layer's tokens; a pytree whose shapes never change.

    Attributes:
      keys, values: as they were projected.
      positions: of the tokens.
      index: how many tokens have been written, the same for all rows.
      hidden: hidden states that keys were projected from; None where the encoding reads none.
    """

    keys: Float[Array, "B N G d"]
    values: Float[Array, "B N G f"]
    positions: Int[Array, "B N *A"]
    index: Int[Array, ""]
    hidden: Float[Array, "B N D"] | None = None


def init_cache(
    encoding: PositionEncoding,
    rows: int,
    length: int,
    *,
    num_heads: int,
    head_size: int,
    hidden_size: int,
    dtype: DTypeLike = jnp.float32,
) -> Cache:
    """An empty cache.

    Args:
      rows: B.
      length: N, room for so many tokens.
      num_heads: G, of keys and values.
      hidden_size: D; hidden states are kept where `encoding` reads those of keys.
      dtype: of keys, values and hidden states.

    Raises:
      ValueError: for an encoding that changes what it computes for a token once more tokens follow
        (`Traits.cacheable` is False).
    """
    grow = [part.name for part in encoding.parts if not part.traits.cacheable]
    if grow:
        raise ValueError(
            f"{', '.join(grow)} has no decoding with a cache: what it computes for a token changes "
            "once more tokens follow (Traits.cacheable is False). Run all tokens at each step."
        )
    head = num_heads, head_size
    axes = () if encoding.axes == 1 else (encoding.axes,)
    hidden = encoding.reads_hidden_states
    return Cache(
        jnp.zeros((rows, length, *head), dtype),
        jnp.zeros((rows, length, *head), dtype),
        jnp.zeros((rows, length, *axes), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros((rows, length, hidden_size), dtype) if hidden else None,
    )


@automatic_sharding(
    lambda q, k, v, cache, *_, **__: (
        spec_of(q, 0, 1, 2),
        jax.tree.map(lambda x: spec_of(x, *range(x.ndim)), cache),
    )
)
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
    form: str | Form = "auto",
    platform: str | None = None,
) -> tuple[Float[Array, "B T H f"], Cache]:
    """Append new tokens to a cache; each attends to itself and to all before it.

    Any number of tokens: a prompt at once, then one at a time. Outputs are those that causal
    attention over all tokens gives. Under `jit` it compiles once for each number of new tokens.

    Args:
      context: as `attention` takes it, of the new tokens: `positions_q` default to their index in
        the cache, `x_q` are their hidden states; nothing of keys.
      mask: over the whole cache, such as False for padding. What has not been written is masked in
        any case.

    Returns:
      outputs, and the cache with the new tokens in it.

    Raises:
      ValueError: for other rows, heads or head sizes than the cache has; for more tokens than there
        is room for, where that is known. Where `jit` traces
        the index it is not: then these outputs, and all later ones, are NaN.
    """
    context = Context() if context is None else context
    rows, new, heads, _ = q.shape
    length = cache.keys.shape[1]
    count = 0 if isinstance(cache.index, jax.core.Tracer) else int(cache.index)
    if count + new > length:
        raise ValueError(
            f"The cache has room for {length} tokens, {count} are written and {new} are to follow: "
            "make one of a greater length."
        )
    for name, x, cached in (("k", k, cache.keys), ("v", v, cache.values)):
        if (len(x), *x.shape[2:]) != (len(cached), *cached.shape[2:]):
            expected = ", ".join(map(str, cached.shape[2:]))
            raise ValueError(
                f"{name} must be [{len(cached)}, T, {expected}] for this cache, got "
                f"{list(x.shape)}: rows, new tokens, heads and their size."
            )
    if context.positions_k is not None or context.x_k is not None:
        raise ValueError(
            "Positions and hidden states of keys are those of the cache: give those of the new "
            "tokens, Context(positions_q, x_q=x)."
        )
    if cache.hidden is not None and context.x_q is None:
        raise ValueError(
            f"{encoding.name} reads hidden states of keys, which are cached: give those of the new "
            "tokens, Context(positions_q, x_q=x)."
        )
    check_mask(mask, (rows, heads, new, length))
    index = cache.index + jnp.arange(new)
    positions = _positions(context.positions_q, index, encoding, rows)

    def append(old: Array, tokens: Array) -> jax.Array:
        # Past the end of the cache XLA writes over the last tokens.
        tokens = tokens.astype(old.dtype)
        return jax.lax.dynamic_update_slice_in_dim(old, tokens, cache.index, 1)

    hidden = None if cache.hidden is None else append(cache.hidden, context.x_q)
    keys, values = append(cache.keys, k), append(cache.values, v)
    longer = Cache(keys, values, append(cache.positions, positions), cache.index + new, hidden)
    written = (jnp.arange(length) <= index[:, None])[None, None]
    out = attention(
        q,
        keys.astype(k.dtype),
        values.astype(v.dtype),
        encoding,
        params,
        context._replace(positions_q=positions, positions_k=longer.positions, x_k=hidden),
        mask=both(mask, written),
        form=form,
        platform=platform,
    )
    return jnp.where(longer.index <= length, out, jnp.nan), longer


def _positions(
    positions: Positions | None, index: Array, encoding: PositionEncoding, rows: int
) -> Int[Array, "B T *A"]:
    """Positions of the new tokens, in every row."""
    if positions is None and encoding.axes == 1:
        x = index
    else:
        x = as_array(checked_positions(positions, len(index), encoding.axes, "q"))
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f"A cache has integer positions, got {x.dtype}.")
    last = x.shape[x.ndim - (1 if encoding.axes == 1 else 2) :]
    return jnp.broadcast_to(jnp.asarray(x, jnp.int32), (rows, *last))
