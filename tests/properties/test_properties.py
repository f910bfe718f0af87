"""Property metrics: values computed by hand, and the analytic facts of the paper's table 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import encodings, properties

# Off the diagonal: offsets +1 hold 1, 3; -1 hold 5, 5; +2 holds 2; -2 holds 2.
PHI = np.float32([[9.0, 1.0, 2.0], [5.0, 9.0, 3.0], [2.0, 5.0, 9.0]])


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def changed(phi, *changes):
    """`phi` with other values, each `(index, value)`."""
    phi = np.array(phi, np.float32)
    for at, value in changes:
        phi[at] = value
    return phi


def test_translation_invariance_by_hand():
    # Mean of the six is 3; squared deviations 4 + 0 + 4 + 4 + 1 + 1 = 14, of which only offset +1
    # (1 and 3, with mean 2) is unexplained: 2.
    assert float(properties.translation_invariance(PHI)) == pytest.approx(2 / 14)


def test_symmetry_by_hand():
    # (Φ - Φᵀ)/2 holds ±2, 0, ±1: 2·(4 + 0 + 1) = 10. Mean 5; deviations 3·16 + 16+9+0+4+9+0 = 86.
    assert float(properties.symmetry(PHI)) == pytest.approx(10 / 86)


def test_monotonicity_by_hand():
    # Row 0, right: Φ(0,1)=1 < Φ(0,2)=2, wrong. Row 2, left: Φ(2,1)=5 > Φ(2,0)=2, right.
    assert float(properties.monotonicity(PHI)) == pytest.approx(1 / 2)
    # Weighted: |2 - 1| of |2 - 1| + |2 - 5|.
    assert float(properties.monotonicity(PHI, weighted=True)) == pytest.approx(1 / 4)
    four = np.float32(
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
        phi = np.full((5, 5), value, np.float32)
        assert float(properties.translation_invariance(phi)) == 0
        assert float(properties.symmetry(phi)) == 0
        assert float(properties.monotonicity(phi)) == 0.5
        assert float(properties.monotonicity(phi, weighted=True)) == 0.5


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), pairs=st.sampled_from([1, 2, 7, 40]))
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
    phi = properties.proximity(draw(512, 64))
    assert float(properties.translation_invariance(phi)) == pytest.approx(1, abs=0.02)
    assert float(properties.monotonicity(phi)) == pytest.approx(0.5, abs=0.02)
    assert float(properties.symmetry(phi)) == pytest.approx(0, abs=1e-6)


def test_float32_is_enough_at_length_512():
    """Against the definitions in float64, on a matrix whose mean is far above its deviations."""
    rng = np.random.default_rng(0)
    wide = (
        1e3
        + rng.normal(size=(512, 512))
        - 0.01 * np.abs(np.subtract.outer(*[np.arange(512)] * 2))
    )
    phi = wide.astype(np.float32)
    exact = np.asarray(phi, np.float64)
    off = ~np.eye(512, dtype=bool)
    fit = np.zeros_like(exact)
    for m in range(-511, 512):
        i = np.arange(max(0, -m), min(512, 512 - m))
        fit[i, i + m] = exact[i, i + m].mean()
    expected = ((exact - fit)[off] ** 2).sum() / (
        (exact - exact[off].mean())[off] ** 2
    ).sum()
    assert float(properties.translation_invariance(phi)) == pytest.approx(
        expected, rel=2e-3
    )
    expected = (((exact - exact.T) / 2) ** 2).sum() / (
        (exact - exact.mean()) ** 2
    ).sum()
    assert float(properties.symmetry(phi)) == pytest.approx(expected, rel=2e-3)


def test_vmap_jit_and_leading_axes_agree():
    phi = draw(2, 3, 9, 9)
    for metric in (
        properties.translation_invariance,
        properties.symmetry,
        properties.monotonicity,
        lambda p: properties.monotonicity(p, 4, weighted=True),
    ):
        each = np.array([[float(metric(m)) for m in row] for row in phi])
        both = jax.jit(lambda phi, of=metric: (of(phi), jax.vmap(jax.vmap(of))(phi)))(
            phi
        )
        for found in both:
            np.testing.assert_allclose(found, each, rtol=1e-5)


def test_skip_leaves_out_the_first_position():
    phi = properties.proximity(
        encodings.sinusoid(np.arange(20), encodings.default_frequencies(8))
    )
    spoiled = changed(phi, (0, 50.0), ((slice(None), 0), -50.0))
    assert float(properties.translation_invariance(spoiled)) > 0.5
    assert float(properties.translation_invariance(spoiled, skip=1)) == pytest.approx(
        0, abs=1e-5
    )


def test_bad_windows():
    with pytest.raises(ValueError, match="between 2 and L - 1 = 2, got 3"):
        properties.monotonicity(PHI, 3)
    with pytest.raises(ValueError, match="at least 3 positions, got 2"):
        properties.translation_invariance(PHI, skip=1)


def test_length_restricts_metrics_to_the_first_positions():
    """With `length`, a padded matrix gives the metric of the matrix itself, also under vmap."""
    phi = draw(9, 9)
    padded = np.pad(phi, (0, 5), constant_values=7.0)
    for metric in (
        properties.translation_invariance,
        lambda p, **k: properties.translation_invariance(p, skip=2, **k),
        properties.symmetry,
        lambda p, **k: properties.monotonicity(p, 8, **k),
        lambda p, **k: properties.monotonicity(p, 4, **k),
        lambda p, **k: properties.monotonicity(p, 4, weighted=True, **k),
    ):

        @jax.jit
        def run(phi, padded, metric=metric):
            whole, nine, six = (
                metric(phi),
                metric(padded, length=9),
                metric(padded, length=6),
            )
            of_each = jax.vmap(lambda p, n: metric(p, length=n))
            return (
                whole,
                nine,
                six,
                of_each(jnp.stack([padded, padded]), jnp.array([9, 6])),
            )

        whole, nine, six, mapped = run(phi, padded)
        assert float(nine) == pytest.approx(float(whole), rel=1e-5)
        np.testing.assert_allclose(mapped, [whole, six], rtol=1e-5)


def test_monotonicity_against_loops():
    rng = np.random.default_rng(3)
    phi = rng.integers(0, 6, (11, 11)).astype(np.float32)  # With many ties.
    for window in (2, 5, 10):
        wrong = total = weight_wrong = weight = 0.0
        for x in range(11):
            for side in (1, -1):
                for m in range(1, window + 1):
                    for n in range(1, m):
                        if 0 <= x + side * m < 11:
                            difference = phi[x, x + side * m] - phi[x, x + side * n]
                            wrong += (
                                1.0
                                if difference > 0
                                else 0.5
                                if difference == 0
                                else 0.0
                            )
                            total += 1
                            weight_wrong += max(difference, 0)
                            weight += abs(difference)
        assert float(properties.monotonicity(phi, window)) == pytest.approx(
            wrong / total
        )
        weighted = float(properties.monotonicity(phi, window, weighted=True))
        assert weighted == pytest.approx(weight_wrong / weight)


def test_a_toeplitz_matrix_is_exactly_invariant():
    values = np.asarray(
        properties.psi(encodings.default_frequencies(64), np.arange(200))
    )
    phi = values[np.abs(np.subtract.outer(np.arange(200), np.arange(200)))]
    assert float(properties.translation_invariance(phi)) == 0
    assert float(properties.translation_invariance(phi, skip=3)) == 0
    assert float(properties.symmetry(phi)) == 0


TOEPLITZ = {
    "invariance": properties.translation_invariance,
    "invariance, skip": lambda p, **k: properties.translation_invariance(
        p, skip=2, **k
    ),
    "symmetry": properties.symmetry,
    "monotonicity": properties.monotonicity,
    "within 7": lambda p, **k: properties.monotonicity(p, 7, **k),
    "within 2, weighted": lambda p, **k: properties.monotonicity(
        p, 2, weighted=True, **k
    ),
    "weighted": lambda p, **k: properties.monotonicity(p, weighted=True, **k),
}


@pytest.mark.parametrize("name", TOEPLITZ)
def test_metrics_of_a_toeplitz_are_those_of_its_matrix(name):
    """With ties, for several at once, in any unit, of the first positions and of some entries."""
    metric = TOEPLITZ[name]
    values = np.random.default_rng(0).integers(0, 6, (3, 12)).astype(np.float32)
    phi = properties.Toeplitz(psi=jnp.asarray(values))
    at = np.arange(12)
    toeplitz = lambda psi: psi[:, np.abs(at[:, None] - at)]
    matrix = toeplitz(values)
    np.testing.assert_array_equal(phi.matrix(), matrix)
    assert phi.shape == matrix.shape
    holds = name.startswith("invariance") or name == "symmetry"
    left = np.tri(12, dtype=bool)

    @jax.jit
    def run(phi):
        first, gradient = (
            metric(phi, length=9),
            jax.grad(lambda phi: metric(phi).sum())(phi),
        )
        return metric(phi), first, metric(phi, where=left), gradient

    *found, gradient = run(phi)
    *expected, of_matrix = run(matrix)
    for one, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
        assert (np.asarray(one) == 0).all() if holds else (np.asarray(one) > 0).any()
    np.testing.assert_array_equal(found[2], expected[2])
    _, back = jax.vjp(toeplitz, values)
    np.testing.assert_allclose(gradient.psi, *back(of_matrix), atol=1e-5)
    np.testing.assert_array_equal(
        run(properties.Toeplitz(psi=values * 2.0**120))[0], found[0]
    )
    assert np.isnan(run(properties.Toeplitz(psi=np.full_like(values, np.inf)))[0]).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_monotonicity_of_a_toeplitz_takes_memory_in_proportion_to_its_length(weighted):
    """[L, L] differences of float32 are 1 MiB at 512."""
    metric = lambda psi: properties.monotonicity(
        properties.Toeplitz(psi=psi), weighted=weighted
    )
    for run in (metric, jax.grad(metric)):
        compiled = jax.jit(run).lower(np.zeros(512, np.float32)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 2**17


WITHOUT_UNIT = {
    "invariance": properties.translation_invariance,
    "symmetry": properties.symmetry,
    "monotonicity": properties.monotonicity,
    "weighted monotonicity": lambda phi: properties.monotonicity(phi, weighted=True),
    "Saponati's symmetry": properties.saponati_symmetry,
    "Saponati's directionality": lambda w: properties.saponati_directionality(
        w, deviations=1.0
    ),
}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", WITHOUT_UNIT)
def test_what_is_not_finite_gives_nan(metric, wrong):
    phi = changed(np.ones((6, 6)), ((2, 4), wrong))
    assert np.isnan(float(WITHOUT_UNIT[metric](phi)))


@pytest.mark.parametrize("metric", WITHOUT_UNIT)
def test_no_metric_depends_on_the_unit(metric):
    """Powers of two are exact; at others, rounding; gradients follow."""
    phi = draw(7, 7)
    run = jax.jit(jax.value_and_grad(WITHOUT_UNIT[metric]))
    value, grad = run(phi)
    assert value != 0
    for factor in (2.0**90, 2.0**-90):
        scaled, of_scaled = run(phi * factor)
        assert float(scaled) == float(value)
        np.testing.assert_array_equal(np.asarray(of_scaled) * factor, grad)
    for factor in (1e20, 1e-20, 3e37):
        assert float(run(phi * factor)[0]) == pytest.approx(float(value), rel=1e-5)


def test_one_huge_entry():
    """It is all that there is to see: its diagonal is not constant and it has no mirror image."""
    phi = changed(np.ones((12, 12)), ((3, 7), 1e20))
    assert float(properties.translation_invariance(phi)) > 0.8
    assert float(properties.symmetry(phi)) > 0.4


@pytest.mark.parametrize(
    "metric",
    [
        properties.translation_invariance,
        properties.symmetry,
        lambda p: properties.monotonicity(p, 4, weighted=True),
        properties.chen_locality,
        properties.chen_symmetry,
        properties.saponati_symmetry,
        properties.forward_share,
    ],
)
def test_gradients(metric):
    """Against central differences in float64; finite at degenerate matrices."""
    with jax.enable_x64(True):
        phi = np.random.default_rng(0).uniform(size=(6, 6))
        grad = np.asarray(jax.jit(jax.grad(metric))(phi))
        step = np.zeros_like(phi)
        for at in [(0, 1), (2, 5), (4, 3), (3, 3)]:
            step[:], step[at] = 0, 1e-6
            slope = (float(metric(phi + step)) - float(metric(phi - step))) / 2e-6
            assert grad[at] == pytest.approx(slope, abs=1e-5)
    gradient = jax.jit(jax.grad(metric))
    for edge in (np.ones((5, 5)), np.zeros((5, 5)), np.eye(5)):
        assert np.isfinite(gradient(edge.astype(np.float32))).all()


def test_forward_share_by_hand():
    weights = np.float32([[0.2, 0.5, 0.3], [0.1, 0.4, 0.5], [0.0, 0.3, 0.7]])
    above, below = 0.5 + 0.3 + 0.5, 0.1 + 0.0 + 0.3
    share = (above - below) / (above + below)
    assert float(properties.forward_share(weights)) == pytest.approx(share)
    assert float(properties.forward_share(np.triu(weights, 1))) == pytest.approx(1)
    assert float(properties.forward_share(np.eye(3, dtype=np.float32))) == 0


def test_chen_by_hand():
    weights = np.float32(
        [
            [0.5, 0.5, 0.0, 0.0],  # near: 0.5 + 0.5/2 = 0.75
            [0.2, 0.4, 0.1, 0.3],  # 0.1 + 0.4 + 0.05 + 0.075 = 0.625
            [0.0, 0.0, 1.0, 0.0],  # 1
            [0.8, 0.0, 0.0, 0.2],  # 0.1 + 0.2 = 0.3
        ]
    )
    assert float(properties.chen_locality(weights)) == pytest.approx(
        (0.75 + 0.625 + 1 + 0.3) / 4
    )
    # Rows 1 and 2 have one pair each: a single difference is rescaled to 0.
    assert float(properties.chen_symmetry(weights)) == pytest.approx(1)
    five = changed(np.eye(5), (2, [0.5, 0.1, 0.1, 0.2, 0.1]))
    # Row 2: |0.1 - 0.2| = 0.1 and |0.5 - 0.1| = 0.4, rescaled to 0 and 1; rows 1 and 3: one 0 each.
    assert float(properties.chen_symmetry(five)) == pytest.approx(1 - 1 / 4)
    with pytest.raises(ValueError, match="at least 3 positions, got 2"):
        properties.chen_symmetry(np.eye(2, dtype=np.float32))


def test_saponati_by_hand():
    w = np.float32([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # S has 1, 1, 1 on the diagonal and two ones: 5. A has two ±1: 2. W: 7.
    assert float(properties.saponati_symmetry(w)) == pytest.approx((5 - 2) / 7)
    assert float(properties.saponati_symmetry(w - w.T)) == pytest.approx(-1)
    assert float(properties.saponati_symmetry(np.zeros_like(w))) == 0
    # One column of ten stands out, no row does.
    column = changed(np.ones((10, 10)), ((slice(None), 3), 5.0))
    assert float(properties.saponati_directionality(column)) == pytest.approx(1)
    assert float(properties.saponati_directionality(column.T)) == pytest.approx(-1)
    assert float(properties.saponati_directionality(np.ones_like(column))) == 0
    assert float(properties.saponati_directionality(column[:1, :1])) == 0
    both = np.stack([column, column.T])
    np.testing.assert_allclose(properties.saponati_directionality(both), [1, -1])


def test_cosines_sum_to_psi():
    w = encodings.default_frequencies(16)
    m = np.arange(20)
    np.testing.assert_allclose(
        properties.cosines(w, m).sum(0), properties.psi(w, m), rtol=1e-5
    )
    p = encodings.sinusoid(m, w)
    np.testing.assert_allclose(p @ p[0], properties.psi(w, m), rtol=1e-4)
    assert (
        int(properties.turning_point(np.float32([3, 2, 1]))) == 2
    )  # Decreases to the end.
    assert int(properties.turning_point(np.float32([3, 3, 1]))) == 0
