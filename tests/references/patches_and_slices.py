"""References of patches of an image, slices of a head, projections that meet offsets, and sinks, a
pair at a time (float64)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from pe_jax.testing import Pair, Reference

from . import rope
from .bias import press_slopes

# --- patches of an image --------------------------------------------------------------------------


def sinusoidal_2d(params, x, position, token, width=None, cls=False, end=False):
    quarter = len(x) // 4
    if width is None:
        row, column = position
        is_cls = jnp.minimum(row, column) < 0
    else:
        row, column = jnp.divmod(position - cls, width)
        is_cls = position == 0
    w = jnp.array([10_000.0 ** (-t / (quarter - end)) for t in range(quarter)])
    p = [jnp.sin(w * column), jnp.cos(w * column), jnp.sin(w * row), jnp.cos(w * row)]
    return x + jnp.where(cls & is_cls, 0.0, jnp.concatenate(p))


def learned_2d(params, x, position, token, width, cls=False):
    patch = position.astype(int) - cls
    row, column = patch // width, patch % width
    if "table" in params:
        p = params["table"][row, column]
    else:
        p = jnp.concatenate([params["columns"][column], params["rows"][row]])
    return x + (jnp.where(position == 0, params["cls"], p) if cls else p)


def bias_2d(params, p: Pair, height, width, cls=False):
    """A row of the table by the difference of places, or one of BEiT's three last."""
    (row_i, column_i), (row_j, column_j) = (
        jnp.divmod(x - cls, width) for x in (p.i, p.j)
    )
    rows = (
        (row_i - row_j + height - 1) * (2 * width - 1) + column_i - column_j + width - 1
    )
    if cls:
        last = len(params["table"]) - 3
        rows = jnp.where(p.i == 0, last, jnp.where(p.j == 0, last + 1, rows))
        rows = jnp.where((p.i == 0) & (p.j == 0), last + 2, rows)
    return p.q @ p.k / jnp.sqrt(len(p.q)) + params["table"][rows.astype(int), p.head]


def decomposed_2d(params, p: Pair, width):
    (row_i, column_i), (row_j, column_j) = (jnp.divmod(x, width) for x in (p.i, p.j))
    rows, columns = params["rows"], params["columns"]
    vector = rows[(row_i - row_j).astype(int) + len(rows) // 2]
    vector = vector + columns[(column_i - column_j).astype(int) + len(columns) // 2]
    return p.q @ p.k / jnp.sqrt(len(p.q)) + p.q @ vector


def rope_centered(params, p: Pair, height, width, prefix=0):
    """Heads of 4: the first complex number rotates with the row, the second with the column."""

    def rotated(x, position):
        row, column = jnp.divmod(position - prefix, width)
        centre = jnp.stack([(row + 0.5) / height, (column + 0.5) / width]) * 2 - 1
        angle = jnp.where(position < prefix, 0.0, 2 * jnp.pi * centre)
        return (x[:2] + 1j * x[2:]) * jnp.exp(1j * angle)

    return jnp.real(jnp.vdot(rotated(p.q, p.i), rotated(p.k, p.j))) / 2


# --- slices of a head -----------------------------------------------------------------------------


def turned(q, k, offset, base=10_000.0):
    """Σ_m Re conj(q_m) k_m e^(i ω_m offset), halves as complex numbers."""
    w = base ** (-2 * jnp.arange(len(q) // 2) / len(q))
    complex_of = lambda x: x[: len(q) // 2] + 1j * x[len(q) // 2 :]
    return jnp.real(
        jnp.sum(jnp.conj(complex_of(q)) * complex_of(k) * jnp.exp(1j * w * offset))
    )


def rope_slice(params, p: Pair, size=2):
    rest = p.q[:-size] @ p.k[:-size]
    return (rest + turned(p.q[-size:], p.k[-size:], p.j - p.i)) / jnp.sqrt(len(p.q))


def decoupled_rope(params, p: Pair):
    q = p.x_q[p.at_q] @ params["query"][:, p.head]
    k = p.x_k[p.at_k] @ params["key"]
    return (p.q @ p.k + turned(q, k, p.j - p.i)) / jnp.sqrt(len(p.q) + len(q))


# --- a projection of the hidden state that meets offsets ------------------------------------------


def inkling(params, p: Pair, max_distance, max_norm=None):
    table, offset = params["table"], (p.j - p.i).astype(int)
    weights = p.x_q[p.at_q] @ params["projection"][:, p.head]
    if max_norm:
        weights = weights * params["scale"][p.head]
        length = jnp.sqrt(weights @ weights)
        weights = jnp.where(length > max_norm, weights / length * max_norm, weights)
    row = offset + max_distance
    inside = (row >= 0) & (row < len(table))
    term = weights @ table[jnp.clip(row, 0, len(table) - 1)]
    return p.q @ p.k / jnp.sqrt(len(p.q)) + jnp.where(inside, term, 0.0)


# --- networks of finished logits ------------------------------------------------------------------


def dape(params, p: Pair, slopes=None):
    """The products and biases of a pair in all heads through a network."""
    content = jnp.einsum("hd,hd->h", p.row_q[p.at_q], p.row_k[p.at_k]) / jnp.sqrt(
        len(p.q)
    )
    bias = (
        jnp.zeros(p.heads)
        if slopes is None
        else -jnp.array(slopes) * jnp.abs(p.i - p.j)
    )
    hidden, out = params["hidden"], params["out"]
    x = jnp.concatenate([content, bias]) @ hidden["kernel"] + hidden["bias"]
    x = jnp.where(x > 0, x, 0.01 * x) @ out["kernel"] + out["bias"]
    return (content + bias + x)[p.head]


def dape_v2(params, p: Pair, slopes=None, causal=False):
    """The rows of products and biases of a query, convolved over the keys that it sees."""
    content = jnp.einsum("hd,khd->kh", p.row_q[p.at_q], p.row_k) / jnp.sqrt(len(p.q))
    distance = jnp.abs(p.positions_k - p.i)[:, None]
    bias = -jnp.array([0.0] * p.heads if slopes is None else slopes) * distance
    seen = p.mask & ((p.positions_k <= p.i) if causal else True)

    def convolved(layer, x):
        total = layer["bias"]
        for n, weights in enumerate(layer["kernel"]):
            key = jnp.arange(len(x)) + n - len(layer["kernel"]) // 2
            there = (key >= 0) & (key < len(x)) & jnp.take(seen, key, mode="clip")
            total = (
                total
                + jnp.where(there[:, None], jnp.take(x, key, 0, mode="clip"), 0)
                @ weights
            )
        return total

    x = convolved(params["hidden"], jnp.concatenate([content, bias], axis=1))
    x = convolved(params["out"], jnp.where(x > 0, x, 0.01 * x))
    return (content + bias + x)[p.at_k, p.head]


REFERENCES = {
    "dape": Reference(score=dape),
    "dape_v2": Reference(score=dape_v2),
    "dape_v2(width=5, kernel_size=5)+causal": rope.causal(
        lambda params, p: dape_v2(params["dape_v2"], p, causal=True)
    ),
    "alibi+dape_v2(kernel_size=1)": Reference(
        score=lambda params, p: dape_v2(params["dape_v2"], p, press_slopes(p.heads)),
    ),
    "alibi+dape": Reference(
        score=lambda params, p: dape(params["dape"], p, press_slopes(p.heads)),
    ),
    "sink": Reference(sink=lambda params, head: params["logit"][head]),
    "sink(learnable=False)": Reference(sink=lambda params, head: 0.0),
    "sinusoidal_2d": Reference(embed=sinusoidal_2d),
    "sinusoidal_2d(width=3, cls=True, end=True)": Reference(
        embed=functools.partial(sinusoidal_2d, width=3, cls=True, end=True)
    ),
    "learned_2d(height=4, width=4)": Reference(
        embed=functools.partial(learned_2d, width=4)
    ),
    "learned_2d(height=3, width=5, cls=True, factorized=True)": Reference(
        embed=functools.partial(learned_2d, width=5, cls=True)
    ),
    "bias_2d(height=6, width=3, stddev=0.7)": Reference(
        score=functools.partial(bias_2d, height=6, width=3)
    ),
    "bias_2d(height=3, width=5, cls=True, stddev=0.7)": Reference(
        score=functools.partial(bias_2d, height=3, width=5, cls=True)
    ),
    "decomposed_2d(height=6, width=3)": Reference(
        score=functools.partial(decomposed_2d, width=3)
    ),
    # Without a key, nothing is drawn.
    "rope_centered(height=6, width=3, max_shift=0.5, max_jitter=1.2)": Reference(
        score=functools.partial(rope_centered, height=6, width=3)
    ),
    "rope_centered(height=2, width=5, prefix=3, max_rescale=2)": Reference(
        score=functools.partial(rope_centered, height=2, width=5, prefix=3)
    ),
    "rope_slice": Reference(score=rope_slice),
    "rope_slice(size=4)": Reference(score=functools.partial(rope_slice, size=4)),
    "decoupled_rope(stddev=0.7)": Reference(score=decoupled_rope),
    "decoupled_rope(size=6, stddev=0.7)": Reference(score=decoupled_rope),
    "inkling(max_distance=2, rank=2, stddev=0.7)": Reference(
        score=functools.partial(inkling, max_distance=2)
    ),
    "inkling(max_distance=2, rank=2, max_norm=1.5, stddev=0.7)": Reference(
        score=functools.partial(inkling, max_distance=2, max_norm=1.5)
    ),
    "inkling(max_distance=3, bidirectional=False, stddev=0.7)": Reference(
        score=functools.partial(inkling, max_distance=3)
    ),
}
