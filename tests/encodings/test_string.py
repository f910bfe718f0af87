"""STRING: as RoPE, and in another basis."""

import jax
import numpy as np
from helpers.compiled import attention_logits
from helpers.small_encodings import build, draw, grid, qk

from pe_jax.encodings import Context


def test_string_starts_as_rope():
    q, k = qk()
    at = np.arange(6) + 2**17
    encoding = build("string")
    params = encoding.init(jax.random.key(0))
    found = attention_logits(q, k, encoding, params, Context(positions_q=at))
    np.testing.assert_allclose(
        found, attention_logits(q, k, build("rope"), {}), atol=2e-3
    )
    axial = build("string(axes=2, base=100)")
    w = axial.init(jax.random.key(0))["string"]["frequencies"]
    np.testing.assert_allclose(w, [[1, 0.1, 0, 0], [0, 0, 1, 0.1]], rtol=1e-6)


def test_string_rotates_in_another_basis_that_shifts_leave_alone():
    """Generators Pᵀ L_a P commute: exp of their sum depends on differences alone."""
    encoding = build("string(axes=2, per_head=True)")
    params = {
        "skew": draw(2, 28, seed=3),
        "frequencies": draw(2, 2, 4, seed=4),
    }
    q, k = qk()
    found = attention_logits(
        q, k, encoding, {"string": params}, Context(positions_q=grid(2, 3))
    )
    shifted = Context(positions_q=grid(2, 3) + np.array([1000, -300]))
    far = attention_logits(q, k, encoding, {"string": params}, shifted)
    np.testing.assert_allclose(far, found, atol=2e-3)
    plain = {**params, "skew": np.zeros_like(params["skew"])}
    other = attention_logits(
        q, k, encoding, {"string": plain}, Context(positions_q=grid(2, 3))
    )
    np.testing.assert_allclose(
        np.diagonal(other, axis1=2, axis2=3),
        np.diagonal(found, axis1=2, axis2=3),
        atol=1e-5,
    )  # P is orthogonal.
    assert np.abs(other - found).max() > 0.1
