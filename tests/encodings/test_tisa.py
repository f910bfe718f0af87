"""TISA by hand."""

import jax
import numpy as np
from helpers.small_encodings import bias_at


def test_tisa_by_hand():
    own = {
        "amplitude": [[2.0, 0.0]],
        "sharpness": [[-0.5, 1.0]],
        "centre": [[1.0, 0.0]],
    }
    found = bias_at(
        "tisa(kernels=1)",
        jax.tree.map(np.float32, own, is_leaf=lambda x: type(x) is list),
        [1, 3, -1],
    )
    np.testing.assert_allclose(
        found[:, 0], [2, 2 * np.exp(-2), 2 * np.exp(-2)], rtol=1e-6
    )
    np.testing.assert_array_equal(found[:, 1], 0)
