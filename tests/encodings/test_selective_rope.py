"""Selective RoPE: as RoPE, and what it depends on."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, qk

from pe_jax.encodings import Context


def test_selective_rope_of_tokens_that_add_one_angle_is_rope():
    """Each half of the hidden state has length 1: its share of the angle is what U and V say."""
    encoding = build("selective_rope(rank=1, width=1, base=10000)")
    x, down = np.zeros((2, 6, 16), np.float32), np.zeros((16, 1), np.float32)
    x[..., [0, 8]], down[0], down[8] = 5.0, 0.25, 0.5
    up, convolution = (np.full((1, 2, 4), value, np.float32) for value in (4.0, 0.5))
    params = {"down": down, "up": up, "convolution": convolution}
    q, k = qk()
    context = Context(positions_q=range(6), x_q=x, x_k=x)
    found = attention_logits(q, k, encoding, {"selective_rope": params}, context)
    stretched = Context(positions_q=1.5 * np.arange(6, dtype=np.float32))
    expected = attention_logits(q, k, build("rope"), {}, stretched)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_selective_rope_turns_by_what_is_between_query_and_key():
    encoding = build("selective_rope(stddev=0.7)")
    params = jax.jit(encoding.init)(jax.random.key(0))
    q, k = qk()
    x = draw(2, 6, 16, seed=2)
    # The convolution of tokens 4 and 5 sees token 1 no more.
    other = x.copy()
    other[:, 0] += 1.0
    logits = jax.jit(
        lambda x: attention_logits(
            q, k, encoding, params, Context(positions_q=range(6), x_k=x)
        )
    )
    found, changed = np.asarray(logits(x)), np.asarray(logits(other))
    np.testing.assert_allclose(changed[..., 4:, 4:], found[..., 4:, 4:], atol=1e-5)
    assert np.abs(changed[..., 0, 1] - found[..., 0, 1]).max() > 1e-3


def test_selective_rope_says_what_it_needs():
    encoding = build("selective_rope")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    with pytest.raises(ValueError, match=r"selective_rope computes .*x_k=x"):
        attention(q, k, k, encoding, params)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        build("selective_rope(rank=0)")
    with pytest.raises(ValueError, match="multiple of num_heads .* got 16 and 3"):
        build("selective_rope", num_heads=3)
