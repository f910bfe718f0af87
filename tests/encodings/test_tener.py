"""TENER by hand."""

import numpy as np
from helpers.compiled import attention_logits
from helpers.small_encodings import made_narrow

from pe_jax.encodings import Context


def test_tener_by_hand():
    """Two dimensions, so that R_x = (sin x, cos x) with x = i - j; one head; real positions."""
    plain, scaled = (
        made_narrow(name, head_size=2, num_heads=1)[0]
        for name in ("tener", "tener(scale=True)")
    )
    params = {"tener": {"u": np.float32([[7.0, 0.0]]), "v": np.float32([[0.0, 11.0]])}}
    q = np.array([[2.0, 0.0], [0.0, 4.0]]).reshape(1, 2, 1, 2)
    k = np.array([[6.0, 1.0], [8.0, 1.0]]).reshape(1, 2, 1, 2)
    q, k = q.astype(np.float32), k.astype(np.float32)
    at = np.array([0.0, 0.7])
    found = attention_logits(q, k, plain, params, Context(positions_q=at))[0, 0]
    s, c = np.sin(0.7), np.cos(0.7)
    expected = [
        [9 * 6 + 11, 9 * 8 - 2 * s + 11 * c],
        [7 * 6 + 4 + 15 * c, 7 * 8 + 4 + 15],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    scaled = attention_logits(
        q,
        k,
        made_narrow("tener(scale=True)", head_size=2, num_heads=1)[0],
        params,
        Context(positions_q=at),
    )
    np.testing.assert_allclose(scaled[0, 0], found / np.sqrt(2), rtol=1e-5)
