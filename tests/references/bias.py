"""ALiBi, T5, FIRE, Transformer-XL and DeBERTa, for one pair of query and key."""

import math

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
    left, right = (1 / (1 + jnp.exp(-params["slopes"][side, p.head])) for side in (0, 1))
    return dot(p) - jnp.where(p.j < p.i, left * (p.i - p.j), right * (p.j - p.i))


# --- T5 -------------------------------------------------------------------------------------------


def t5(buckets=32, max_distance=128, bidirectional=True):
    def score(params, p):
        relative, side, first = p.j - p.i, buckets, 0
        if bidirectional:
            side = buckets // 2
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

    return Reference(score)


# --- FIRE -----------------------------------------------------------------------------------------


def fire(threshold=512.0, directed=False):
    def score(params, p):
        psi = lambda x: jnp.log(jnp.abs(params["c"] * x) + 1)
        farthest = jnp.maximum(p.i, p.j)
        length = jnp.maximum(jnp.abs(params["scale"] * threshold), farthest)
        x = psi(p.i - p.j) / (psi(length) + 1e-6)
        if directed:
            x = jnp.where(p.j > p.i, -x, x)
        hidden = jnp.maximum(x * params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
        out = hidden @ params["out"]["kernel"] + params["out"]["bias"]
        return dot(p) + out[p.head]

    return Reference(score)


# --- Transformer-XL -------------------------------------------------------------------------------


def transformer_xl(clip=math.inf):
    def score(params, p):
        width = params["kernel"].shape[0]
        x = jnp.clip(p.i - p.j, -clip, clip)
        angles = jnp.array([x / 10_000 ** (2 * n / width) for n in range(width // 2)])
        r = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(width)
        content = (p.q + params["u"][p.head]) @ p.k
        position = (p.q + params["v"][p.head]) @ (r @ params["kernel"][:, p.head])
        return (content + position) / math.sqrt(p.q.shape[-1])

    return Reference(score)


# --- DeBERTa --------------------------------------------------------------------------------------


def deberta(buckets: int | None = 256, max_relative_positions=512):
    half = buckets or max_relative_positions

    def score(params, p):
        delta = p.i - p.j
        if buckets:
            mid, distance = buckets // 2, jnp.abs(delta)
            scale = jnp.log((max_relative_positions - 1) / mid)
            shared = jnp.ceil(jnp.log(distance / mid) / scale * (mid - 1) - 1e-9) + mid
            delta = jnp.where(distance <= mid, delta, jnp.sign(delta) * shared)
        row = params["table"][(jnp.clip(delta, -half, half - 1) + half).astype(int)]
        total = p.q @ p.k + p.q @ (row @ p.w_k[:, p.head]) + (row @ p.w_q[:, p.head]) @ p.k
        return total / math.sqrt(3 * p.q.shape[-1])

    return Reference(score)


# By name, as a config writes it: options that make a difference among eight positions as well.
REFERENCES = {
    "alibi": Reference(alibi),
    "alibi(directed=True)": Reference(alibi_directed),
    "alibi(learnable=True)": Reference(alibi_learnable),
    "alibi(directed=True, learnable=True)": Reference(alibi_two_slopes),
    "t5": t5(),
    "t5(buckets=8, max_distance=6)": t5(8, 6),
    "t5(buckets=5, max_distance=6, bidirectional=False)": t5(5, 6, False),
    "fire": fire(),
    "fire(threshold=4, directed=True)": fire(4.0, True),
    "transformer_xl": transformer_xl(),
    "transformer_xl(clip=3)": transformer_xl(3),
    "deberta": deberta(),
    "deberta(buckets=4, max_relative_positions=6)": deberta(4, 6),
    "deberta(buckets=None, max_relative_positions=3)": deberta(None, 3),
}
