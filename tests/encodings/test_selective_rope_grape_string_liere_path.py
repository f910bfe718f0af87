"""Selective RoPE, GRAPE, STRING, LieRE, PaTH and others of 2025 and 2026, by hand.

The suite in pe_jax.testing does the rest, against tests/references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.encodings import Context
from pe_jax.encodings.content.short_convolution import short_convolution

SIZES = dict(hidden_size=16, head_size=8, num_heads=2, max_length=12)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def qk(length=6):
    return draw(2, length, 2, 8), draw(2, length, 2, 8, seed=1)


# --- the convolution ------------------------------------------------------------------------------


def test_a_convolution_starts_again_where_positions_do():
    x = np.array([1.0, 10, 100, 1000, 10000])[None, :, None].astype(np.float32)
    kernel = np.array([[3.0], [2.0], [1.0]], np.float32)
    whole = short_convolution(x, kernel, range(7, 12))[0, :, 0]
    np.testing.assert_array_equal(whole, [1, 12, 123, 1230, 12300])
    documents = short_convolution(x, kernel, np.array([[0, 1, 0, 1, 2]]))[0, :, 0]
    np.testing.assert_array_equal(documents, [1, 12, 100, 1200, 12300])
    padded = short_convolution(x, kernel, np.array([0, 0, 0, 1, 2]))[0, :, 0]
    np.testing.assert_array_equal(padded, [1, 10, 100, 1200, 12300])
    one = short_convolution(x[:, :1], kernel, range(1))
    np.testing.assert_array_equal(one, x[:, :1])


# --- selective_rope -------------------------------------------------------------------------------


def test_selective_rope_of_tokens_that_add_one_angle_is_rope():
    """Each half of the hidden state has length 1: its share of the angle is what U and V say."""
    encoding = build("selective_rope(rank=1, width=1, base=10000)")
    x = jnp.zeros((2, 6, 16)).at[..., [0, 8]].set(5.0)
    params = {
        "down": jnp.zeros((16, 1)).at[0].set(0.25).at[8].set(0.5),
        "up": jnp.full((1, 2, 4), 4.0),
        "convolution": jnp.full((1, 2, 4), 0.5),
    }
    q, k = qk()
    context = Context(range(6), x_q=x, x_k=x)
    found = attention_logits(q, k, encoding, {"selective_rope": params}, context)
    stretched = Context(1.5 * np.arange(6, dtype=np.float32))
    expected = attention_logits(q, k, build("rope"), {}, stretched)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_selective_rope_turns_by_what_is_between_query_and_key():
    encoding = build("selective_rope(stddev=0.7)")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    x = draw(2, 6, 16, seed=2)
    found = attention_logits(q, k, encoding, params, Context(range(6), x_k=x))
    # The convolution of tokens 4 and 5 sees token 1 no more.
    other = x.copy()
    other[:, 0] += 1.0
    changed = attention_logits(q, k, encoding, params, Context(range(6), x_k=other))
    np.testing.assert_allclose(changed[..., 4:, 4:], found[..., 4:, 4:], atol=1e-5)
    assert np.abs(changed[..., 0, 1] - found[..., 0, 1]).max() > 1e-3


def test_selective_rope_says_what_it_needs():
    encoding = build("selective_rope")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    with pytest.raises(ValueError, match=r"selective_rope computes .* x_k=x"):
        attention(q, k, k, encoding, params)
    with pytest.raises(ValueError, match="rank=0 and width=4"):
        build("selective_rope(rank=0)")
    with pytest.raises(ValueError, match="multiple of num_heads, got 16 and 3"):
        build("selective_rope", num_heads=3)
