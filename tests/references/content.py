"""References of encodings that meet content, tokens or several axes, a pair at a time (float64)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.testing import Pair, Reference
from pe_jax.testing.subject import LENGTH

from . import paper


def pope(params, p: Pair, base=10_000.0):
    """Re of conj(q) k with q, k complex: magnitudes of content, phases of positions."""
    d = p.q.shape[-1]
    w = base ** (-jnp.arange(d) / d)
    magnitudes = jnp.log1p(jnp.exp(p.q)) * jnp.log1p(jnp.exp(p.k))
    return jnp.sum(magnitudes * jnp.cos((p.j - p.i) * w + params["phase"][p.head])) / jnp.sqrt(d)


def fox(params, p: Pair):
    """q·k / sqrt(d) and the gates of tokens from the nearer one, left out, to the farther one or
    the query."""

    def gates(side):
        kernel, bias = params[side]["kernel"][:, p.head], params[side]["bias"][p.head]
        return jnp.log(1 / (1 + jnp.exp(-(p.x_k @ kernel + bias))))

    token = jnp.arange(len(p.x_k))
    left = jnp.where((p.at_k < token) & (token <= p.at_q), gates("left"), 0.0).sum()
    right = jnp.where((p.at_q < token) & (token <= p.at_k), gates("right"), 0.0).sum()
    return p.q @ p.k / jnp.sqrt(len(p.q)) + left + right


def rope_axial(params, p: Pair, base=100.0, width=None):
    """Each axis rotates the complex numbers of its share; positions `[A]`, or counted by rows."""
    of = lambda x: x if width is None else jnp.stack([jnp.floor(x / width), x % width])
    i, j = of(p.i), of(p.j)
    d, axes = len(p.q), len(i)
    pairs = lambda x: (x[0::2] + 1j * x[1::2]).reshape(axes, -1)
    w = base ** (-2 * jnp.arange(d // axes // 2) * axes / d)
    rotated_q = pairs(p.q) * jnp.exp(1j * i[:, None] * w)
    rotated_k = pairs(p.k) * jnp.exp(1j * j[:, None] * w)
    return jnp.sum(jnp.conj(rotated_q) * rotated_k).real / jnp.sqrt(d)


def tupe(params, p: Pair):
    """Content and positions apart, and the first token's correlations replaced."""

    def position(x):
        row = params["table"][x.astype(int)]
        return (row - row.mean()) / jnp.sqrt(row.var() + 1e-5)

    def projected(which, x):
        own = params[which]
        return position(x) @ own["kernel"][:, p.head] + own["bias"][p.head]

    scale = 1 / jnp.sqrt(2 * len(p.q))
    c = projected("query", p.i) @ projected("key", p.j) * scale
    if "theta" in params:
        to_cls, to_others = params["theta"][1, p.head], params["theta"][0, p.head]
        c = jnp.where(p.i == 0, to_others, jnp.where(p.j == 0, to_cls, c))
    return p.q @ p.k * scale + c


def complex_order(params, x, position, token):
    """The word's own frequencies rotate its embedding, taken as complex numbers."""
    rotated = (x[0::2] + 1j * x[1::2]) * jnp.exp(1j * position * params["frequencies"][token])
    return jnp.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def randomised(inner: Reference, longest: int, length: int) -> Reference:
    """`inner` at positions spread evenly over 0 .. longest - 1, as without a key: for rows of
    `length` tokens."""

    def moved(x: jax.Array) -> jax.Array:
        return jnp.floor(x * (longest - 1) / (length - 1) + 1e-9)

    return Reference(
        score=lambda params, p: inner.score(params, p._replace(i=moved(p.i), j=moved(p.j))),
        value=lambda params, p: inner.value(params, p._replace(i=moved(p.i), j=moved(p.j))),
        embed=lambda params, x, position, token: inner.embed(params, x, moved(position), token),
    )


REFERENCES = {
    "pope": Reference(score=pope),
    "fox": Reference(score=fox),
    "rope_axial": Reference(score=rope_axial),
    "tupe": Reference(score=tupe),
    "complex_order": Reference(embed=complex_order),
    "randomised(learnable_sinusoidal_relative(clip=None), longest=64)": randomised(
        paper.REFERENCES["learnable_sinusoidal_relative(clip=None)"], 64, LENGTH
    ),
}
EXCUSED = {
    "fox": {"permutation": "gates accumulate in the order of tokens"},
    "randomised(learnable_sinusoidal_relative(clip=None), longest=64)": {
        "formula": "positions count the keys of a row, not any numbers as here",
        "limit": "positions count the keys of a row, whatever the limit",
        "packing": "positions are spread over the row, whatever is in it",
        "padding": "positions are spread over the row, padding included",
    },
}
