"""References of encodings that meet content, tokens or several axes, a pair at a time (float64)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pe_jax.testing import Pair, Reference
from pe_jax.testing.subject import LENGTH

from . import paper, rope


def pope(params, p: Pair, base=10_000.0):
    """Re of conj(q) k with q, k complex: magnitudes of content, phases of positions."""
    d = p.q.shape[-1]
    w = base ** (-jnp.arange(d) / d)
    magnitudes = jnp.log1p(jnp.exp(p.q)) * jnp.log1p(jnp.exp(p.k))
    return jnp.sum(
        magnitudes * jnp.cos((p.j - p.i) * w + params["phase"][p.head])
    ) / jnp.sqrt(d)


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


def cable(params, p: Pair, weighted=True):
    """q·k / sqrt(d) less the lengths of tokens from the nearer one, left out, to the farther one or
    the query, times the weight of the query."""
    of = lambda name: p.x_k @ params[name][:, p.head]
    lengths = jnp.maximum(of("length"), 0)
    if "bias" in params:  # The authors' code.
        lengths = jnp.log(1 + jnp.exp(of("length") + params["bias"][p.head]))
    token = jnp.arange(len(lengths))
    first, last = jnp.minimum(p.at_q, p.at_k), jnp.maximum(p.at_q, p.at_k)
    between = jnp.where((first < token) & (token <= last), lengths, 0.0).sum()
    weight = jnp.log(1 + jnp.exp(of("weight")[p.at_q])) if weighted else 1.0
    return p.q @ p.k / jnp.sqrt(len(p.q)) - weight * between


def cope(params, p: Pair):
    """The gates of the keys that are not hidden, from the key to the query, both counted; a vector
    between those of two counts."""
    products = p.row_k[:, p.head] @ p.q / jnp.sqrt(len(p.q))
    token = jnp.arange(len(products))
    counted = (p.at_k <= token) & (token <= p.at_q) & p.mask
    gates = jnp.where(counted, 1 / (1 + jnp.exp(-products)), 0.0)
    last = len(params["table"]) - 1
    count = jnp.minimum(gates.sum(), last)
    counts = jnp.arange(last + 1)
    share = jnp.maximum(
        1 - jnp.abs(count - counts), 0
    )  # Of each row, those next to the count.
    return p.q @ p.k / jnp.sqrt(len(p.q)) + p.q @ (share @ params["table"])


def rope_axial(params, p: Pair, base=100.0, width=None):
    """Each axis rotates the complex numbers of its share; positions `[A]`, or counted by rows."""
    of = lambda x: x if width is None else jnp.stack([jnp.floor(x / width), x % width])
    i, j = of(p.i), of(p.j)
    d, axes = len(p.q), len(i)
    pairs = lambda x: (x[: d // 2] + 1j * x[d // 2 :]).reshape(axes, -1)
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
    rotated = (x[0::2] + 1j * x[1::2]) * jnp.exp(
        1j * position * params["frequencies"][token]
    )
    return jnp.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def repo(params, p: Pair):
    """RoPE between two numbers that a network reads from the tokens."""

    def position(x):
        gate = x @ params["gate"]
        return (gate / (1 + jnp.exp(-gate)) * (x @ params["content"])) @ params["out"][
            :, p.head
        ]

    offset = position(p.x_k[p.at_k]) - position(p.x_q[p.at_q])
    w = jnp.array(rope.powers(len(p.q)))
    half = len(p.q) // 2
    q, k = (x[:half] + 1j * x[half:] for x in (p.q, p.k))
    return jnp.real(jnp.sum(jnp.conj(q) * k * jnp.exp(1j * w * offset))) / jnp.sqrt(
        len(p.q)
    )


def per_row_alibi(params, p: Pair):
    """The gates of the query with the tokens from the key on that it sees, itself left out."""
    query = p.x_q[p.at_q] @ params["query"][:, p.head]
    products = p.x_k @ params["key"][:, p.head] @ query / jnp.sqrt(len(query))
    token = jnp.arange(len(products))
    between = (p.at_k <= token) & (token < p.at_q) & p.mask
    gates = jnp.where(between, -jnp.log(1 + jnp.exp(-products)), 0.0)
    return p.q @ p.k / jnp.sqrt(len(p.q)) + gates.sum()


def wall(params, p: Pair):
    """Products of each dimension times the gates of the tokens after the key, up to the query."""
    gates = p.x_k @ params["kernel"][:, p.head] + params["bias"][p.head]
    token = jnp.arange(len(gates))[:, None]
    between = (p.at_k < token) & (token <= p.at_q)
    decay = jnp.prod(jnp.where(between, 1 / (1 + jnp.exp(-gates)), 1.0), axis=0)
    return (p.q * p.k) @ decay / jnp.sqrt(len(p.q))


def fope(params, p: Pair):
    """Heads of 4: one pair with two frequencies, and one without."""

    def mapped(x, position):
        terms = jnp.array([1.0, 0.01]) * position
        cosine, sine = (params[name][p.head, :, 0] for name in ("cosine", "sine"))
        c, s = cosine @ jnp.cos(terms), sine @ jnp.sin(terms)
        a, still_a, b, still_b = x
        return jnp.stack(
            [a * c - b * s, still_a - still_b, b * c + a * s, still_b + still_a]
        )

    return mapped(p.q, p.i) @ mapped(p.k, p.j) / 2


def convolutional(params, x, positions):
    """The channels of each group of the neighbours, tap by tap, through a matrix of the tap."""
    width, groups, size, _ = params["kernel"].shape
    out = []
    for t in range(len(x)):
        total = params["bias"]
        for n in range(width):
            place = t + n - width // 2
            if 0 <= place < len(x):
                near = positions[place] - positions[t] == place - t
                by_group = [
                    x[place, g * size : (g + 1) * size] @ params["kernel"][n, g]
                    for g in range(groups)
                ]
                total = total + jnp.where(near, jnp.concatenate(by_group), 0.0)
        out.append(
            x[t] + total * (1 + jax.scipy.special.erf(total / jnp.sqrt(2.0))) / 2
        )
    return jnp.stack(out)


def randomized(inner: Reference, longest: int, length: int) -> Reference:
    """`inner` at positions spread evenly over 0 .. longest - 1, as without a key: for rows of
    `length` tokens."""

    def moved(x: jax.Array) -> jax.Array:
        return jnp.floor(x * (longest - 1) / (length - 1) + 1e-9)

    return Reference(
        score=lambda params, p: inner.score(
            params, p.replace(i=moved(p.i), j=moved(p.j))
        ),
        value=lambda params, p: inner.value(
            params, p.replace(i=moved(p.i), j=moved(p.j))
        ),
        embed=lambda params, x, position, token: inner.embed(
            params, x, moved(position), token
        ),
    )


REFERENCES = {
    "pope": Reference(score=pope),
    "fox": Reference(score=fox),
    "cable": Reference(score=cable),
    "cable(weighted=False)": Reference(score=functools.partial(cable, weighted=False)),
    "cable(weighted=False, gate='softplus')": Reference(
        score=functools.partial(cable, weighted=False)
    ),
    "cope+causal": rope.causal(lambda params, p: cope(params["cope"], p)),
    "cope(num_positions=2)+causal": rope.causal(
        lambda params, p: cope(params["cope"], p)
    ),
    "rope_axial": Reference(score=rope_axial),
    "tupe": Reference(score=tupe),
    "complex_order": Reference(embed=complex_order),
    "repo(stddev=0.7)": Reference(score=repo),
    "repo(rank=3, stddev=0.7)": Reference(score=repo),
    "per_row_alibi(rank=3, stddev=0.7)+causal": rope.causal(
        lambda params, p: per_row_alibi(params["per_row_alibi"], p)
    ),
    "wall(gate_bias=1, stddev=0.7)+causal": rope.causal(
        lambda params, p: wall(params["wall"], p)
    ),
    "fope(original_length=1000)": Reference(score=fope),
    "convolutional(width=4)": Reference(embed_row=convolutional),
    "convolutional(width=3, groups=2)": Reference(embed_row=convolutional),
    "randomized(learnable_sinusoidal_relative(max_distance=None), num_positions=64)": randomized(
        paper.REFERENCES["learnable_sinusoidal_relative(max_distance=None)"], 64, LENGTH
    ),
}
EXCUSED = {
    "convolutional(width=4)": {
        "padding": "padding whose positions count on looks like tokens, at the input",
        "permutation": "neighbours are those next to it in the row",
        "shift": "what is absolute is the distance to the ends of the row, whatever its positions",
    },
    "randomized(learnable_sinusoidal_relative(max_distance=None), num_positions=64)": {
        "formula": "positions count the keys of a row, not any numbers as here",
        "limit": "positions count the keys of a row, whatever the limit",
        "packing": "positions are spread over the row, whatever is in it",
        "padding": "positions are spread over the row, padding included",
    },
}
