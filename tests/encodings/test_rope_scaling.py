"""Stretched frequencies of RoPE, by hand."""

import math

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, frequencies_of, queries_keys, rotated

from pe_jax import encodings
from pe_jax.encodings import Context, HookContext
from pe_jax.encodings.rotary.rope import rotate_heads
from pe_jax.encodings.rotary.rope_scaling import yarn_scale


def test_frequencies_by_hand():
    # d = 8: 1, 1/10, 1/100, 1/1000.
    def check(name, expected):
        np.testing.assert_allclose(frequencies_of(build(name)), expected, rtol=1e-6)

    check("rope", [1, 0.1, 0.01, 0.001])
    check("rope_linear(factor=4)", [0.25, 0.025, 0.0025, 0.00025])
    check("rope_ntk(factor=8)", [1, 0.05, 0.0025, 0.000125])  # Divided by 8^(m/3).
    # Rotations within 2,000π positions: 1000, 100, 10, 1. Between 4 and 16: (10 - 4) / 12 = 1/2.
    llama = "rope_llama3(factor=2, original_length=%d, low_frequency_factor=%g, %s=%g)"
    check(
        llama % (6283, 4, "high_frequency_factor", 16),
        [
            1,
            0.1,
            0.01 * (0.5 + 0.25) + 0.01 * 0.25 * (6283 / 200 / math.pi - 10) / 6,
            0.0005,
        ],
    )
    # One rotation at m = log10(L / 2π) = 3, a thousand at m = 0: the ramp is m / 3, and
    # frequencies are multiplied by 1 - 3/4 · m/3.
    check(
        "rope_yarn(factor=4, original_length=6283, beta_fast=1000, beta_slow=1)",
        [1, 0.1 * 0.75, 0.01 * 0.5, 0.001 * 0.25],
    )


def test_attention_factors():
    """Golden values: 0.1 ln 32 + 1 of gpt-oss, 1 of DeepSeek-V3, sqrt(1 + ln 32 / ln 4096) of Phi-3
    mini; an explicit factor wins; logits have its square."""
    assert yarn_scale(32.0) == pytest.approx(1.3465735902799727)
    assert yarn_scale(40.0, 1.0, 1.0) == 1
    assert yarn_scale(40.0, 0.707, 1.4) == pytest.approx(1.2608037774 / 1.5164431236)
    q, k = queries_keys()
    plain = np.asarray(attention_logits(q, k, encodings.none(), {}))

    def scale(name, length=1):
        at = Context(
            positions_q=np.full(6, length - 1)
        )  # No rotation between equal positions.
        return math.sqrt(np.median(attention_logits(q, k, build(name), {}, at) / plain))

    yarn = "rope_yarn(factor=32, original_length=4096%s)"
    assert scale(yarn % "") == pytest.approx(1.3465735902799727, rel=1e-5)
    assert scale(yarn % ", attention_factor=1") == pytest.approx(1, rel=1e-5)
    assert scale(
        yarn % ", attention_factor=0.5, mscale=1, mscale_all_dim=2"
    ) == pytest.approx(0.5)
    longrope = (
        "rope_longrope(short=(1, 1, 1, 1), long=(1, 1, 1, 2), "
        "factor=32, original_length=4096)"
    )
    for length in (1, 5000):
        assert scale(longrope, length) == pytest.approx(1.1902380714238083, rel=1e-5)


def test_length_is_the_largest_position_of_each_row():
    w = np.array([[1, 0.1, 0.01, 0.001]], np.float32)
    x = queries_keys((2, 4, 2, 8))[0]
    rows = np.array([[0, 1, 0, 1], [0, 1, 2, 3]])  # Lengths 2 and 4.

    rotate = jax.jit(rotate_heads)
    name = "rope_dynamic_ntk(factor=3, original_length=2)"
    dynamic, _ = rotated(build(name).parts[0], x, rows, rows)
    # Rows do not change one another: the first is as long as the original length, for the second
    # the factor is 3 · 4/2 - 2 = 4.
    np.testing.assert_allclose(dynamic[0], rotate(x, rows, w)[0], atol=1e-6)
    by_4 = frequencies_of(build("rope_ntk(factor=4)"))[None]
    np.testing.assert_allclose(dynamic[1], rotate(x, rows, by_4)[1], atol=1e-6)
    # Queries far from few keys: what counts is the position, not how many keys there are.
    part = build(
        "rope_longrope(short=(1, 1, 1, 1), long=(2, 2, 2, 2), factor=1, original_length=8)"
    )
    for last, divisor in ((7, 1), (8, 2)):
        at = np.array([0, 1, 2, last])
        q, k = rotated(part.parts[0], x, at, range(4))
        np.testing.assert_allclose(k, rotate(x, np.arange(4), w / divisor), atol=1e-6)
        np.testing.assert_allclose(q, rotate(x, at, w / divisor), atol=1e-6)
        traced = jax.jit(
            lambda p: part.parts[0].map_qkv(
                {}, x, x, x, HookContext(positions_q=p, positions_k=range(4))
            )[0]
        )
        np.testing.assert_allclose(traced(at), q, atol=1e-6)


def test_what_depends_on_the_length_says_so():
    for name in (
        "rope_dynamic_ntk(factor=2, original_length=4)",
        "rope",
        "rope_linear(factor=2)",
    ):
        (part,) = build(name).parts
        assert (
            part.traits.cacheable == part.metadata.invariant == ("dynamic" not in name)
        )
