"""GRAPE-M rotates the plane of two vectors."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build, mapped_queries, qk


def test_grape_m_rotates_the_plane_of_two_vectors():
    """a and b that are not orthogonal, of length 2 and 3 at 30 degrees: they span an area of 3."""
    encoding = build("grape_m")
    a, b = np.zeros((2, 2, 8), np.float32)
    a[:, 3], b[:, 3], b[:, 5] = 2.0, 3 * np.sqrt(3) / 2, 1.5
    params = {"a": a, "b": b, "frequencies": np.array([0.1, 0.02], np.float32)}
    (part,) = encoding.parts
    frequencies = jax.jit(part.metadata.frequencies)(params)
    np.testing.assert_allclose(frequencies, [[0.3], [0.06]], rtol=1e-6)
    q, _ = qk()
    at = np.array([0, 1, 4, 9, 11, 2**17])
    moved = mapped_queries(part, params, q, at)
    for head, frequency in enumerate((0.3, 0.06)):
        cos, sin = np.cos(frequency * at[:5]), np.sin(frequency * at[:5])
        x, y = q[:, :5, head, 3], q[:, :5, head, 5]
        found = moved[:, :5, head]
        np.testing.assert_allclose(found[..., 3], x * cos + y * sin, atol=1e-5)
        np.testing.assert_allclose(found[..., 5], y * cos - x * sin, atol=1e-5)
    rest = [0, 1, 2, 4, 6, 7]
    np.testing.assert_allclose(moved[..., rest], q[..., rest], atol=1e-6)
    np.testing.assert_allclose((moved**2).sum(-1), (q**2).sum(-1), rtol=1e-5)


def test_grape_m_starts_with_orthonormal_vectors_and_ropes_frequencies():
    params = build("grape_m(base=16)", num_heads=4).init(jax.random.key(0))["grape_m"]
    vectors = np.stack([params["a"], params["b"]], 1)
    gram = vectors @ vectors.swapaxes(1, 2)
    np.testing.assert_allclose(gram, np.tile(np.eye(2), (4, 1, 1)), atol=1e-6)
    np.testing.assert_allclose(params["frequencies"], [1, 0.5, 0.25, 0.125], rtol=1e-6)
    with pytest.raises(ValueError, match="head_size must be at least 2, got 1"):
        build("grape_m", head_size=1)
