"""Fourier features start near a Gaussian kernel."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build


def test_fourier_features_start_near_a_gaussian_kernel():
    encoding = build("fourier_features(features=4096, gamma=10)")
    w = jax.jit(encoding.init)(jax.random.key(1))["fourier_features"]["frequencies"][0]
    kernel = np.cos(np.array([0.0, 5.0, 10.0, 40.0])[:, None] * np.asarray(w)).mean(-1)
    np.testing.assert_allclose(kernel, np.exp([0, -1 / 8, -1 / 2, -8]), atol=0.05)
    with pytest.raises(ValueError, match="features=3"):
        build("fourier_features(features=3)")
