"""Rotary encodings as formulas: pairs of dimensions as complex numbers, each times exp(i ω x)."""

import math

import jax.numpy as jnp
import numpy as np

from pe_jax.testing import Reference


def pairs(x, r, layout="half"):
    """The first r dimensions as r/2 complex numbers, and the other dimensions."""
    if layout == "half":
        return x[: r // 2] + 1j * x[r // 2 : r], x[r:]
    return x[0:r:2] + 1j * x[1:r:2], x[r:]


def score(frequencies, fraction=1.0, layout="half", scale=lambda p: 1.0):
    """Re Σ_m c² z_q conj(z_k) exp(i ω_m (i - j)), and the product of the other dimensions.

    `frequencies(params, Pair, r) -> [r/2]`, `scale(Pair) -> c`.
    """

    def logit(params, p):
        d = len(p.q)
        r = int(d * fraction)
        (q, rest_q), (k, rest_k) = pairs(p.q, r, layout), pairs(p.k, r, layout)
        w = frequencies(params, p, r)
        rotated = jnp.real(jnp.sum(q * jnp.conj(k) * jnp.exp(1j * w * (p.i - p.j))))
        return (scale(p) ** 2 * rotated + rest_q @ rest_k) / math.sqrt(d)

    return Reference(score=logit)


def powers(r, base=10_000.0):
    """base^(-2m/r)."""
    return np.array([base ** (-2 * m / r) for m in range(r // 2)])


def longest(p):
    """The length of the row: its largest position + 1."""
    return jnp.maximum(p.positions_q.max(), p.positions_k.max()) + 1


def proportional(share, base):
    def frequencies(params, p, r):
        return np.where(np.arange(r // 2) < int(share * r // 2), powers(r, base), 0.0)

    return frequencies


def ntk(factor, original_length=None):
    def frequencies(params, p, r):
        s = factor
        if original_length is not None:
            n = jnp.maximum(longest(p), original_length)
            s = factor * n / original_length - (factor - 1)
        return 1 / (10_000.0 * s ** (r / (r - 2))) ** (2 * np.arange(r // 2) / r)

    return frequencies


def yarn(factor, original_length, fast=32.0, slow=1.0, truncate=True):
    def frequencies(params, p, r):
        # The index m at which base^(-2m/r) · L = 2π · rotations.
        ends = [
            r
            * math.log(original_length / (2 * math.pi * rotations))
            / (2 * math.log(10_000.0))
            for rotations in (fast, slow)
        ]
        if truncate:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        low, high = max(ends[0], 0), min(ends[1], r - 1)
        high += 0.001 * (low == high)
        w = powers(r)
        stretched = [min(max((m - low) / (high - low), 0), 1) for m in range(r // 2)]
        return np.array(
            [x * (1 - g) + x / factor * g for x, g in zip(w, stretched, strict=True)]
        )

    return frequencies


def llama3(factor, original_length, low=1.0, high=4.0):
    def one(w):
        wavelength = 2 * math.pi / w
        if wavelength < original_length / high:
            return w
        if wavelength > original_length / low:
            return w / factor
        smooth = (original_length / wavelength - low) / (high - low)
        return (1 - smooth) * w / factor + smooth * w

    return lambda params, p, r: np.array([one(w) for w in powers(r)])


def longrope(short, long, original_length):
    def frequencies(params, p, r):
        divisors = jnp.where(
            longest(p) > original_length, np.array(long), np.array(short)
        )
        return powers(r) / divisors

    return frequencies


def at_offsets(offset):
    """RoPE, of an offset to the left `offset(i, j)`, mirrored to the right."""

    def logit(params, p):
        later, earlier = jnp.maximum(p.i, p.j), jnp.minimum(p.i, p.j)
        f = jnp.where(p.j > p.i, -1, 1) * offset(later, earlier)
        z = (p.q[:2] + 1j * p.q[2:]) * jnp.conj(p.k[:2] + 1j * p.k[2:])
        return jnp.real(jnp.sum(z * jnp.exp(-1j * powers(4) * f))) / 2

    return Reference(score=logit)


def self_extend(i, j):
    """Windows of 3 tokens, groups of 2."""
    far = jnp.floor(j / 2) - (jnp.floor(i / 2) + 3 - 1)
    return jnp.where(i - j < 3, j - i, far)


def dual_chunk(i, j):
    """Chunks of 3 tokens, in a model trained on 5."""
    chunks = jnp.floor(i / 3) - jnp.floor(j / 3)
    far = jnp.where(chunks == 1, jnp.minimum(3 + i % 3, 4), 4)
    return jnp.where(chunks == 0, j - i, j % 3 - far)


def rotated_values(reference, frequencies, first=0):
    """`reference` with the values as complex numbers, from dimension `first` on, each times
    exp(i ω_m (j - i))."""

    def value(params, p):
        rest, v = p.v[:first], p.v[first:]
        z = (v[0::2] + 1j * v[1::2]) * jnp.exp(
            1j * frequencies(params, p) * (p.j - p.i)
        )
        return jnp.concatenate([rest, jnp.stack([z.real, z.imag], -1).reshape(-1)])

    return reference.replace(value=value)


def plain(params, p):
    return p.q @ p.k / math.sqrt(len(p.q))


def causal(score):
    """`score` of keys that are not to the right of the query."""
    return Reference(
        score=lambda params, p: jnp.where(p.j <= p.i, score(params, p), -jnp.inf)
    )


def window(reach):
    near = lambda p: jnp.abs(p.i - p.j) <= reach
    return Reference(
        score=lambda params, p: jnp.where(near(p), plain(params, p), -jnp.inf)
    )


def chunks(size):
    same = lambda p: jnp.floor(p.i / size) == jnp.floor(p.j / size)
    return Reference(
        score=lambda params, p: jnp.where(same(p), plain(params, p), -jnp.inf)
    )


fixed = lambda params, p, r: powers(r)

# For heads of 4 dimensions.
REFERENCES = {
    "rope": score(fixed),
    "rope(base=100, layout='interleaved')": score(
        lambda params, p, r: powers(r, 100.0), layout="interleaved"
    ),
    "rope(fraction=0.5)": score(fixed, fraction=0.5),
    "rope(layout='interleaved', fraction=0.5)": score(fixed, 0.5, "interleaved"),
    "rope(base=1000, proportional=0.5)": score(proportional(0.5, 1000.0)),
    "rope(learnable=True)": score(lambda params, p, r: params["frequencies"]),
    "rope(learnable=True, per_head=True)": score(
        lambda params, p, r: params["frequencies"][p.head]
    ),
    "rope_linear(factor=4)": score(lambda params, p, r: powers(r) / 4),
    "rope_ntk(factor=4)": score(ntk(4.0)),
    "rope_dynamic_ntk(factor=4, original_length=5)": score(ntk(4.0, 5)),
    "rope_yarn(factor=4, original_length=64, beta_fast=8)": score(
        yarn(4.0, 64, 8.0), scale=lambda p: 0.1 * math.log(4.0) + 1
    ),
    "rope_yarn(factor=4, original_length=64, attention_factor=0.5, truncate=False)": score(
        yarn(4.0, 64, truncate=False), scale=lambda p: 0.5
    ),
    "rope_llama3(factor=8, original_length=64)": score(llama3(8.0, 64)),
    # Short inputs, but for those of the check that shifts positions; long ones.
    **{
        f"rope_longrope(short=(1, 2), long=(2, 8), factor=4, original_length={length})": score(
            longrope((1, 2), (2, 8), length),
            scale=lambda p, length=length: math.sqrt(
                1 + math.log(4.0) / math.log(length)
            ),
        )
        for length in (1000, 5)
    },
    "lerope(rope_yarn(factor=4, original_length=64, beta_fast=8))": score(
        lambda params, p, r: (
            yarn(4.0, 64, 8.0)(params, p, r) * jnp.exp(params["log_factors"])
        ),
        scale=lambda p: 0.1 * math.log(4.0) + 1,
    ),
    "self_extend(window=3, group=2)": at_offsets(self_extend),
    "rerope(window=2)": at_offsets(lambda i, j: -jnp.minimum(i - j, 2)),
    "rerope(window=2, factor=4)": at_offsets(
        lambda i, j: -jnp.where(i - j < 2, i - j, 2 + (i - j - 2) / 4)
    ),
    "dual_chunk(chunk=3, original_length=5)": at_offsets(dual_chunk),
    "rove(rope(layout='interleaved'))": rotated_values(
        score(fixed, layout="interleaved"), lambda params, p: powers(4)
    ),
    "window(max_distance=2)": window(2),
    "chunks(size=3)": chunks(3),
    "causal": causal(plain),
    "causal+window(max_distance=2)": causal(window(2).score),
}

EXCUSED = {
    "rope_longrope(short=(1, 2), long=(2, 8), factor=4, original_length=5)": {
        "shift": "these inputs are long wherever they are"
    }
}
