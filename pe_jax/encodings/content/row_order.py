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
    """
    at_q, at_k, queries, keys = (
        context.positions_q,
        context.positions_k,
        q.shape[1],
        k.shape[1],
    )
    if isinstance(at_q, range) and isinstance(at_k, range):
        if not (at_k.start <= at_q.start and at_q.stop <= at_k.stop):
            raise ValueError(
                f"{name} needs all tokens between queries and keys, so every query must be among "
                f"the keys; got queries at {at_q} and keys at {at_k}."
            )
        rows = indices(q)
        return rows + (at_q.start - at_k.start), rows >= 0
    if queries == keys:
        return indices(q), indices(q) >= 0
    assert at_k is not None
    same = (
        jnp.asarray(as_array(at_q))[..., :, None]
        == jnp.asarray(as_array(at_k))[..., None, :]
    )
    same = same.reshape(-1, queries, keys)
    if context.mask is not None:
        same &= context.mask.any((1, 2))[:, None]
    return jnp.argmax(same, axis=-1), same.any(axis=-1)


def without_padding(
    key_values: Float[Array, "B Lk *C"], context: HookContext
) -> Float[Array, "B Lk *C"]:
    """What keys add up, 0 for padding: keys that the mask hides from all queries."""
    if context.mask is None:
        return key_values
    tokens = context.mask.any((1, 2))
    return jnp.where(
        jnp.expand_dims(tokens, tuple(range(2, key_values.ndim))), key_values, 0
    )


def take_queries(
    key_values: Float[Array, "B Lk *C"],
    rows: Int[Array, "#B Lq"],
    known: Bool[Array, "#B Lq"],
) -> Float[jax.Array, "B Lq *C"]:
    """The rows of the queries, NaN for a query that is not among the keys."""
    rows, known = (
        jnp.expand_dims(x, tuple(range(2, key_values.ndim))) for x in (rows, known)
    )
    return jnp.where(known, jnp.take_along_axis(key_values, rows, axis=1), jnp.nan)


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
    """
    check_length(x.shape[1], "A short convolution")
    document, mask = context.document_ids, context.mask
    document = (
        _documents(as_array(context.positions_k)) if document is None else document
    )
    y = jnp.asarray(x * kernel[-1])
    for lag in range(1, min(kernel.shape[0], x.shape[1])):
        near = document[..., lag:] == document[..., :-lag]
        if mask is not None:
            near = near & (mask[..., lag:] & mask[..., :-lag]).any((1, 2))
        near = jnp.reshape(near, (*near.shape, *[1] * (x.ndim - 2)))
        y = y.at[:, lag:].add(jnp.where(near, x[:, :-lag] * kernel[-1 - lag], 0.0))
    return y


def _documents(positions: Real[Array, "*B L"]) -> Array:
    """A number for each token that is the same within a document and rises from one to the next."""
    before, after = positions[..., :-1], positions[..., 1:]
    starts = (after <= before) | ((before < 0) & (after >= 0))
    numbers = jnp.cumsum(jnp.asarray(starts, jnp.int32), axis=-1)
    return jnp.pad(numbers, [(0, 0)] * (starts.ndim - 1) + [(1, 0)])
