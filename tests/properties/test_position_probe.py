"""The position probe: positions read off hidden states, by layer."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from pe_jax import properties
from pe_jax.models import hidden_states
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.states import split
from pe_jax.trainer.reports.property_report.subjects import from_name
from pe_jax.trainer.reports.property_report.texts import Texts, states_of_texts, texts

LENGTH = 12
KEY = jax.random.key(0)


def tokens(count, seed):
    """Three layers: the position in a line with noise; noise; the position with a random sign, and
    that sign: no linear map reads it."""
    rng = np.random.default_rng(seed)
    positions = np.tile(np.arange(LENGTH), count // LENGTH)
    line = positions[:, None] * [0.3, 0.0, -0.1] + rng.normal(size=(count, 3)) * 0.1 + 5
    noise = rng.normal(size=(count, 3))
    sign = rng.choice([-1, 1], count)
    signed = np.stack([sign, sign * positions, np.zeros(count)], axis=1)
    return np.stack([line, noise, signed]).astype(np.float32), positions


@pytest.fixture(scope="module")
def three():
    return tokens(480, 0), tokens(240, 1), tokens(240, 2)


def test_the_linear_probe_equals_scikit_learn(three):
    train, choose, test = three
    penalties = (0.0, 1e-3, 1e-1)
    found = properties.linear_probe(*three, ridge=penalties)
    for layer in range(3):
        x, x_choose, x_test = (states[layer].astype(np.float64) for states, _ in three)
        largest = np.linalg.svd(x - x.mean(0), compute_uv=False)[0]
        fits = [Ridge(p * largest**2, solver="svd").fit(x, train[1]) for p in penalties]
        errors = [((fit.predict(x_choose) - choose[1]) ** 2).mean() for fit in fits]
        best = int(np.argmin(errors))
        assert found.chosen[layer] == penalties[best]
        assert found.r2[layer] == pytest.approx(
            fits[best].score(x_test, test[1]), abs=1e-6
        )
        error = np.abs(fits[best].predict(x_test) - test[1]).mean()
        assert found.mean_absolute_error[layer] == pytest.approx(error, abs=1e-5)
    assert found.r2[0] > 0.98 and found.mean_absolute_error[0] < 0.4
    np.testing.assert_allclose(found.r2[1:], 0, atol=0.05)
    np.testing.assert_allclose(
        found.mean_absolute_error[1:], LENGTH / 4, rtol=0.05
    )  # A guess.


def test_the_network_reads_what_no_line_does(three):
    found = properties.mlp_probe(KEY, *three, width=16, steps=600, batch=64)
    assert min(found.r2[0], found.r2[2]) > 0.9 and found.r2[1] < 0.05
    assert (
        found.r2[1] > -0.2 and found.chosen[1] < 600
    )  # It stops before it learns the noise.
    again = properties.mlp_probe(KEY, *three, width=16, steps=600, batch=64)
    np.testing.assert_array_equal(found.r2, again.r2)


def test_the_tokens_to_test_on_choose_nothing(three):
    """Other test tokens get other scores by the same choice."""
    train, choose, test = three
    other = test[0][:, ::-1], test[1]
    for probe in (
        properties.linear_probe,
        lambda *args: properties.mlp_probe(KEY, *args, width=16, steps=600, batch=64),
    ):
        found, worse = probe(train, choose, test), probe(train, choose, other)
        np.testing.assert_array_equal(found.chosen, worse.chosen)
        assert worse.r2[0] < 0 < found.r2[0]


def test_layers_that_are_not_finite(three):
    broken = []
    for states, positions in three:
        partly = np.where(np.arange(3) == 1, np.nan, states)
        partly[0] = states[0]
        broken.append((partly, positions))
    for found in (
        properties.linear_probe(*broken),
        properties.mlp_probe(KEY, *broken, width=16, steps=600, batch=64),
    ):
        assert found.r2[0] > 0.9 and np.isnan(found.r2[1:]).all()
    same = [(states, np.full_like(positions, 3)) for states, positions in three]
    assert np.isnan(properties.linear_probe(*same).r2).all()


def test_a_split_by_texts():
    """No text is in two parts; each token keeps its position."""
    states = np.zeros((2, 9, LENGTH, 2), np.float32)
    states[..., 0] = np.arange(9)[:, None]
    states[..., 1] = 1 + np.arange(LENGTH)
    parts = split(states, 1 + np.arange(LENGTH), seed=0)
    texts = [set(states[0, :, 0]) for states, _ in parts]
    assert list(map(len, texts)) == [4, 2, 3] and len(set.union(*texts)) == 9
    for part, positions in parts:
        np.testing.assert_array_equal(part[1, :, 1], positions)
        assert len(positions) == LENGTH * len(set(part[0, :, 0]))
    with pytest.raises(ValueError, match="needs 4 texts, got 3: raise config.texts"):
        split(states[:, :3], np.arange(LENGTH), seed=0)


def test_many_texts_give_some_tokens_each(monkeypatch):
    monkeypatch.setattr("pe_jax.trainer.reports.property_report.states._MAX_TOKENS", 40)
    states = np.tile(np.arange(LENGTH, dtype=np.float32)[:, None], (1, 10, 1, 1))
    parts = split(states, np.arange(LENGTH), seed=0)
    assert [len(positions) for _, positions in parts] == [20, 8, 12]
    chosen, positions = parts[0]
    assert len(set(positions)) > 4  # Not the same ones of every text.
    np.testing.assert_array_equal(chosen[0, :, 0], positions)


@pytest.fixture(scope="module")
def config():
    parts = "positional_basis,position_probe"
    return PropertiesConfig(size="tiny", length=24, texts=40, parts=parts)


def test_hidden_states_of_the_texts(config):
    """In batches, of which the last is not full; real texts without their ends."""
    subject = from_name("learned_absolute", config, 0)
    states, _ = states_of_texts(subject, config)
    assert states is states_of_texts(subject, config)[0] and states.shape == (
        2,
        40,
        24,
        128,
    )
    tokens = texts(subject, config).tokens
    expected = jax.jit(lambda *args: hidden_states(subject.model, *args))(
        subject.params, tokens
    )
    np.testing.assert_allclose(states, expected, atol=1e-5)
    reader = dataclasses.replace(subject, tokenizer="one")
    reader.results["texts", config] = Texts("", tokens)
    inside, positions = states_of_texts(reader, config)
    np.testing.assert_array_equal(positions, np.arange(1, 23))
    np.testing.assert_array_equal(inside, states[:, :, 1:-1])


def test_both_parts_of_the_report(config, tmp_path):
    """Sinusoids are in the hidden states, and nothing where no encoding is."""
    subjects = [from_name(name, config, 0) for name in ("none", "sinusoidal_absolute")]
    text = measure_properties(subjects, config, tmp_path)
    found = json.loads((tmp_path / "position_probe.json").read_text())
    none, sinusoid = (found[subject.name] for subject in subjects)
    assert max(*none["linear"]["r2"], *none["network"]["r2"]) < 0.1
    assert min(sinusoid["linear"]["r2"]) > 0.9
    assert sinusoid["tokens"] == [480, 240, 240] and none["error_of_a_guess"] == 6
    found = json.loads((tmp_path / "positional_basis.json").read_text())
    none, sinusoid = (found[subject.name]["layers"] for subject in subjects)
    assert all(one["position"] < one["floor"] for one in none)
    assert len(sinusoid) == 2 and sinusoid[0]["position"] > 0.5
    gram = "positional_basis_gram_sinusoidal_absolute__untrained_.png"  # None of noise.
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"positional_basis.png", gram, "position_probe.png"}
    assert "random words" in text
