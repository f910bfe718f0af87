"""Attention flow: sinks, number of keys, distance, and the composition of layers (rollout).

All are functions of attention weights `[..., L, L]`, whose rows are queries that share 1 among
keys. A row of zeros, a query that attends to nothing, adds nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float
from pe_jax.properties.compiled import compiled


@compiled()
def attention_sinks(
    weights: Float[Array, "*B L L"],
) -> dict[str, Float[jax.Array, "*B"]]:
    """Return the mean attention over the queries of a text to the "first" key (Xiao et al. 2023,
    arXiv 2309.17453), to the "last", and to the "largest", the key that gets most of all queries
    together; from 0 to 1, 1 / L each where attention is even."""
    received = weights.mean(-2)
    return {
        "first": received[..., 0],
        "last": received[..., -1],
        "largest": received.max(-1),
    }


@compiled()
def effective_keys(weights: Float[Array, "*B L L"]) -> Float[jax.Array, "*B"]:
    """Return exp of the entropy of a query's attention, the mean over the queries: 1 for attention
    to one key each, n for even attention to n keys. A row of zeros counts as 0 keys."""
    logs = jnp.log(jnp.where(weights > 0, weights, 1.0))
    keys = jnp.exp(-(weights * logs).sum(-1))
    return jnp.where((weights == 0).all(-1), 0.0, keys).mean(-1)


@compiled()
def mean_distance(weights: Float[Array, "*B L L"]) -> Float[jax.Array, "*B"]:
    """Return Σ_j A_ij |j - i|, the mean over the queries; (L² - 1) / 3L where attention is even."""
    return (weights * _distance(weights)).sum(-1).mean(-1)


@compiled()
def rollout(weights: Float[Array, "*B N L L"]) -> Float[jax.Array, "*B N L L"]:
    """Return R_n = Ã_n·R_(n-1) for each of N layers, with Ã = (A + I) / 2, rows of sum 1, and R_0 =
    I (Abnar and Zuidema 2020, arXiv 2005.00928, section 3).

    R_n[i, j] is the share of input j in the output of layer n at i, if layers only mixed the inputs
    that they attend to, half and half with the residual. A is the mean over the heads.
    """
    identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    mixed = weights + identity
    mixed /= mixed.sum(-1, keepdims=True)

    def add(below, layer):
        above = jnp.matmul(layer, below, precision="highest")
        return above, above

    start = jnp.broadcast_to(identity, mixed[..., 0, :, :].shape)
    _, layers = jax.lax.scan(add, start, jnp.moveaxis(mixed, -3, 0))
    return jnp.moveaxis(layers, 0, -3)


@compiled("window")
def mixture_shares(
    mixture: Float[Array, "*B L L"], *, window: int = 5
) -> dict[str, Float[jax.Array, "*B"]]:
    """Return the composition of outputs, means over the rows of a mixture such as `rollout`.

    Returns:
      shares of the "first" input, of the input at the same position ("own"), and of those at most
      `window` positions away ("near"), itself included. They overlap.
    """
    first = mixture[..., 0]
    diagonal = jnp.diagonal(mixture, axis1=-2, axis2=-1)
    near = jnp.where(_distance(mixture) <= window, mixture, 0.0)
    return {
        "first": first.mean(-1),
        "own": diagonal.mean(-1),
        "near": near.sum(-1).mean(-1),
    }


def _distance(matrix: Array) -> jax.Array:
    positions = jnp.arange(matrix.shape[-1])
    return jnp.abs(positions - positions[:, None])
