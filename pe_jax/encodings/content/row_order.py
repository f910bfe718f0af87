"""Encodings that add something up from token to token, in the order of the row.

Sums between two tokens contain what is between them and nothing else, so documents packed into one
row do not affect one another. Padding, every key that the mask hides from all queries, counts for
nothing. A query that is not among the keys is a ValueError, or NaN where positions are traced. Keys
are in the order of positions, see `Traits.ordered`. Most gates are computed from the hidden states
of all keys, `Context.x_k`, `[B, Lk, D]`: with a cache, keep them too.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Bool, Float, Int, Real
from pe_jax.encodings.part import HookContext
from pe_jax.encodings.positions import as_array, check_length, default_positions


def hidden_states(
    context: HookContext, name: str, hidden_size: int, side: Literal["q", "k"] = "k"
) -> Float[jax.Array, "B L D"]:
    """Return the hidden states of the keys or of the queries, in float32 at least.

    Raises:
      ValueError: if there are none, or they are of another size than `hidden_size`.
    """
    x = context.x_k if side == "k" else context.x_q
    if x is None:
        tokens = "keys" if side == "k" else "queries"
        raise ValueError(
            f"{name} computes its terms from hidden states, but got none. Pass those that the "
            f"{tokens} were projected from, attention(..., context=Context(x_{side}=x))."
        )
    if x.shape[-1] != hidden_size:
        raise ValueError(
            f"Context.x_{side} must be [B, L, {hidden_size}] for {name}, got {list(x.shape)}. Pass "
            f"the hidden states of its layer, or build it with hidden_size={x.shape[-1]}."
        )
    return at_least_float32(x)


def indices(x: Float[Array, "B L *C"]) -> Int[Array, "1 L"]:
    """0 .. L - 1 of tokens, known while compiling unless their number is symbolic."""
    return as_array(default_positions(x.shape[1]))[None]


def rows_of_queries(
    context: HookContext, q: Array, k: Array, name: str
) -> tuple[Int[Array, "#B Lq"], Bool[Array, "#B Lq"]]:
    """The index of each query among the keys, and whether it is there.

    Where there are as many of both they are the same tokens, else (a cache) queries are those keys
    that have their positions, which are then unique in a row but for padding.

    Raises:
      ValueError: for queries that are not among the keys, if the positions of both are ranges.
    """
    positions_q = context.positions_q
    positions_k = context.positions_k
    if isinstance(positions_q, range) and isinstance(positions_k, range):
        first = positions_q.start - positions_k.start
        if first < 0 or positions_q.stop > positions_k.stop:
            raise ValueError(
                f"{name} needs all tokens between queries and keys, so every query must be among "
                f"the keys; got queries at {positions_q} and keys at {positions_k}."
            )
        rows = indices(q)
        return rows + first, rows >= 0
    if q.shape[1] == k.shape[1]:
        rows = indices(q)
        return rows, rows >= 0
    at_q = jnp.asarray(as_array(positions_q))[..., :, None]
    at_k = jnp.asarray(as_array(positions_k))[..., None, :]
    is_same = (at_q == at_k).reshape(-1, q.shape[1], k.shape[1])
    if context.mask is not None:
        is_same &= context.mask.any((1, 2))[:, None]
    return jnp.argmax(is_same, axis=-1), is_same.any(axis=-1)


def without_padding(
    key_values: Float[Array, "B Lk *C"], context: HookContext
) -> Float[Array, "B Lk *C"]:
    """What keys add up, 0 for padding: keys that the mask hides from all queries."""
    if context.mask is None:
        return key_values
    is_token = context.mask.any((1, 2))  # [B, Lk]
    return jnp.where(_with_axes_of(is_token, key_values), key_values, 0)


def prefix_sums(
    key_values: Float[Array, "B Lk *C"], context: HookContext
) -> Float[jax.Array, "B Lk *C"]:
    """Sums from the first token of the row up to each key, without padding.

    The difference of two sums is that of the tokens in between, which is all that logits depend on.
    """
    return jnp.cumsum(without_padding(key_values, context), axis=1)


def take_queries(
    key_values: Float[Array, "B Lk *C"],
    rows: Int[Array, "#B Lq"],
    known: Bool[Array, "#B Lq"],
) -> Float[jax.Array, "B Lq *C"]:
    """The rows of the queries, NaN for a query that is not among the keys."""
    indices = _with_axes_of(rows, key_values)
    taken = jnp.take_along_axis(key_values, indices, axis=1)
    return jnp.where(_with_axes_of(known, key_values), taken, jnp.nan)


def _with_axes_of(x: Array, key_values: Array) -> jax.Array:
    """`x` [#B, L] with axes of 1 behind, as many as `key_values` has."""
    return jnp.expand_dims(x, tuple(range(2, key_values.ndim)))


def short_convolution(
    x: Float[Array, "B L *C"], kernel: Float[Array, " W *C"], context: HookContext
) -> Float[jax.Array, "B L *C"]:
    """Return y_t = Σ_n kernel[W-1-n] x_{t-n} for n = 0 .. W-1, channel by channel, for gates.

    Tokens of other documents count as zeros. Without `document_ids`, two tokens are of one document
    if some query may attend to both by the mask, and positions rise between them and stay on one
    side of 0, where documents start. So padding on the left may have zeros or negative positions,
    or the same as other tokens and a mask.

    Args:
      x: tokens in the order of the row.
      kernel: the last row belongs to the token itself.
      context: of the tokens, which are its keys, with positions of one axis.

    Raises:
      ValueError: for a symbolic length (`jax.export`).
    """
    check_length(x.shape[1], "A short convolution")
    mask = context.mask
    document = context.document_ids
    if document is None:
        document = _documents(as_array(context.positions_k))
    y = jnp.asarray(x * kernel[-1])
    for lag in range(1, min(kernel.shape[0], x.shape[1])):
        is_near = document[..., lag:] == document[..., :-lag]
        if mask is not None:
            sees_both = mask[..., lag:] & mask[..., :-lag]  # By query.
            is_near = is_near & sees_both.any((1, 2))
        is_near = jnp.reshape(is_near, (*is_near.shape, *[1] * (x.ndim - 2)))
        earlier = x[:, :-lag] * kernel[-1 - lag]
        y = y.at[:, lag:].add(jnp.where(is_near, earlier, 0.0))
    return y


def _documents(positions: Real[Array, "*B L"]) -> Array:
    """A number for each token that is the same within a document and rises from one to the next."""
    before = positions[..., :-1]
    after = positions[..., 1:]
    is_start = (after <= before) | ((before < 0) & (after >= 0))
    numbers = jnp.cumsum(jnp.asarray(is_start, jnp.int32), axis=-1)
    return jnp.pad(numbers, [(0, 0)] * (is_start.ndim - 1) + [(1, 0)])
