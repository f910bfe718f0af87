"""FIRE against the paper's listing."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import bias_between

from pe_jax import encodings


def listing(params, i, j, threshold):
    """The paper's listing, for one pair, in NumPy."""
    psi = lambda x: np.log(np.abs(params["c"] * x) + 1)
    x = psi(i - j) / (psi(np.maximum(i, np.abs(params["scale"] * threshold))) + 1e-6)
    hidden = np.maximum(x * params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.mark.parametrize("directed", [False, True])
def test_fire_is_the_papers_for_keys_to_the_left(directed):
    """Positions below and above the threshold."""
    encoding = encodings.fire(num_heads=2, threshold=6.0, directed=directed)
    params = encoding.init(jax.random.key(0))
    found = np.asarray(bias_between(encoding, params, range(20)))
    for i, j in ((0, 0), (5, 5), (5, 0), (6, 2), (19, 3), (19, 18)):
        np.testing.assert_allclose(
            found[:, i, j], listing(params["fire"], i, j, 6.0), atol=1e-5
        )
    assert np.allclose(found, found.swapaxes(1, 2)) != directed


def test_fire_depends_on_the_offset_alone_below_its_threshold():
    encoding = encodings.fire(num_heads=2, threshold=100.0)
    params = encoding.init(jax.random.key(0))
    near, far = (bias_between(encoding, params, range(n, n + 4)) for n in (0, 90))
    np.testing.assert_allclose(near, far, atol=1e-6)
    assert np.abs(near - bias_between(encoding, params, range(900, 904))).max() > 1e-3
