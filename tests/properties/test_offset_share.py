"""Share of mean logits that a function of the offset explains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import properties

LENGTH = 12
OFFSETS = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
INNER = (
    (OFFSETS != 0) & (np.arange(LENGTH) > 0) & (np.arange(LENGTH)[:, None] < LENGTH - 1)
)


def naive(phi, where):
    """Least squares over one column for each row and each offset, in float64."""
    rows, columns = np.nonzero(where)
    length = len(where)
    design = np.zeros((len(rows), length + 2 * length - 1))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), 2 * length - 1 + columns - rows] = 1
    values = np.asarray(phi, np.float64)[rows, columns]
    residual = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    of_rows = design[:, :length]
    centered = values - of_rows @ np.linalg.lstsq(of_rows, values, rcond=None)[0]
    return (centered**2).mean(), (centered**2).mean() - (residual**2).mean()


@pytest.mark.parametrize("where", [np.ones((LENGTH, LENGTH), bool), INNER, OFFSETS < 0])
def test_equals_least_squares(where):
    phi = jax.random.normal(jax.random.key(0), (2, LENGTH, LENGTH)) + jnp.abs(OFFSETS)
    found = properties.offset_variance(phi, where)
    expected = np.array([naive(matrix, where) for matrix in phi]).T
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def off_diagonal(mask):
    return mask & ~np.eye(len(mask), dtype=bool)


def test_entries_in_unconnected_groups_equal_least_squares():
    """Rows and offsets need not be connected; each group of them has a level of its own."""
    rng, index = np.random.default_rng(0), np.arange(6)
    numbers = np.array([0, 0, 1, 1, 1, 1])
    chunks = off_diagonal(
        index[:, None] // 2 == index // 2
    )  # Offset 1 in even rows, -1 in others.
    documents = off_diagonal(numbers[:, None] == numbers)
    random = [off_diagonal(rng.random((6, 6)) < rng.random()) for _ in range(100)]
    masks = np.stack([chunks, documents, np.zeros((6, 6), bool), *random])
    phi = rng.normal(size=(len(masks), 6, 6)).astype(np.float32)
    found = np.stack(jax.vmap(properties.offset_variance)(phi, masks), axis=-1)
    expected = [
        naive(*pair) if pair[1].any() else (0, 0)
        for pair in zip(phi, masks, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=3e-6)
    gradient = jax.grad(lambda phi: properties.offset_variance(phi, documents)[1])(
        phi[0]
    )
    assert (
        np.isfinite(gradient).all()
        and gradient.any()
        and not gradient[~documents].any()
    )


def test_levels_of_unconnected_groups_are_zero():
    """Rows 0 and 2 see offset 1, rows 1 and 3 see offsets 2 and -1: two groups."""
    where = np.zeros((4, 4), bool)
    where[[0, 2, 1, 1, 3], [1, 3, 3, 0, 2]] = True
    phi = np.zeros((4, 4), np.float32)
    phi[[1, 1], [3, 0]] = 5, 1
    curve = properties.offset_fit(phi, where)  # Offsets -3 to 3.
    np.testing.assert_allclose(curve, [0, 0, -2, 0, 0, 2, 0], atol=1e-6)


def test_bias_of_the_offset_is_explained_whatever_the_levels_of_rows():
    levels = jax.random.normal(jax.random.key(0), (LENGTH, 1)) * 10
    bias = jnp.sin(OFFSETS * 1.0)
    whole, explained = properties.offset_variance(bias + levels, INNER)
    assert float(explained / whole) == pytest.approx(1, abs=1e-5)
    curve = properties.offset_fit(bias + levels, INNER)
    apart = curve[LENGTH - 1 + OFFSETS] - bias
    assert np.ptp(np.where(INNER, apart, apart[0, 1])) < 1e-4  # Equal up to a level.


def test_column_effects_are_explained_in_part_only():
    phi = jnp.broadcast_to(
        jax.random.normal(jax.random.key(0), (LENGTH,)), (LENGTH, LENGTH)
    )
    whole, explained = properties.offset_variance(phi)
    assert 0 < explained < 0.5 * whole


def test_errors_are_taken_off_the_whole():
    """The mean of noisy samples has the share of what they are samples of."""
    true = jnp.abs(OFFSETS) * 0.1 + 0.3 * jax.random.normal(
        jax.random.key(0), (LENGTH, LENGTH)
    )
    samples = true + 2 * jax.random.normal(jax.random.key(1), (100, 40, LENGTH, LENGTH))
    error = samples.std(1, ddof=1) / 40**0.5
    whole, explained = properties.offset_variance(samples.mean(1), None, error)
    expected, _ = properties.offset_variance(true)
    assert float(whole.mean()) == pytest.approx(float(expected), rel=0.1)
    assert (whole >= explained).all()


def test_constant_rows_have_no_variance():
    phi = jnp.broadcast_to(jnp.arange(LENGTH * 1.0)[:, None], (LENGTH, LENGTH))
    np.testing.assert_allclose(properties.offset_variance(phi), 0, atol=1e-6)
