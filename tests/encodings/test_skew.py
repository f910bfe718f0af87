"""Exponentials of skew-symmetric matrices."""

from functools import partial

import jax
import numpy as np

from pe_jax.encodings.rotary.skew import rotation_of, skew_matrix


def test_exponentials_of_skew_matrices():
    rng = np.random.default_rng(0)

    @partial(jax.jit, static_argnums=1)
    def exponential(upper, size):
        skew = skew_matrix(upper, size)
        return skew, rotation_of(skew)

    for size, scale in ((2, 1e-4), (5, 1.0), (5, 20.0), (5, 300.0)):
        upper = scale * rng.normal(size=(4, size * (size - 1) // 2))
        skew, found = exponential(upper.astype(np.float32), size)
        np.testing.assert_array_equal(skew, -np.swapaxes(skew, 1, 2))
        np.testing.assert_array_equal(
            skew[:, 0, 1:], upper[:, : size - 1].astype(np.float32)
        )
        # By eigenvectors: i times a skew-symmetric matrix is Hermitian.
        values, vectors = np.linalg.eigh(1j * np.asarray(skew, np.float64))
        conjugate = vectors.conj().swapaxes(1, 2)
        expected = (vectors * np.exp(-1j * values)[:, None]) @ conjugate
        np.testing.assert_allclose(
            found, expected.real, atol=2e-6 * max(1, scale * size)
        )
    np.testing.assert_array_equal(
        exponential(np.zeros((1, 3), np.float32), 3)[1][0], np.eye(3)
    )
