"""Where attention goes: sinks, how many keys, how far, and what layers together make of it.

All are functions of attention weights `[..., L, L]`, whose rows are queries that share 1 among
keys. A row of zeros, a query that attends to nothing, adds nothing.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float


class Sinks(NamedTuple):
    """Mean attention over the queries of a text: to its first and its last key, and to the key that
    gets most of all queries together."""

    first: Float[Array, "*B"]
    last: Float[Array, "*B"]
    largest: Float[Array, "*B"]


class Shares(NamedTuple):
    """What outputs are made of, means over the positions of the output: shares of the first input,
    of the input at the same position, and of those at most `window` positions away, itself
    included. They overlap."""

    first: Float[Array, "*B"]
    own: Float[Array, "*B"]
    near: Float[Array, "*B"]


@jax.jit
def sink_mass(weights: Float[Array, "*B L L"]) -> Sinks:
    """Attention that goes to single keys, 0 to 1; 1 / L each where it is even (Xiao et al. 2023,
    arXiv 2309.17453, on the first)."""
    received = weights.mean(-2)
    return Sinks(received[..., 0], received[..., -1], received.max(-1))


@jax.jit
def effective_keys(weights: Float[Array, "*B L L"]) -> Float[Array, "*B"]:
    """exp of the entropy of a query's attention, the mean over the queries: 1 for attention to one
    key each, n for even attention to n keys."""
    logs = jnp.log(jnp.where(weights > 0, weights, 1.0))
    return jnp.exp(-(weights * logs).sum(-1)).mean(-1)


@jax.jit
def mean_distance(weights: Float[Array, "*B L L"]) -> Float[Array, "*B"]:
    """Σ_j A_ij |j - i|, the mean over the queries; (L² - 1) / 3L where attention is even."""
    return (weights * _apart(weights)).sum(-1).mean(-1)


@jax.jit
def rollout(weights: Float[Array, "*B N L L"]) -> Float[Array, "*B N L L"]:
    """R_n = Ã_n·R_(n-1) for each of N layers, with Ã = (A + I) / 2, rows of sum 1, and R_0 = I
    (Abnar and Zuidema 2020, arXiv 2005.00928, section 3).

    R_n[i, j] is the share of input j in what leaves layer n at i, if layers did nothing but mix
    what they attend to half and half with what passes by. A is the mean over the heads.
    """
    identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    mixed = weights + identity
    mixed /= mixed.sum(-1, keepdims=True)

    def add(below, layer):
        above = jnp.matmul(layer, below, precision=jax.lax.Precision.HIGHEST)
        return above, above

    start = jnp.broadcast_to(identity, mixed[..., 0, :, :].shape)
    _, layers = jax.lax.scan(add, start, jnp.moveaxis(mixed, -3, 0))
    return jnp.moveaxis(layers, 0, -3)


@partial(jax.jit, static_argnames="window")
def shares(mixture: Float[Array, "*B L L"], *, window: int = 5) -> Shares:
    """What rows of a mixture, such as those of `rollout`, are made of."""
    near = _apart(mixture) <= window
    return Shares(
        mixture[..., 0].mean(-1),
        jnp.diagonal(mixture, axis1=-2, axis2=-1).mean(-1),
        jnp.where(near, mixture, 0.0).sum(-1).mean(-1),
    )


def _apart(matrix: Array) -> jax.Array:
    """|j - i|, `[L, L]`."""
    at = jnp.arange(matrix.shape[-1])
    return jnp.abs(at - at[:, None])
