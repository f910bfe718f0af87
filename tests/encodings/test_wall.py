"""Wall attention where gates are open or equal, and what it needs."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, qk

from pe_jax.encodings import Context


def test_equal_gates_decay_with_the_distance():
    """Open gates change nothing; gates of 1/2 halve products with every token."""
    q, k = qk()
    x = draw(2, 6, 16)
    plain = np.asarray(attention_logits(q, k, build("causal"), {}))
    distance = np.maximum(np.arange(6)[:, None] - np.arange(6), 0)
    for bias, gate in ((100, 1.0), (0, 0.5)):
        encoding = build(f"wall(gate_bias={bias}, stddev=0)+causal")
        params = encoding.init(jax.random.key(0))
        found = attention_logits(q, k, encoding, params, Context(x_q=x, x_k=x))
        np.testing.assert_allclose(
            np.tril(found), np.tril(plain * gate**distance), atol=1e-5
        )


def test_wall_says_what_it_needs():
    q = draw(1, 6, 2, 8)
    encoding = build("wall+causal")
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match="wall computes its terms from hidden states"):
        attention(q, q, q, encoding, params)
    with pytest.raises(ValueError, match="needs causal attention"):
        attention(q, q, q, build("wall"), params)
