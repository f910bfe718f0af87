"""Sinusoids and angles by hand, and far out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import encodings
from pe_jax.encodings.sinusoid import angles, rotate_pairs


def test_sinusoid_by_hand():
    # D = 4: frequencies 1 and 1/100; sine and cosine interleaved.
    assert encodings.default_frequencies(4) == pytest.approx([1.0, 0.01])
    p = encodings.sinusoid(jnp.array([0, 2]), encodings.default_frequencies(4))
    expected = [
        [0, 1, 0, 1],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    np.testing.assert_allclose(p, expected, atol=1e-6)


def test_sinusoid_of_negative_offsets_flips_sines_only():
    w = encodings.default_frequencies(6)
    right, left = encodings.sinusoid(jnp.array([5, -5]), w)
    np.testing.assert_allclose(
        left, right * jnp.tile(jnp.array([-1.0, 1.0]), 3), atol=1e-6
    )


@pytest.mark.parametrize("dim", [3, 0, -2])
def test_sinusoid_needs_an_even_dimension(dim):
    with pytest.raises(ValueError, match=f"must be even and positive, got {dim}"):
        encodings.default_frequencies(dim)


@settings(deadline=None, max_examples=25)
@given(i=st.integers(0, 600), j=st.integers(0, 600), seed=st.integers(0, 2**16))
def test_rotation_identity(i, j, seed):
    """q · P(j - i) = rotate(q, i) · P(j): exact, at any distance, for any frequencies."""
    rng = np.random.default_rng(seed)
    w = jnp.asarray(rng.uniform(0, 2, 4), jnp.float32)
    q = jnp.asarray(rng.normal(size=8), jnp.float32)
    left = q @ encodings.sinusoid(jnp.array(j - i), w)
    right = rotate_pairs(q, jnp.array(i), w) @ encodings.sinusoid(jnp.array(j), w)
    assert float(left) == pytest.approx(
        float(right), abs=3e-3
    )  # Angles to 1,200 in float32.


def test_angles_are_float32_under_bfloat16():
    w = jnp.asarray(encodings.default_frequencies(8), jnp.bfloat16)
    assert encodings.sinusoid(jnp.array([300]), w).dtype == jnp.float32
    x = jnp.ones((1, 8), jnp.bfloat16)
    assert rotate_pairs(x, jnp.array([300]), w).dtype == jnp.float32


@pytest.mark.parametrize("w", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize("shift", [2**17, 2**24 - 3, 2**30 - 8, -(2**30)])
def test_angles_far_out(w, shift):
    """A shift rotates by the same angle for every position: differences stay."""
    w = np.float32([w])
    compiled_angles = jax.jit(angles)
    near, far = (compiled_angles(np.arange(8) + by, w)[:, 0] for by in (0, shift))
    turn = np.exp(1j * np.asarray(far)) / np.exp(1j * np.asarray(near))
    np.testing.assert_allclose(turn, turn[0], atol=1e-5 if shift == 2**17 else 5e-4)
    summed = lambda w: angles(np.array([5, 2**17 + 3]), w).sum()
    slope = jax.jit(jax.grad(summed))(w)
    assert float(slope[0]) == pytest.approx(5 + 2**17 + 3)


def test_angles_of_positions_that_are_computed_twice(monkeypatch):
    """XLA may compute a position once for its rest and once more, with another last digit."""
    monkeypatch.setattr(jnp, "fmod", lambda x, size: x * np.float32(1 + 2**-22))
    x, w = np.array([-7.3, -0.2, 0.4, 5.7], np.float32), np.array([1, 0.01], np.float32)
    found = jax.jit(lambda x: angles(x, w))(x)
    np.testing.assert_allclose(found, x[:, None] * w, atol=1e-5)
