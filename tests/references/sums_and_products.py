"""References of encodings that add or multiply something up from token to token, a pair at a time
(float64)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pe_jax.testing import Pair, Reference

from . import rope


def convolved(x, kernel, positions):
    """Σ_n kernel[-1 - n] x[l - n], as far as positions rise from token to token; x [L, ...]."""
    index = jnp.arange(len(x))
    starts = jnp.concatenate([jnp.array([True]), positions[1:] <= positions[:-1]])
    first = jax.lax.cummax(jnp.where(starts, index, 0))
    total = 0.0
    for lag, weight in enumerate(kernel[::-1]):
        inside = (index - lag >= first).reshape(-1, *[1] * (x.ndim - 1))
        total += weight * jnp.where(inside, x[jnp.maximum(index - lag, 0)], 0.0)
    return total


def selective_rope(params, p: Pair, base=500_000.0):
    """Pairs as complex numbers, turned by the angles of the tokens between query and key."""
    pairs = len(p.q) // 2
    shares = p.x_k.reshape(len(p.x_k), p.heads, -1)
    shares = shares / jnp.sqrt((shares**2).sum(-1, keepdims=True) + 1e-6)
    low = shares.reshape(p.x_k.shape) @ params["down"] @ params["up"][:, p.head]
    steps = convolved(low, params["convolution"][:, p.head], p.positions_k)
    token = jnp.arange(len(steps))[:, None]
    forward = jnp.where((p.at_q < token) & (token <= p.at_k), steps, 0.0).sum(0)
    backward = jnp.where((p.at_k < token) & (token <= p.at_q), steps, 0.0).sum(0)
    angle = base ** (-jnp.arange(pairs) / pairs) * (forward - backward)
    complex_of = lambda x: x[:pairs] + 1j * x[pairs:]
    turned = jnp.conj(complex_of(p.q)) * complex_of(p.k) * jnp.exp(1j * angle)
    return jnp.real(turned.sum()) / jnp.sqrt(len(p.q))


def path_attention(params, p: Pair):
    """The maps of the tokens after the key, up to the query's, one after the other."""
    low = p.x_k @ params["down"] @ params["up"][:, p.head]
    w = convolved(low, params["convolution"][:, p.head], p.positions_k)
    w = w / (1 + jnp.exp(-w))
    w = w / jnp.sqrt((w**2).sum(-1, keepdims=True) + 1e-6)
    beta = p.x_k @ params["beta"]["kernel"][:, p.head] + params["beta"]["bias"][p.head]
    beta = 2 / (1 + jnp.exp(-beta))
    k = p.k
    for t in range(len(w)):
        between = (p.at_k < t) & (t <= p.at_q)
        k = jnp.where(between, k - beta[t] * w[t] * (w[t] @ k), k)
    return p.q @ k / jnp.sqrt(len(p.q))


# Started larger than `init` would have them, so that what they do can be seen.
REFERENCES = {
    "selective_rope(base=100, stddev=0.7)": Reference(
        score=functools.partial(selective_rope, base=100.0)
    ),
    "selective_rope(rank=2, width=1, stddev=0.7)": Reference(score=selective_rope),
    "path_attention(stddev=0.7)+causal": rope.causal(
        lambda params, p: path_attention(params["path_attention"], p)
    ),
    "path_attention(rank=2, width=1, stddev=0.7)+causal": rope.causal(
        lambda params, p: path_attention(params["path_attention"], p)
    ),
}
