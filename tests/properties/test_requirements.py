"""The requirements, on encodings whose answers are known: an index, its share of the length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.properties import distinctness, norm_growth, proximity, relative_change

AT = np.arange(32)


def index(x):
    """The bare index: large values for longer inputs."""
    return jnp.asarray(x, jnp.float32)[:, None]


def share(x):
    """The share of the length: what it means varies with the length."""
    return index(x) / len(x)


def sinusoid(x):
    return encodings.sinusoid(jnp.asarray(x), encodings.default_frequencies(16))


def test_unique():
    """Neighbours of the index are 1 apart; root mean square of |x - y| over 3 positions: √2."""
    assert distinctness(index(AT[:3])) == pytest.approx(2**-0.5)
    assert distinctness(sinusoid(AT)) > 0.1
    twice = jnp.concatenate([sinusoid(AT), sinusoid(AT[5:6])])
    assert distinctness(twice) == 0
    assert distinctness(jnp.zeros((4, 3))) == 0
    both = distinctness(jnp.stack([sinusoid(AT), sinusoid(AT) * 7]))
    np.testing.assert_allclose(both[0], both[1], rtol=1e-5)


def test_nearly_equal_points_are_distinct():
    """By differences: as norms minus dot products these would be 0 in float32."""
    points = 1000.0 + jnp.array([[0.0], [0.01], [1.0]])
    assert distinctness(points) == pytest.approx(
        0.01 / np.sqrt((0.01**2 + 1 + 0.99**2) / 3), 0.01
    )


def test_bounded():
    assert norm_growth(index(AT), index(AT * 8)) == pytest.approx(8)
    assert norm_growth(sinusoid(AT), sinusoid(AT * 8)) == pytest.approx(1)
    assert norm_growth(share(AT), share(AT * 8)) == pytest.approx(8)
    zeros, ones = jnp.zeros((4, 2)), jnp.ones((3, 2))
    assert norm_growth(zeros, zeros) == 1
    assert norm_growth(zeros, ones) == jnp.inf
    assert norm_growth(ones, zeros) == 0


def test_independent_of_the_length():
    def by_length(vectors):
        whole = np.arange(2 * len(AT))
        return relative_change(
            proximity(vectors(AT)), proximity(vectors(whole))[: len(AT), : len(AT)]
        )

    assert by_length(index) == by_length(sinusoid) == 0
    phi = proximity(share(AT))[~np.eye(len(AT), dtype=bool)]
    quarter = 0.75**2 * float(
        (phi**2).mean() / phi.var()
    )  # What every product becomes.
    assert by_length(share) == pytest.approx(quarter, 1e-4)


def test_agreement_under_shifts():
    by_shift = lambda vectors: relative_change(
        proximity(vectors(AT)), proximity(vectors(AT + 100))
    )
    assert by_shift(sinusoid) < 1e-9
    assert by_shift(index) > 10
    table = jax.random.normal(jax.random.key(0), (132, 64))
    assert by_shift(lambda x: table[x]) == pytest.approx(2, abs=0.5)


def test_constant_proximities():
    even = jnp.full((5, 5), 0.3)
    for phi in (even, 0 * even, 1e30 * even, 1e-30 * even):
        assert relative_change(phi, phi) == 0
        assert relative_change(phi, phi * (1 + 1e-7)) == 0  # Up to rounding.
        assert relative_change(phi, jnp.maximum(3 * phi, 1e-31)) == 1
    two = jax.jit(relative_change)(jnp.stack([even, 0 * even]), jnp.stack([even, even]))
    np.testing.assert_array_equal(two, [0, 1])
    slope = jax.grad(lambda phi: relative_change(phi, even + 1))(even)
    assert np.isfinite(slope).all()


def test_changes_have_no_unit():
    phi = proximity(share(AT))
    expected = float(relative_change(phi, phi[::-1]))
    assert expected > 0.1
    for unit in (1e30, 1e-30):
        changed = float(relative_change(unit * phi, unit * phi[::-1]))
        assert changed == pytest.approx(expected, rel=1e-5)
        assert distinctness(unit * index(AT[:3])) == pytest.approx(2**-0.5)
        assert norm_growth(unit * index(AT), unit * index(AT * 8)) == pytest.approx(8)


def test_the_diagonal_does_not_count():
    phi = proximity(sinusoid(AT))
    diagonal = jnp.eye(len(AT), dtype=bool)
    assert relative_change(phi, jnp.where(diagonal, 5.0, phi)) == 0
    assert relative_change(jnp.where(diagonal, jnp.nan, phi), phi) == 0


def test_fewer_than_two_positions():
    phi = jnp.full((1, 1), 0.3)
    assert relative_change(phi, phi + 1) == 0
    for count in (0, 1):
        with pytest.raises(ValueError, match=f"at least two points, got {count}"):
            distinctness(phi[:count])


def test_what_is_not_finite_is_nan():
    bad = sinusoid(AT).at[3, 0].set(jnp.nan)
    assert jnp.isnan(distinctness(bad))
    assert jnp.isnan(norm_growth(sinusoid(AT), bad))
    assert jnp.isnan(relative_change(proximity(bad), proximity(bad)))
