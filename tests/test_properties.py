"""Property metrics: golden values worked by hand, and the analytic facts of the paper's table 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import encodings, properties

# Off the diagonal: offsets +1 hold 1, 3; -1 hold 5, 5; +2 holds 2; -2 holds 2.
PHI = jnp.array([[9.0, 1.0, 2.0], [5.0, 9.0, 3.0], [2.0, 5.0, 9.0]])


def test_translation_invariance_by_hand():
    # Mean of the six is 3; squared deviations 4 + 0 + 4 + 4 + 1 + 1 = 14, of which only offset +1
    # (1 and 3 about 2) is unexplained: 2.
    assert float(properties.translation_invariance(PHI)) == pytest.approx(2 / 14)


def test_symmetry_by_hand():
    # (Φ - Φᵀ)/2 holds ±2, 0, ±1: 2·(4 + 0 + 1) = 10. Mean 5; deviations 3·16 + 16+9+0+4+9+0 = 86.
    assert float(properties.symmetry(PHI)) == pytest.approx(10 / 86)


def test_monotonicity_by_hand():
    # Row 0, right: Φ(0,1)=1 < Φ(0,2)=2, wrong. Row 2, left: Φ(2,1)=5 > Φ(2,0)=2, right.
    assert float(properties.monotonicity(PHI)) == pytest.approx(1 / 2)
    # By weight: |2 - 1| of |2 - 1| + |2 - 5|.
    assert float(properties.monotonicity(PHI, weighted=True)) == pytest.approx(1 / 4)
    four = jnp.array(
        [
            [0.0, 3.0, 2.0, 2.0],  # right: 3>2 ok, 3>2 ok, 2=2 half.
            [1.0, 0.0, 1.0, 4.0],  # right: 1<4 wrong.
            [7.0, 5.0, 0.0, 0.0],  # left: 5<7 wrong.
            [0.0, 1.0, 2.0, 0.0],  # left: 2>1, 2>0, 1>0 ok.
        ]
    )
    assert float(properties.monotonicity(four)) == pytest.approx(2.5 / 8)
    assert float(properties.monotonicity(four, 2)) == pytest.approx(2 / 4)


def test_constant_matrices_are_defined():
    for value in (0.0, 0.1, 1e6):
        phi = jnp.full((5, 5), value)
        assert float(properties.translation_invariance(phi)) == 0
        assert float(properties.symmetry(phi)) == 0
        assert float(properties.monotonicity(phi)) == 0.5
        assert float(properties.monotonicity(phi, weighted=True)) == 0.5


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), pairs=st.integers(1, 40))
def test_any_sinusoid_is_translation_invariant_and_symmetric(seed, pairs):
    w = np.random.default_rng(seed).uniform(0.01, 3, pairs).astype(np.float32)
    phi = properties.proximity(encodings.sinusoid(np.arange(64), w))
    assert float(properties.translation_invariance(phi)) == pytest.approx(0, abs=1e-5)
    assert float(properties.symmetry(phi)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("dim", "turn"), [(768, 43), (1024, 68), (128, 11), (64, 5)])
def test_turning_points(dim, turn):
    values = properties.psi(encodings.default_frequencies(dim), np.arange(512))
    assert int(properties.turning_point(values)) == turn
    assert values[0] == pytest.approx(dim / 2)


def test_a_random_table():
    table = jax.random.normal(jax.random.key(0), (512, 64))
    phi = properties.proximity(table)
    assert float(properties.translation_invariance(phi)) == pytest.approx(1, abs=0.02)
    assert float(properties.monotonicity(phi)) == pytest.approx(0.5, abs=0.02)
    assert float(properties.symmetry(phi)) == pytest.approx(0, abs=1e-6)


def test_float32_is_enough_at_length_512():
    """Against the definitions in float64, on a matrix whose mean dwarfs its deviations."""
    rng = np.random.default_rng(0)
    wide = (
        1e3 + rng.normal(size=(512, 512)) - 0.01 * np.abs(np.subtract.outer(*[np.arange(512)] * 2))
    )
    phi = jnp.asarray(wide, jnp.float32)
    exact = np.asarray(phi, np.float64)
    off = ~np.eye(512, dtype=bool)
    fit = np.zeros_like(exact)
    for m in range(-511, 512):
        i = np.arange(max(0, -m), min(512, 512 - m))
        fit[i, i + m] = exact[i, i + m].mean()
    expected = ((exact - fit)[off] ** 2).sum() / ((exact - exact[off].mean())[off] ** 2).sum()
    assert float(properties.translation_invariance(phi)) == pytest.approx(expected, rel=2e-3)
    expected = (((exact - exact.T) / 2) ** 2).sum() / ((exact - exact.mean()) ** 2).sum()
    assert float(properties.symmetry(phi)) == pytest.approx(expected, rel=2e-3)


def test_vmap_jit_and_leading_axes_agree():
    phi = jax.random.normal(jax.random.key(0), (2, 3, 9, 9))
    for metric in (
        properties.translation_invariance,
        properties.symmetry,
        properties.monotonicity,
        lambda p: properties.monotonicity(p, 4, weighted=True),
    ):
        each = np.array([[float(metric(m)) for m in row] for row in phi])
        np.testing.assert_allclose(metric(phi), each, rtol=1e-5)
        np.testing.assert_allclose(jax.vmap(jax.vmap(metric))(phi), each, rtol=1e-5)


def test_skip_leaves_out_the_first_position():
    phi = properties.proximity(encodings.sinusoid(np.arange(20), encodings.default_frequencies(8)))
    spoiled = phi.at[0].set(50.0).at[:, 0].set(-50.0)
    assert float(properties.translation_invariance(spoiled)) > 0.5
    assert float(properties.translation_invariance(spoiled, skip=1)) == pytest.approx(0, abs=1e-5)


def test_bad_windows():
    with pytest.raises(ValueError, match="between 2 and L - 1 = 2, got 3"):
        properties.monotonicity(PHI, 3)
    with pytest.raises(ValueError, match="at least 3 positions, got 2"):
        properties.translation_invariance(PHI, skip=1)
