"""Sandwich by hand, and as the product of its position vectors."""

import numpy as np
from helpers.small_encodings import bias_at


def test_sandwich_by_hand():
    found = bias_at(
        "sandwich(dim=4, base=100)", {}, [0, 2, -2]
    )  # w = 1/10 and 1/100, c = 4 and 8.
    drop = np.cos(0.2) + np.cos(0.02) - 2
    np.testing.assert_allclose(
        found, [[0, 0], [drop / 4, drop / 8], [drop / 4, drop / 8]], atol=1e-7
    )


def test_sandwich_decreases_up_to_an_offset_of_thirteen():
    found = bias_at("sandwich", {}, np.arange(200))[:, 0]
    assert np.argmax(np.diff(found) > 0) == 13
    assert found[50] > found[100] > found[199]


def test_sandwich_is_the_product_of_its_position_vectors():
    """Up to what does not depend on the key, and far out."""
    x = np.arange(2**17, 2**17 + 50)
    w = 1e4 ** (-2 * np.arange(1, 65) / 128)
    p = np.concatenate([np.sin(np.outer(x, w)), np.cos(np.outer(x, w))], axis=1)
    found = bias_at("sandwich", {}, x[None] - x[:, None], num_heads=8)
    for h in (0, 7):
        np.testing.assert_allclose(found[..., h], (p @ p.T - 64) / (h + 1), atol=1e-3)
