"""References of positions that act as elements of a group, a pair at a time (float64)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from pe_jax.testing import Pair, Reference

from .bias import press_slopes


def dot(p: Pair):
    return p.q @ p.k / jnp.sqrt(len(p.q))


# --- GRAPE ----------------------------------------------------------------------------------------


def grape_m(params, p: Pair):
    """The matrix exponential by its closed form for a generator of rank 2."""
    a, b = params["a"][p.head], params["b"][p.head]
    generator = jnp.outer(a, b) - jnp.outer(b, a)
    s = jnp.sqrt((a @ a) * (b @ b) - (a @ b) ** 2)
    angle = (p.j - p.i) * params["frequencies"][p.head] * s
    first, second = jnp.sin(angle) / s, (1 - jnp.cos(angle)) / s**2
    moved = p.k + first * generator @ p.k + second * generator @ generator @ p.k
    return p.q @ moved / jnp.sqrt(len(p.q))


def grape_a(params, p: Pair, gates=("query", "key")):
    total = 0.0
    for name, x in (("query", p.q), ("key", p.k)):
        if name in gates:
            direction = params[name][p.head] / jnp.sqrt((params[name][p.head] ** 2).sum())
            total += jnp.log(1 + jnp.exp(direction @ x / jnp.sqrt(len(x))))
    rate = jnp.log(1 + jnp.exp(params["scale"][p.head])) * jnp.array(press_slopes(p.heads))[p.head]
    return dot(p) - jnp.abs(p.j - p.i) * rate * total


REFERENCES = {
    "grape_m": Reference(grape_m),
    "grape_a": Reference(grape_a),
    **{
        f"grape_a(gate={name!r})": Reference(functools.partial(grape_a, gates=(name,)))
        for name in ("query", "key")
    },
}
