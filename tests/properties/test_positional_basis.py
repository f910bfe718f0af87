"""The positional basis: hidden states as mean + position + text + rest."""

import numpy as np
import pytest

from pe_jax import properties

TEXTS, LENGTH, SIZE = 7, 16, 5


def states(texts=TEXTS, noise=1.0, seed=0):
    """Two waves along the positions, a vector a text, and noise."""
    rng = np.random.default_rng(seed)
    angle = np.pi / LENGTH * (np.arange(LENGTH) + 0.5)
    position = np.stack(
        [np.cos(2 * angle), np.cos(3 * angle), *np.zeros((3, LENGTH))], axis=-1
    )
    context = rng.normal(size=(texts, 1, SIZE)) * [0, 0, 1, 1, 1]
    rest = noise * rng.normal(size=(texts, LENGTH, SIZE))
    return (3 + position + context + rest).astype(np.float32)


def test_against_loops_in_float64():
    hidden = states()
    h = hidden.astype(np.float64)
    found = properties.decompose(hidden)
    mean = sum(h[c, t] for c in range(TEXTS) for t in range(LENGTH)) / (TEXTS * LENGTH)
    position = np.array([sum(h[:, t]) / TEXTS for t in range(LENGTH)]) - mean
    context = np.array([sum(h[c]) / LENGTH for c in range(TEXTS)]) - mean
    residual = h - mean - position - context[:, None]
    for one, expected in zip(found, (mean, position, context, residual), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)

    basis = properties.positional_basis(hidden, low=2)
    # Products of different texts alone: their noise is independent.
    own = h - h.mean(1, keepdims=True)
    pairs = [own[a] @ own[b].T for a in range(TEXTS) for b in range(TEXTS) if a != b]
    gram = np.mean(pairs, axis=0)
    np.testing.assert_allclose(basis.gram, gram, atol=1e-4)
    whole = ((h - mean) ** 2).sum() / (TEXTS * LENGTH)
    rest = (residual**2).sum() / (TEXTS * LENGTH)
    expected = np.trace(gram) / LENGTH / whole
    text = ((context**2).sum() / TEXTS - rest / (LENGTH - 1)) / whole
    np.testing.assert_allclose(basis.position, expected, rtol=1e-4)
    np.testing.assert_allclose(basis.context, text, rtol=1e-4)
    np.testing.assert_allclose(
        basis.position + basis.context + basis.residual, 1, rtol=1e-6
    )
    np.testing.assert_allclose(basis.floor, rest / (TEXTS - 1) / whole, rtol=1e-4)
    values = np.sort(np.linalg.eigvalsh(gram))[::-1]
    np.testing.assert_allclose(basis.stable_rank, np.trace(gram) / values[0], rtol=1e-4)
    held = np.flatnonzero(np.cumsum(values) >= 0.95 * np.trace(gram))[0] + 1
    assert float(basis.dimensions) == held
    norm = np.linalg.norm((h - mean).reshape(-1, SIZE), ord=2)
    np.testing.assert_allclose(
        basis.relative_norm, np.sqrt(TEXTS * values[0]) / norm, rtol=1e-4
    )
    rows = [
        [np.cos(np.pi * k * (t + 0.5) / LENGTH) for t in range(LENGTH)] for k in (1, 2)
    ]
    low = sum(row @ gram @ row / (LENGTH / 2) for row in np.array(rows))
    np.testing.assert_allclose(basis.smoothness, low / np.trace(gram), rtol=1e-4)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = np.abs(unit(position) @ unit(context).T)
    np.testing.assert_allclose(basis.coherence, cosines.mean(), rtol=1e-4)
    np.testing.assert_allclose(basis.largest_coherence, cosines.max(), rtol=1e-4)


def test_two_waves_without_noise():
    """Two dimensions of one size, in two frequencies; shares by hand; texts at right angles."""
    basis = properties.positional_basis(states(noise=0.0), low=3)
    assert float(basis.dimensions) == 2
    np.testing.assert_allclose(
        [
            basis.stable_rank,
            basis.smoothness,
            basis.floor,
            basis.residual,
            basis.coherence,
        ],
        [2, 1, 0, 0, 0],
        atol=1e-4,
    )
    context = np.var(states(noise=0.0), axis=0).mean(0).sum()  # Of positions: 2 · 1/2.
    np.testing.assert_allclose(basis.position, 1 / (1 + context), rtol=1e-4)
    lower = properties.positional_basis(states(noise=0.0), low=2)
    np.testing.assert_allclose(lower.smoothness, 0.5, rtol=1e-4)


def test_noise_is_not_taken_for_positions():
    """The mean over draws is 0 without positions, and the true share with them; few texts."""
    draws = np.stack(
        [states(texts=3, seed=seed) for seed in range(200)]
    )  # A leading axis.
    noise = np.random.default_rng(0).normal(size=draws.shape).astype(np.float32)
    basis = properties.positional_basis(np.stack([draws, noise]))
    power = np.trace(basis.gram, axis1=-2, axis2=-1).mean(-1) / LENGTH
    np.testing.assert_allclose(
        power, [1, 0], atol=0.05
    )  # With the noise it were 1 + 5/3.
    assert basis.floor.shape == (2, 200) and float(basis.floor[1].mean()) > 0.25
    assert (
        float(basis.position[1].mean()) < 0.06 and float(basis.context[1].mean()) < 0.02
    )


def test_edges():
    constant = properties.positional_basis(np.full_like(states(), 0.3))
    for name, value in vars(constant).items():
        if "coherence" not in name:
            np.testing.assert_allclose(value, 0, atol=1e-6, err_msg=name)
    broken = states()
    broken[0, 0, 0] = np.nan
    assert np.isnan(properties.positional_basis(broken).position)
    with pytest.raises(ValueError, match="two texts and two positions, got 1 and 16"):
        properties.positional_basis(states()[:1])


def test_units_change_nothing():
    found, scaled = (properties.positional_basis(x) for x in (states(), 1e3 * states()))
    for name in vars(found).keys() - {"gram"}:
        one, other = getattr(found, name), getattr(scaled, name)
        np.testing.assert_allclose(one, other, rtol=1e-3)
