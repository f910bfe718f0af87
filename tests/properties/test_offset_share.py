"""Share of mean logits that a function of the offset explains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import properties

LENGTH = 12
OFFSETS = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
INNER = (OFFSETS != 0) & (np.arange(LENGTH) > 0) & (np.arange(LENGTH)[:, None] < LENGTH - 1)


def naive(phi, where):
    """Least squares over one column for each row and each offset, in float64."""
    rows, columns = np.nonzero(where)
    design = np.zeros((len(rows), LENGTH + 2 * LENGTH - 1))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), 2 * LENGTH - 1 + columns - rows] = 1
    values = np.asarray(phi, np.float64)[rows, columns]
    residual = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    of_rows = design[:, :LENGTH]
    centred = values - of_rows @ np.linalg.lstsq(of_rows, values, rcond=None)[0]
    return (centred**2).mean(), (centred**2).mean() - (residual**2).mean()


@pytest.mark.parametrize("where", [np.ones((LENGTH, LENGTH), bool), INNER, OFFSETS < 0])
def test_equals_least_squares(where):
    phi = jax.random.normal(jax.random.key(0), (2, LENGTH, LENGTH)) + jnp.abs(OFFSETS)
    found = properties.offset_variance(phi, where)
    expected = np.array([naive(matrix, where) for matrix in phi]).T
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_bias_of_the_offset_is_explained_whatever_the_levels_of_rows():
    levels = jax.random.normal(jax.random.key(0), (LENGTH, 1)) * 10
    bias = jnp.sin(OFFSETS * 1.0)
    whole, explained = properties.offset_variance(bias + levels, INNER)
    assert float(explained / whole) == pytest.approx(1, abs=1e-5)
    curve = properties.offset_fit(bias + levels, INNER)
    apart = curve[LENGTH - 1 + OFFSETS] - bias
    assert np.ptp(np.where(INNER, apart, apart[0, 1])) < 1e-4  # Equal up to a level.


def test_column_effects_are_explained_in_part_only():
    phi = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (LENGTH,)), (LENGTH, LENGTH))
    whole, explained = properties.offset_variance(phi)
    assert 0 < explained < 0.5 * whole


def test_errors_are_taken_off_the_whole():
    """The mean of noisy samples has the share of what they are samples of."""
    true = jnp.abs(OFFSETS) * 0.1 + 0.3 * jax.random.normal(jax.random.key(0), (LENGTH, LENGTH))
    samples = true + 2 * jax.random.normal(jax.random.key(1), (100, 40, LENGTH, LENGTH))
    error = samples.std(1, ddof=1) / 40**0.5
    whole, explained = properties.offset_variance(samples.mean(1), None, error)
    expected, _ = properties.offset_variance(true)
    assert float(whole.mean()) == pytest.approx(float(expected), rel=0.1)
    assert (whole >= explained).all()


def test_constant_rows_have_no_variance():
    phi = jnp.broadcast_to(jnp.arange(LENGTH * 1.0)[:, None], (LENGTH, LENGTH))
    np.testing.assert_allclose(properties.offset_variance(phi), 0, atol=1e-6)
