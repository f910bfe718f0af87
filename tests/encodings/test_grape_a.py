"""GRAPE-A: as ALiBi, and slopes by hand."""

import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, qk

from pe_jax.encodings import Context


@pytest.mark.parametrize("gate", ["query", "key", "both"])
def test_grape_a_of_equal_slopes_is_alibi(gate):
    """Queries and keys without a part along v and u: softplus(0) = log 2 each."""
    encoding = build(f"grape_a(gate={gate!r})")
    q, k = (x * np.array([0.0] + [1.0] * 7, np.float32) for x in qk())
    along = np.eye(1, 8, dtype=np.float32).repeat(2, 0) * 5.0
    slopes = np.log(2) * (2 if gate == "both" else 1)
    raw = np.log(np.expm1(1 / slopes))  # softplus of it is 1 / slopes.
    params = {"scale": np.full(2, raw, np.float32), "query": along, "key": along}
    found = attention_logits(q, k, encoding, {"grape_a": params})
    expected = attention_logits(q, k, build("alibi"), {})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_grape_a_has_a_slope_for_each_query_and_key():
    encoding = build("grape_a", num_heads=1)
    q, k = np.zeros((2, 1, 2, 1, 8), np.float32)
    q[0, 1, 0, 0], k[0, 0, 0, 1] = np.sqrt(8) * 3.0, np.sqrt(8) * 2.0
    query, key = (
        np.eye(2, 8, dtype=np.float32)[:, None] * np.float32([7, 9])[:, None, None]
    )
    params = {"scale": np.zeros(1, np.float32), "query": query, "key": key}
    found = attention_logits(
        q, k, encoding, {"grape_a": params}, Context(positions_q=np.array([2, 12]))
    )
    softplus = lambda x: np.log1p(np.exp(x))
    slope = np.array(
        [[0, softplus(0) + softplus(0)], [softplus(3) + softplus(2), 0]]
    )  # By query and key.
    np.testing.assert_allclose(
        found[0, 0], -10 * np.log(2) * 2.0**-8 * slope, rtol=1e-5
    )
