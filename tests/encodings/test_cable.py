"""CABLE: by hand, as ALiBi and as fox."""

import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import draw, made_narrow

from pe_jax import encodings
from pe_jax.encodings import Context


def lengths(*of_tokens):
    """Hidden states whose first coordinate is the length of the token."""
    return np.multiply.outer([of_tokens], np.eye(8)[0]).astype(np.float32)


def test_cable_adds_up_the_lengths_between_query_and_key():
    first = np.outer(np.eye(8)[0], [1, 1]).astype(np.float32)
    params = {"cable": {"length": first, "weight": 2 * first}}
    x = lengths(1.0, 3.0, -5.0, 2.0)  # A negative one counts 0.
    zero = np.zeros((1, 4, 2, 4), np.float32)
    context = Context(positions_q=range(4), x_k=x)
    plain = made_narrow("cable(weighted=False)")[0]
    found = attention_logits(zero, zero, plain, params, context)[0, 1]
    s = np.array([1, 4, 4, 6])
    expected = -np.abs(s[:, None] - s)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    weighted = attention_logits(zero, zero, made_narrow("cable")[0], params, context)[
        0, 1
    ]
    g = np.log1p(np.exp(2 * x[0, :, 0]))
    np.testing.assert_allclose(weighted, g[:, None] * expected, rtol=1e-5)


def test_cable_of_tokens_of_one_length_is_alibi():
    first = np.outer(np.eye(8)[0], [2.0**-4, 2.0**-8]).astype(np.float32)
    zero = np.zeros((1, 5, 2, 4), np.float32)
    found = attention_logits(
        zero, zero, made_narrow("cable(weighted=False)")[0], {"cable": {"length": first}},
        Context(positions_q=range(5), x_k=lengths(*[1.0] * 5)),
    )  # fmt: skip
    np.testing.assert_allclose(
        found, attention_logits(zero, zero, encodings.alibi(num_heads=2), {}), atol=1e-6
    )


def test_cable_of_the_published_code():
    """Lengths softplus(x·a + b) = -log σ(-x·a - b), without weights: `fox` with other signs."""
    encoding, params = made_narrow("cable(weighted=False, gate='softplus')")
    assert set(params["cable"]) == {"length", "bias"}
    a, b, x = draw(8, 2), draw(2), draw(1, 6, 8)
    zero, context = (
        np.zeros((1, 6, 2, 4), np.float32),
        Context(positions_q=range(6), x_k=x),
    )
    found = attention_logits(
        zero, zero, encoding, {"cable": {"length": a, "bias": b}}, context
    )
    fox = encodings.fox(hidden_size=8, num_heads=2)
    side = {"kernel": -a, "bias": -b}
    expected = attention_logits(
        zero, zero, fox, {"fox": {"left": side, "right": side}}, context
    )
    left = np.tri(6, dtype=bool)
    np.testing.assert_allclose(found[..., left], expected[..., left], atol=1e-5)


def test_cable_says_what_it_needs():
    encoding, params = made_narrow("cable")
    q = draw(1, 3, 2, 4)
    with pytest.raises(ValueError, match=r"cable computes its terms .*x_k=x"):
        attention(q, q, q, encoding, params)
    with pytest.raises(
        ValueError, match="cable needs .* every query must be among the keys"
    ):
        attention(
            q,
            q,
            q,
            encoding,
            params,
            Context(positions_q=range(3, 6), positions_k=range(3), x_k=draw(1, 3, 8)),
        )
