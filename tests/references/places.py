"""References of indices, learnable Fourier features, positions of several axes, positions that are
changed, and temperatures, a pair at a time (float64)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pe_jax.testing import Reference

from . import paper, rope

LEARNABLE_ROPE = rope.REFERENCES["rope(learnable=True)"]


# --- added to the input ---------------------------------------------------------------------------


def index(params, x, position, token):
    return x + position * params["direction"]


def concatenated(params, x, position, token):
    """Of 8 numbers the last 2 are those of a sinusoid of frequency 1."""
    return jnp.concatenate([x[:-2], jnp.array([jnp.sin(position), jnp.cos(position)])])


def fourier_features(params, x, position, token):
    """Algorithm 1, for one position `[]` or `[A]`."""
    angle = jnp.atleast_1d(position) @ params["frequencies"]
    r = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)]) / jnp.sqrt(2 * len(angle))
    hidden = r @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    gelu = hidden * (1 + jax.scipy.special.erf(hidden / jnp.sqrt(2))) / 2
    return x + gelu @ params["out"]["kernel"] + params["out"]["bias"]


def floater(params, x, position, token, delta=0.1, finer=4):
    """The path of the differential equation, in steps that are finer by far than the encoding's."""

    def h(t, p):
        hidden = (
            params["hidden"]["kernel"].T @ jnp.append(p, t) + params["hidden"]["bias"]
        )
        hidden = jnp.maximum(hidden, 0)
        return params["out"]["kernel"].T @ jnp.append(hidden, t) + params["out"]["bias"]

    def midpoint(p, n):
        t, by = n * delta / finer, delta / finer
        return p + by * h(t + by / 2, p + by / 2 * h(t, p)), p

    _, path = jax.lax.scan(midpoint, params["start"], jnp.arange(16.0 * finer))
    return x + path[(position * finer).astype(int)]


# --- maps and temperatures ------------------------------------------------------------------------


def xpos(params, p, scale_base=512.0, gamma=0.4):
    """Pair m of RoPE times ζ_m^((i - j) / scale_base)."""
    d = len(p.q)
    m = jnp.arange(d // 2)
    zeta = (2 * m / d + gamma) / (1 + gamma)
    pair = lambda x: x[: d // 2] + 1j * x[d // 2 :]
    rotated = (
        pair(p.q)
        * jnp.conj(pair(p.k))
        * jnp.exp(1j * 10_000.0 ** (-2 * m / d) * (p.i - p.j))
    )
    return jnp.real(zeta ** ((p.i - p.j) / scale_base) @ rotated) / jnp.sqrt(d)


def log_n(factor, of_row=False):
    """q·k / sqrt(d) times a factor of the number of keys n."""

    def score(params, p):
        n = 1 + (p.positions_k.max() if of_row else p.i)
        return p.q @ p.k / jnp.sqrt(len(p.q)) * factor(n)

    return Reference(score=score)


def ssmax(of_row=False):
    """q·k / sqrt(d) times s log n + b of a head."""

    def score(params, p):
        n = 1 + (p.positions_k.max() if of_row else p.i)
        b = params["bias"][p.head] if "bias" in params else 0.0
        return (
            p.q @ p.k / jnp.sqrt(len(p.q)) * (params["scale"][p.head] * jnp.log(n) + b)
        )

    return Reference(score=score)


# --- positions of several axes --------------------------------------------------------------------


def rope_mixed(params, p):
    """Neighbours as complex numbers, each times e^i(ω_x x + ω_y y) of its head."""
    w = params["frequencies"][:, p.head]
    pairs = lambda x: x[0::2] + 1j * x[1::2]
    rotated = lambda x, at: pairs(x) * jnp.exp(1j * (w[0] * at[0] + w[1] * at[1]))
    return jnp.real(jnp.vdot(rotated(p.q, p.i), rotated(p.k, p.j))) / jnp.sqrt(len(p.q))


def mrope(*axis_of_pair):
    """A rotary encoding at positions that are those of one axis for each pair; the dimensions after
    the pairs stay as they are."""

    def score(params, p):
        pairs = len(axis_of_pair)
        offset = jnp.stack([(p.i - p.j)[a] for a in axis_of_pair])
        w = 10_000.0 ** (-jnp.arange(pairs) / pairs)
        complex_of = lambda x: x[:pairs] + 1j * x[pairs : 2 * pairs]
        rotated = complex_of(p.q) * jnp.conj(complex_of(p.k)) * jnp.exp(1j * w * offset)
        rest = p.q[2 * pairs :] @ p.k[2 * pairs :]
        return (jnp.real(rotated.sum()) + rest) / jnp.sqrt(len(p.q))

    return Reference(score=score)


REFERENCES = {
    "raw_index": Reference(embed=index),
    "normalized_index": Reference(embed=index, positions=lambda x: x / x.max()),
    "sinusoidal_concatenated": Reference(embed=concatenated),
    "fourier_features": Reference(embed=fourier_features),
    "fourier_features(features=6, width=3, axes=2)": Reference(embed=fourier_features),
    "floater(step=0.1)": Reference(embed=floater),
    "xpos+causal": rope.causal(xpos),
    "xpos(scale_base=4, gamma=1)+causal": rope.causal(
        functools.partial(xpos, scale_base=4.0, gamma=1.0)
    ),
    "log_n(original_length=4)": log_n(
        lambda n: jnp.maximum(jnp.log(n) / jnp.log(4), 1)
    ),
    "log_n(original_length=4, smooth=True)": log_n(
        lambda n: jnp.log(4 + n) / jnp.log(4)
    ),
    "log_n(original_length=4, smooth=True, stepped=True)": log_n(
        lambda n: 1 + jnp.log(1 + jnp.floor(n / 4)) / jnp.log(4)
    ),
    "log_n(original_length=3, coefficient=0.1, smooth=True, stepped=True, count='earlier')": log_n(
        lambda n: 1 + 0.1 * jnp.log(1 + jnp.floor((n - 1) / 3))
    ),
    "log_n(original_length=4, coefficient=0.4, count='row')": log_n(
        lambda n: 1 + 0.4 * jnp.log(jnp.maximum(n / 4, 1)), of_row=True
    ),
    "ssmax": ssmax(),
    "ssmax(bias=True, count='row')": ssmax(of_row=True),
    "rope_mixed": Reference(score=rope_mixed),
    "mrope": mrope(1, 2),  # Of two pairs, round(2 · 3/8) each go by height and width.
    "mrope(sections=(1, 1), interleaved=True)": mrope(0, 1),
    "mrope(sections=(0, 1), fraction=0.5)": mrope(1),
    # Without a key, nothing is drawn.
    "shifted(learned_absolute, max_shift=4)": paper.REFERENCES["learned_absolute"],
    "cape(rope)": rope.REFERENCES["rope"],
    "cape(sinusoidal_absolute, centered=True)": paper.REFERENCES[
        "sinusoidal_absolute"
    ].replace(positions=lambda x: x - (x.min() + x.max()) / 2),
    "interpolated(rope(learnable=True), factor=8)": rope.REFERENCES[
        "rope(learnable=True)"
    ].replace(positions=lambda x: x / 8),
}
EXCUSED = {
    "normalized_index": {
        "padding": "the row's largest position counts, also if it is of padding"
    }
}
