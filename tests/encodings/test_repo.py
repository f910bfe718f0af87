"""RePo: tokens with the same content are at one position, wherever they are."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, qk

from pe_jax.encodings import Context


def test_positions_are_those_of_the_network():
    """With an output of 1, 2, .. for the tokens, logits are RoPE's at these positions."""
    encoding = build("repo(rank=1)")
    x = np.zeros((1, 6, 16), np.float32)
    x[..., 0], x[0, :, 1] = 1.0, [3, 1, 4, 1, 5, 9]
    silu_of_1 = 1 / (1 + np.exp(-1.0))
    gate, content = np.zeros((2, 16, 1), np.float32)
    gate[0], content[1] = 1, 1 / silu_of_1
    params = {"gate": gate, "content": content, "out": np.ones((1, 2), np.float32)}
    q, k = (y[:1] for y in qk())
    found = attention_logits(q, k, encoding, {"repo": params}, Context(x_q=x, x_k=x))
    at = Context(positions_q=x[0, :, 1].astype(int))
    np.testing.assert_allclose(
        found, attention_logits(q, k, build("rope"), {}, at), atol=1e-5
    )


def test_repo_says_what_it_needs():
    encoding = build("repo")
    params = encoding.init(jax.random.key(0))
    assert params["repo"]["gate"].shape == (16, 2)
    q = draw(1, 6, 2, 8)
    with pytest.raises(ValueError, match="repo computes its terms from hidden states"):
        attention(q, q, q, encoding, params)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        build("repo(rank=0)")
