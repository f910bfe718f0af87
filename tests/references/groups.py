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
            direction = params[name][p.head] / jnp.sqrt(
                (params[name][p.head] ** 2).sum()
            )
            total += jnp.log(1 + jnp.exp(direction @ x / jnp.sqrt(len(x))))
    rate = (
        jnp.log(1 + jnp.exp(params["scale"][p.head]))
        * jnp.array(press_slopes(p.heads))[p.head]
    )
    return dot(p) - jnp.abs(p.j - p.i) * rate * total


# --- STRING and LieRE -----------------------------------------------------------------------------


def skew(upper, size):
    """The entries above the diagonal, row by row, and their negatives below it."""
    matrix, n = jnp.zeros((size, size)), 0
    for row in range(size):
        for column in range(row + 1, size):
            matrix = matrix.at[row, column].add(upper[n]).at[column, row].add(-upper[n])
            n += 1
    return matrix


def string(params, p: Pair, axes=1, per_head=False):
    """Pᵀ R(j - i) P between query and key, with an explicit inverse in P."""
    d = len(p.q)
    of = (lambda x: x[..., p.head, :]) if per_head else (lambda x: x)
    s = skew(of(params["skew"]), d)
    basis = (jnp.eye(d) - s) @ jnp.linalg.inv(jnp.eye(d) + s)
    offset = jnp.atleast_1d(p.j - p.i)
    angle = sum(offset[a] * of(params["frequencies"][a]) for a in range(axes))
    complex_of = lambda x: x[: d // 2] + 1j * x[d // 2 :]
    q, k = complex_of(basis @ p.q), complex_of(basis @ p.k)
    return jnp.real(jnp.sum(jnp.conj(q) * k * jnp.exp(1j * angle))) / jnp.sqrt(d)


def exponential(matrix):
    """Taylor's series of the 1,024th part, and ten squarings."""
    small = matrix / 2**10
    term = total = jnp.eye(len(matrix))
    for n in range(1, 12):
        term = term @ small / n
        total = total + term
    for _ in range(10):
        total = total @ total
    return total


def liere(params, p: Pair, side=14.0, size=4, width=None):
    """Whole heads of 4, or blocks of them; positions `[A]`, or counted by rows."""
    of = lambda x: x if width is None else jnp.stack([jnp.floor(x / width), x % width])
    generators = params["generators"][:, p.head]  # [A, N, n(n-1)/2]

    def rotated(x, position):
        out = []
        for n in range(len(x) // size):
            a = sum(
                of(position)[axis] / side * generators[axis, n] for axis in range(2)
            )
            out.append(exponential(skew(a, size)) @ x[n * size : (n + 1) * size])
        return jnp.concatenate([*out, x[len(x) // size * size :]])

    return rotated(p.q, p.i) @ rotated(p.k, p.j) / jnp.sqrt(len(p.q))


REFERENCES = {
    "string": Reference(score=string),
    "string(axes=2, base=10, per_head=True)": Reference(
        score=functools.partial(string, axes=2, per_head=True)
    ),
    "liere(side=4)": Reference(score=functools.partial(liere, side=4.0)),
    "liere(block=3, side=20, width=3)": Reference(
        score=functools.partial(liere, side=20.0, size=3, width=3)
    ),
    "grape_m": Reference(score=grape_m),
    "grape_a": Reference(score=grape_a),
    **{
        f"grape_a(gate={name!r})": Reference(
            score=functools.partial(grape_a, gates=(name,))
        )
        for name in ("query", "key")
    },
}
