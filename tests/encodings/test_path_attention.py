"""PaTH: reflections by hand."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, qk

from pe_jax.encodings import Context


def reflections(beta, **changes):
    """Parameters with which a token whose hidden state is e_n (n < 8) has w = e_n in each head."""
    return {
        "down": np.eye(16, 8, dtype=np.float32),
        "up": np.stack([np.eye(8, dtype=np.float32)] * 2, 1) * np.float32(1e3),
        "convolution": np.ones((1, 2, 8), np.float32),
        "beta": {
            "kernel": np.zeros((16, 2), np.float32),
            "bias": np.full(2, np.log(beta / (2 - beta)), np.float32),
        },
        **changes,
    }


def test_path_attention_reflects_keys_at_every_token_on_the_way():
    encoding = build("path_attention(rank=8, width=1)+causal")
    x = np.eye(16, dtype=np.float32)[[0, 1, 0, 2]][None]
    q, k = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 4, 2, 8), np.float32)
    params = {"path_attention": reflections(1.5)}
    logits = jax.jit(
        lambda x: attention_logits(
            q, k, encoding, params, Context(positions_q=range(4), x_k=x)
        )
    )
    found = np.asarray(logits(x))[0, 0]
    # A coordinate is multiplied by 1 - 1.5 at each token that has it as w.
    expected = np.array(
        [[8, 8, 8, 8], [6.5, 8, 8, 8], [5, 6.5, 8, 8], [3.5, 5, 6.5, 8]]
    )
    np.testing.assert_allclose(found * np.sqrt(8), expected, rtol=1e-5)
    found = np.asarray(logits(x[:, [0, 0, 0, 2]]))[0, 0]
    np.testing.assert_allclose(found[2, 0] * np.sqrt(8), 7 + 0.25, rtol=1e-5)


def test_path_attention_is_refused_without_causal_attention():
    encoding = build("path_attention")
    q, k = qk()
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"it multiplies .*'path_attention\+causal'"):
        attention(
            q, k, k, encoding, params, Context(positions_q=range(6), x_k=draw(2, 6, 16))
        )
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        build("path_attention(width=0)")
