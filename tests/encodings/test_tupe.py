"""TUPE: the first token's own parameters, the table."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import draw, made

from pe_jax.encodings import Context


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def test_tupe_resets_what_the_first_token_has_to_do_with_others():
    encoding, params = made("tupe")
    theta = np.float32([[1.0, 2.0], [3.0, 4.0]])
    params["tupe"]["theta"] = theta
    q = np.zeros((2, 6, 2, 8), np.float32)
    found = attention_logits(q, q, encoding, params)
    np.testing.assert_array_equal(
        found[0, :, 0], np.broadcast_to(theta[0][:, None], (2, 6))
    )
    np.testing.assert_array_equal(
        found[0, :, 1:, 0], np.broadcast_to(theta[1][:, None], (2, 5))
    )
    tied, _ = made("tupe(untied_cls=False)")
    own = {"tupe": {k: v for k, v in params["tupe"].items() if k != "theta"}}
    np.testing.assert_array_equal(
        attention_logits(q, q, tied, own)[..., 1:, 1:], found[..., 1:, 1:]
    )


def test_tupe_scales_the_content_and_has_as_many_positions_as_its_table():
    encoding, params = made("tupe")
    q, k, _ = qkv()
    zeros = jax.tree.map(np.zeros_like, params)
    found = attention_logits(q, k, encoding, zeros)
    np.testing.assert_allclose(found, np.einsum("bqhd,bkhd->bhqk", q, k) / 4, atol=1e-6)
    with pytest.raises(ValueError, match="positions 8 to 13 do not fit .* length 12"):
        attention_logits(q, k, encoding, params, Context(positions_q=range(8, 14)))
    longer = encoding.resize(params, 20, "interpolate")
    assert longer["tupe"]["table"].shape == (20, 16)
    assert np.isfinite(
        attention_logits(q, k, encoding, longer, Context(positions_q=range(8, 14)))
    ).all()
