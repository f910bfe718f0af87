"""Encodings that add something up from token to token, in the order of the row.

Sums between two tokens contain what is between them and nothing else, so documents packed into one
row do not affect one another. Padding, which is every key that the mask hides from all queries,
counts for nothing wherever it is. Queries are found among the keys: one that is not among them is a
ValueError, or NaN where positions are traced. Keys are in the order of positions, see
`Traits.ordered`.

Gates are computed from the hidden states of all keys, `Context.x_k`, `[B, Lk, D]`: with a cache,
keep them too.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.part import Context
from pe_jax.encodings.positions import as_array, default_positions
from pe_jax.shapes import Array, Bool, Float, Int, Size


def hidden_states(
    context: Context, name: str, side: Literal["q", "k"] = "k"
) -> Float[jax.Array, "B L D"]:
    """The hidden states of the keys or of the queries, in float32 at least."""
    x = context.x_k if side == "k" else context.x_q
    if x is None:
        tokens = "keys" if side == "k" else "queries"
        raise ValueError(
            f"{name} computes its terms from hidden states, but got none. Pass those that the "
            f"{tokens} were projected from, attention(..., context=Context(positions, x_{side}=x))."
        )
    return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def indices(tokens: Size) -> Int[Array, " L"]:
    """0 .. L - 1 of so many tokens, known while compiling unless their number is symbolic."""
    return as_array(default_positions(tokens))


def rows_of_queries(
    context: Context, queries: Size, keys: Size, name: str
) -> tuple[Int[Array, "#B Lq"], Bool[Array, "#B Lq"]]:
    """The index of each query among the keys, and whether it is there.

    Where there are as many of both they are the same tokens, else (a cache) queries are those keys
    that have their positions, which are then unique in a row but for padding.
    """
    at_q, at_k = context.positions_q, context.positions_k
    if isinstance(at_q, range) and isinstance(at_k, range):
        if not (at_k.start <= at_q.start and at_q.stop <= at_k.stop):
            raise ValueError(
                f"{name} needs all tokens between queries and keys, so every query must be among "
                f"the keys; got queries at {at_q} and keys at {at_k}."
            )
        rows = np.arange(queries)[None]
        return rows + (at_q.start - at_k.start), rows >= 0
    if queries == keys:
        rows = indices(queries)[None]
        return rows, rows >= 0
    assert at_k is not None
    same = jnp.asarray(as_array(at_q))[..., :, None] == jnp.asarray(as_array(at_k))[..., None, :]
    same = same.reshape(-1, queries, keys)
    tokens = attended_keys(context)
    same = same if tokens is None else same & tokens[:, None]
    return jnp.argmax(same, axis=-1), same.any(axis=-1)


def attended_keys(context: Context) -> Bool[Array, "#B Lk"] | None:
    """True for keys that the mask lets some query attend to, all others being padding; None where
    there is no mask."""
    return None if context.mask is None else context.mask.any((1, 2))


def without_padding(
    key_values: Float[Array, "B Lk *C"], context: Context
) -> Float[Array, "B Lk *C"]:
    """What keys add up, 0 for padding."""
    tokens = attended_keys(context)
    if tokens is None:
        return key_values
    return jnp.where(tokens.reshape(*tokens.shape, *[1] * (key_values.ndim - 2)), key_values, 0)


def take_queries(
    key_values: Float[Array, "B Lk H"], rows: Int[Array, "#B Lq"], known: Bool[Array, "#B Lq"]
) -> Float[jax.Array, "B Lq H"]:
    """The rows of the queries, NaN for a query that is not among the keys."""
    taken = jnp.take_along_axis(key_values, rows[..., None], axis=1)
    return jnp.where(known[..., None], taken, jnp.nan)
