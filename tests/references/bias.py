"""Biases and vectors of offsets added to the logits, for one pair of query and key."""

import functools
import math

import jax
import jax.numpy as jnp

from pe_jax.testing import Pair, Reference


def dot(p: Pair):
    return p.q @ p.k / math.sqrt(p.q.shape[-1])


# --- ALiBi ----------------------------------------------------------------------------------------


def press_slopes(n):
    """`get_slopes` of the authors' repository."""

    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + press_slopes(2 * closest)[0::2][: n - closest]


def alibi(params, p):
    return dot(p) - jnp.array(press_slopes(p.heads))[p.head] * jnp.abs(p.i - p.j)


def alibi_directed(params, p):
    half = p.heads // 2
    bias = -jnp.array(press_slopes(half))[p.head % half] * jnp.abs(p.i - p.j)
    hidden = jnp.where(p.head < half, p.j > p.i, p.j < p.i)
    return jnp.where(hidden, -jnp.inf, dot(p) + bias)


def alibi_learnable(params, p):
    return dot(p) - jnp.abs(p.i - p.j) / (1 + jnp.exp(-params["slopes"][p.head]))


def alibi_two_slopes(params, p):
    left, right = (
        1 / (1 + jnp.exp(-params["slopes"][side, p.head])) for side in (0, 1)
    )
    return dot(p) - jnp.where(p.j < p.i, left * (p.i - p.j), right * (p.j - p.i))


# --- T5 -------------------------------------------------------------------------------------------


def t5(num_buckets=32, max_distance=128, bidirectional=True):
    def score(params, p):
        relative, side, first = p.j - p.i, num_buckets, 0
        if bidirectional:
            side = num_buckets // 2
            first = jnp.where(relative > 0, side, 0)
            distance = jnp.abs(relative)
        else:
            distance = jnp.maximum(-relative, 0)
        exact = side // 2
        # One bucket further at each of the distances where the paper's logarithm grows by one.
        step = (max_distance / exact) ** (1 / (side - exact))
        edges = jnp.array([exact * step**n for n in range(1, side - exact)])
        far = exact + (distance >= edges * (1 - 1e-12)).sum()
        bucket = first + jnp.where(distance < exact, distance, far)
        return dot(p) + params["table"][bucket.astype(int), p.head]

    return Reference(score=score)


# --- FIRE -----------------------------------------------------------------------------------------


def fire(threshold=512.0, directed=False):
    def score(params, p):
        psi = lambda x: jnp.log(jnp.abs(params["c"] * x) + 1)
        farthest = jnp.maximum(p.i, p.j)
        length = jnp.maximum(jnp.abs(params["scale"] * threshold), farthest)
        x = psi(p.i - p.j) / (psi(length) + 1e-6)
        if directed:
            x = jnp.where(p.j > p.i, -x, x)
        hidden = jnp.maximum(
            x * params["hidden"]["kernel"] + params["hidden"]["bias"], 0
        )
        out = hidden @ params["out"]["kernel"] + params["out"]["bias"]
        return dot(p) + out[p.head]

    return Reference(score=score)


# --- KERPLE ---------------------------------------------------------------------------------------


def bounded(r, most=math.inf):
    """The bounds of the authors' code, which leave the gradient as it is."""
    return r + jax.lax.stop_gradient(jnp.clip(r, 0.01, most) - r)


def kerple_log(params, p):
    r1, r2 = (bounded(params[name][p.head]) for name in ("r1", "r2"))
    return dot(p) - r1 * jnp.log(1 + r2 * jnp.abs(p.i - p.j))


def kerple_power(params, p):
    r1, r2 = bounded(params["r1"][p.head]), bounded(params["r2"][p.head], 2)
    distance = jnp.abs(p.i - p.j)
    raised = jnp.exp(r2 * jnp.log(jnp.where(distance > 0, distance, 1.0)))
    return dot(p) - r1 * jnp.where(distance > 0, raised, 0.0)


# --- Sandwich -------------------------------------------------------------------------------------


def sandwich(dim=128, base=10_000.0):
    """p_i·p_j of two sinusoids, from their products."""

    def score(params, p):
        w = jnp.array([base ** (-2 * n / dim) for n in range(1, dim // 2 + 1)])
        product = jnp.cos(w * p.i) @ jnp.cos(w * p.j) + jnp.sin(w * p.i) @ jnp.sin(
            w * p.j
        )
        return dot(p) + (product - dim / 2) / (8 * (p.head + 1) / p.heads)

    return Reference(score=score)


# --- TISA -----------------------------------------------------------------------------------------


def tisa(params, p):
    total = 0.0
    for a, b, c in zip(
        *(params[name] for name in ("amplitude", "sharpness", "centre"))
    ):
        total += a[p.head] * jnp.exp(-jnp.abs(b[p.head]) * (p.j - p.i - c[p.head]) ** 2)
    return dot(p) + total


# --- dynamic position bias ------------------------------------------------------------------------


def dynamic_position_bias(log_distance=True, activation=jax.nn.silu, bound=None):
    def score(params, p):
        m = p.j - p.i
        x = jnp.atleast_1d(jnp.sign(m) * jnp.log(jnp.abs(m) + 1) if log_distance else m)
        for n in range(len(params) - 1):
            layer = params[f"hidden_{n}"]
            x = activation(x @ layer["kernel"] + layer["bias"])
        out = (x @ params["out"]["kernel"] + params["out"]["bias"])[p.head]
        return dot(p) + (out if bound is None else bound / (1 + jnp.exp(-out)))

    return Reference(score=score)


# --- relative_key of transformers 4 ---------------------------------------------------------------


def relative_key(params, p, at_queries=False):
    longest = (len(params["table"]) + 1) // 2
    row = params["table"][(p.i - p.j + longest - 1).astype(int)]
    return (p.q @ p.k + p.q @ row + at_queries * (p.k @ row)) / math.sqrt(len(p.q))


# --- TENER ----------------------------------------------------------------------------------------


def tener(scale=1.0, base=10_000.0):
    def score(params, p):
        d = len(p.q)
        angles = jnp.array([(p.i - p.j) / base ** (2 * n / d) for n in range(d // 2)])
        r = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(d)
        u, v = params["u"][p.head], params["v"][p.head]
        return (p.q @ p.k + p.q @ r + u @ p.k + v @ r) * scale

    return Reference(score=score)


# --- Transformer-XL -------------------------------------------------------------------------------


def transformer_xl(max_distance=math.inf):
    def score(params, p):
        width = params["kernel"].shape[0]
        x = jnp.clip(p.i - p.j, -max_distance, max_distance)
        angles = jnp.array([x / 10_000 ** (2 * n / width) for n in range(width // 2)])
        r = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(width)
        content = (p.q + params["u"][p.head]) @ p.k
        position = (p.q + params["v"][p.head]) @ (r @ params["kernel"][:, p.head])
        return (content + position) / math.sqrt(p.q.shape[-1])

    return Reference(score=score)


# --- DeBERTa --------------------------------------------------------------------------------------


def deberta(num_buckets: int | None = 256, max_distance=512):
    half = num_buckets or max_distance

    def score(params, p):
        delta = p.i - p.j
        if num_buckets:
            mid, distance = num_buckets // 2, jnp.abs(delta)
            scale = jnp.log((max_distance - 1) / mid)
            shared = jnp.ceil(jnp.log(distance / mid) / scale * (mid - 1) - 1e-9) + mid
            delta = jnp.where(distance <= mid, delta, jnp.sign(delta) * shared)
        row = params["table"][(jnp.clip(delta, -half, half - 1) + half).astype(int)]
        total = (
            p.q @ p.k + p.q @ (row @ p.w_k[:, p.head]) + (row @ p.w_q[:, p.head]) @ p.k
        )
        return total / math.sqrt(3 * p.q.shape[-1])

    return Reference(score=score)


# By name, as a config writes it: options that make a difference among eight positions as well.
REFERENCES = {
    "alibi": Reference(score=alibi),
    "alibi(directed=True)": Reference(score=alibi_directed),
    "alibi(learnable=True)": Reference(score=alibi_learnable),
    "alibi(directed=True, learnable=True)": Reference(score=alibi_two_slopes),
    "t5": t5(),
    "t5(num_buckets=8, max_distance=6)": t5(8, 6),
    "t5(num_buckets=5, max_distance=6, bidirectional=False)": t5(5, 6, False),
    "fire": fire(),
    "fire(threshold=4, directed=True)": fire(4.0, True),
    "kerple": Reference(score=kerple_log),
    "kerple(kernel='power')": Reference(score=kerple_power),
    "sandwich": sandwich(),
    "sandwich(dim=4, base=100)": sandwich(4, 100.0),
    "tisa": Reference(score=tisa),
    "dynamic_position_bias": dynamic_position_bias(),
    "dynamic_position_bias(width=3, depth=1, log_distance=False, activation='relu', bound=16)": (
        dynamic_position_bias(False, jax.nn.relu, 16.0)
    ),
    "relative_key": Reference(score=relative_key),
    "relative_key_query": Reference(
        score=functools.partial(relative_key, at_queries=True)
    ),
    "tener": tener(),
    "tener(base=100, scale=True)": tener(1 / 2, 100.0),
    "transformer_xl": transformer_xl(),
    "transformer_xl(max_distance=3)": transformer_xl(3),
    "deberta": deberta(),
    "deberta(num_buckets=4, max_distance=6)": deberta(4, 6),
    "deberta(num_buckets=None, max_distance=3)": deberta(None, 3),
}
