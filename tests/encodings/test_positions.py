"""Positions that do not fit are errors, and of every type that does the numbers are the same."""

import functools

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.slow import slow_except
from helpers.small_encodings import SMALL

from pe_jax import encodings
from pe_jax.attention import cached_attention, init_cache
from pe_jax.encodings import Context

B, L, H, d = 2, 6, 4, 8
SIZES = {"hidden_size": 32, "head_size": d, "num_heads": H, "max_length": 16}
Q, K, V = np.random.default_rng(0).normal(size=(3, B, L, H, d)).astype(np.float32)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


@functools.cache
def logits_of(name, *positions):
    encoding = build(name)
    context = Context(positions_q=np.array(positions))
    return attention_logits(
        Q, K, encoding, jax.jit(encoding.init)(jax.random.key(0)), context
    )


@pytest.mark.parametrize("name", ["t5", "deberta"])
def test_real_positions_are_an_error_where_buckets_are_of_integers(name):
    encoding = encodings.from_name(name, **SMALL)
    q = np.zeros((1, 2, 2, 4), np.float32)
    context = Context(
        positions_q=np.array([0.0, 0.5]),
        projections=(lambda x: x.reshape(-1, 2, 4),) * 2,
    )
    with pytest.raises(
        ValueError, match="must be integers for a learned table, got float"
    ):
        attention(q, q, q, encoding, encoding.init(jax.random.key(0)), context)


@pytest.mark.parametrize(
    "dtype",
    slow_except([np.uint8], [np.uint8, np.uint16, np.uint32, np.int8, np.int16]),
)
@pytest.mark.parametrize(
    "name",
    ["rope+causal", "alibi+causal", "t5", "learned_relative(max_distance=3)", "fire"],
)
def test_narrow_and_unsigned_positions(name, dtype):
    encoding, positions = build(name), np.array([0, 1, 2, 50, 120, 127])
    params = jax.jit(encoding.init)(jax.random.key(0))
    expected = logits_of(name, *positions.tolist())
    run = jax.jit(
        lambda x: attention_logits(Q, K, encoding, params, Context(positions_q=x))
    )
    narrow = positions.astype(dtype)
    np.testing.assert_allclose(run(narrow), expected, atol=1e-5)
    other = attention_logits(Q, K, encoding, params, Context(positions_q=narrow))
    np.testing.assert_allclose(other, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [bool, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["rope", "causal", "learned_relative(max_distance=3)"])
def test_positions_that_are_no_numbers_or_too_coarse(name, dtype):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match="must be integers, float32 or float64, got"):
        attention(
            Q, K, V, encoding, params, Context(positions_q=np.arange(L).astype(dtype))
        )
    absolute = build("sinusoidal_absolute")
    x = np.zeros((B, L, 32), np.float32)
    with pytest.raises(ValueError, match="must be integers, float32 or float64, got"):
        encodings.embed(
            x, absolute, {}, Context(positions_q=np.arange(L).astype(dtype))
        )


@pytest.mark.parametrize("name", ["causal", "rope", "alibi", "fox"])
def test_positions_of_more_rows_than_the_batch(name):
    """They were broadcast: three outputs of one input."""
    encoding, positions = build(name), np.tile(np.arange(L), (3, 1))
    params, x = (
        jax.jit(encoding.init)(jax.random.key(0)),
        np.ones((1, L, H * d), np.float32),
    )
    context = Context(positions_q=positions, x_q=x, x_k=x)
    with pytest.raises(ValueError, match="positions of q have 3 rows for a batch of 1"):
        attention(Q[:1], K[:1], V[:1], encoding, params, context)
    with pytest.raises(ValueError, match="positions of k have 3 rows for a batch of 1"):
        attention(
            Q[:1],
            K[:1],
            V[:1],
            encoding,
            params,
            Context(positions_q=range(L), positions_k=positions),
        )
    for rows in (1, 2):  # Of the batch, or of each row.
        x = np.ones((2, L, H * d), np.float32)
        attention(
            Q,
            K,
            V,
            encoding,
            params,
            Context(positions_q=positions[:rows], x_q=x, x_k=x),
        )


def test_positions_of_more_rows_than_an_input():
    absolute, grid = build("sinusoidal_absolute"), build("sinusoidal_2d")
    x = np.ones((1, L, H * d), np.float32)
    with pytest.raises(
        ValueError, match=r"positions of x have 2 rows for a batch of 1.*\[L\]"
    ):
        encodings.embed(
            x, absolute, {}, Context(positions_q=np.tile(np.arange(L), (2, 1)))
        )
    pairs = np.ones((L, 2), np.int32)  # Of two axes, [L, 2].
    assert encodings.embed(x, grid, {}, Context(positions_q=pairs)).shape == x.shape
    with pytest.raises(ValueError, match=r"have 2 rows for a batch of 1.*\[L, axes\]"):
        encodings.embed(x, grid, {}, Context(positions_q=np.stack([pairs, pairs])))


def test_unsigned_positions_in_a_cache():
    encoding = build("alibi+causal")
    cache = init_cache(encoding, B, L, num_kv_heads=H, head_size=d, hidden_size=32)
    context = Context(positions_q=np.arange(L, dtype="u4"))
    # The cache is a constant of the program.
    out, _ = jax.jit(
        lambda: cached_attention(Q, K, V, cache, encoding, context=context)
    )()
    np.testing.assert_allclose(out, attention(Q, K, V, encoding), atol=1e-5)


def test_positions_of_queries_and_keys_default_to_one_another():
    encoding = build("rope+causal")
    positions = np.array([[0, 1, 2, 3, 4, 5], [3, 7, 8, 9, 20, 30]])
    expected = attention(
        Q, K, V, encoding, context=Context(positions_q=positions, positions_k=positions)
    )
    for context in (Context(positions_q=positions), Context(positions_k=positions)):
        np.testing.assert_array_equal(
            attention(Q, K, V, encoding, context=context), expected
        )
    for context in (None, Context(positions_q=range(2)), Context(positions_k=range(L))):
        with pytest.raises(
            ValueError, match="2 queries to 6 keys needs the positions of both"
        ):
            attention(Q[:, :2], K, V, encoding, context=context)


@pytest.mark.parametrize(
    "positions",
    [
        range(2**31 - 8, 2**31 - 8 + L),
        np.arange(L) + 2**31,
        -(np.arange(L) + 2**30),
        np.arange(L, dtype=np.uint64) + np.uint64(2**63),
        np.arange(L, dtype=np.float32) + 2**24,
    ],
)
def test_positions_too_far_out(positions):
    with pytest.raises(ValueError, match="positions of q must be between"):
        attention(Q, K, V, build("rope"), {}, Context(positions_q=positions))


def test_positions_that_are_scaled_are_exact():
    """From 2^24 on, float32 has no neighbours to scale."""
    encoding, far = build("interpolated(rope, factor=2)"), np.arange(L) + 2**24
    with pytest.raises(
        ValueError, match="positions of encodings that scale them must be between"
    ):
        attention(Q, K, V, encoding, {}, Context(positions_q=far))
    run = jax.jit(lambda at: attention(Q, K, V, encoding, {}, Context(positions_q=at)))
    assert np.isnan(run(far)).all() and np.isfinite(run(far - L)).all()
