"""complex_order by hand."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import made

from pe_jax import encodings


def test_complex_order_rotates_each_token_by_its_own_frequencies():
    encoding, _ = made("complex_order(vocab_size=3)", hidden_size=2)
    params = {"complex_order": {"frequencies": np.float32([[0.0], [0.5], [2.0]])}}
    x = np.broadcast_to(np.float32([1.0, 0.0]), (1, 3, 2))
    tokens = np.array([[2, 1, 2]])
    at = np.array([[0, 3, 1]])
    found = jax.jit(
        lambda x: encodings.embed(
            x, encoding, params, encodings.Context(positions_q=at, tokens=tokens)
        )
    )(x)
    angle = np.array([0.0, 1.5, 2.0])
    np.testing.assert_allclose(
        found[0], np.stack([np.cos(angle), np.sin(angle)], -1), atol=1e-6
    )
    with pytest.raises(ValueError, match="tokens=tokens"):
        encodings.embed(x, encoding, params)
    with pytest.raises(ValueError, match="table of length 3"):
        encodings.embed(x, encoding, params, encodings.Context(tokens=tokens + 1))
