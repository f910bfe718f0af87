"""Sinks, effective keys, distance and rollout, against loops in float64, and of models."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers.initial_params import initial_params

from pe_jax import properties
from pe_jax.models import Bert, BertConfig, weights_map
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.subjects import from_name
from pe_jax.trainer.reports.property_report.texts import texts

SIZES = dict(
    vocab_size=40, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_length=16,
    initializer_stddev=0.5,
)  # fmt: skip
LENGTH = 9
TOKENS = np.random.default_rng(0).integers(0, 40, (3, LENGTH))


def model(position):
    config = dataclasses.replace(BertConfig(**SIZES), position=position)
    return config, initial_params(Bert(config), np.zeros((1, 2), np.int32))


def random_weights(*shape, length=LENGTH):
    drawn = np.random.default_rng(1).exponential(size=(*shape, length, length)) ** 2
    return drawn / drawn.sum(-1, keepdims=True)


def test_statistics_against_loops():
    a = random_weights(2, 3)
    sinks = jax.tree.map(np.asarray, properties.attention_sinks(a))
    keys, distance = (
        np.asarray(f(a)) for f in (properties.effective_keys, properties.mean_distance)
    )
    for index in np.ndindex(2, 3):
        one = a[index]
        received = [
            sum(one[i, j] for i in range(LENGTH)) / LENGTH for j in range(LENGTH)
        ]
        assert float(sinks["first"][index]) == pytest.approx(received[0], rel=1e-5)
        assert float(sinks["last"][index]) == pytest.approx(received[-1], rel=1e-5)
        assert float(sinks["largest"][index]) == pytest.approx(max(received), rel=1e-5)
        counts = [np.exp(-sum(p * np.log(p) for p in row)) for row in one]
        assert float(keys[index]) == pytest.approx(np.mean(counts), rel=1e-5)
        far = [
            sum(row[j] * abs(j - i) for j in range(LENGTH)) for i, row in enumerate(one)
        ]
        assert float(distance[index]) == pytest.approx(np.mean(far), rel=1e-5)


def test_even_and_single_keys():
    """Attention to one key each, to all evenly, causal, and to nothing."""
    eye, even = np.eye(LENGTH), np.full((LENGTH, LENGTH), 1 / LENGTH)
    causal = np.tril(np.ones((LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]
    a = np.stack([eye, even, causal, 0 * even])
    np.testing.assert_allclose(
        properties.effective_keys(a), [1, LENGTH, (LENGTH + 1) / 2, 0], rtol=1e-5
    )
    far = (LENGTH**2 - 1) / (3 * LENGTH)
    np.testing.assert_allclose(
        properties.mean_distance(a), [0, far, (LENGTH - 1) / 4, 0], rtol=1e-5
    )
    harmonic = np.mean(1 / np.arange(1, LENGTH + 1))
    found = properties.attention_sinks(a)
    np.testing.assert_allclose(
        found["first"], [1 / LENGTH, 1 / LENGTH, harmonic, 0], rtol=1e-5
    )
    np.testing.assert_allclose(
        found["last"], [1 / LENGTH, 1 / LENGTH, 1 / LENGTH**2, 0], rtol=1e-5
    )
    mixture = properties.rollout(np.stack([eye, 0 * even])[None])
    np.testing.assert_allclose(mixture[0], np.stack([eye, eye]), rtol=1e-6)
    np.testing.assert_allclose(
        properties.effective_keys(np.array([[0.5, 0.5], [0, 0]])), 1
    )
    assert np.isnan(properties.effective_keys(np.full((3, 3), np.nan)))
    assert np.isnan(properties.attention_sinks(np.full((3, 3), np.nan))["largest"])


def test_rollout_against_products():
    a = random_weights(2, 4)
    found = np.asarray(properties.rollout(a))
    for row in range(2):
        below = np.eye(LENGTH)
        for layer in range(4):
            below = (0.5 * a[row, layer] + 0.5 * np.eye(LENGTH)) @ below
            np.testing.assert_allclose(found[row, layer], below, rtol=1e-4)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    shares = properties.mixture_shares(found, window=2)
    near = np.abs(np.subtract.outer(range(LENGTH), range(LENGTH))) <= 2
    np.testing.assert_allclose(
        shares["near"], (found * near).sum((-2, -1)) / LENGTH, rtol=1e-5
    )
    np.testing.assert_allclose(
        shares["own"], np.trace(found, axis1=-2, axis2=-1) / LENGTH, rtol=1e-5
    )
    np.testing.assert_allclose(shares["first"], found[..., 0].mean(-1), rtol=1e-5)


def test_deep_causal_attention_collapses_to_the_first_token():
    """Wu et al. 2025 (2502.01951): under a causal mask the first token takes all."""
    causal = np.tril(np.ones((LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]
    first = properties.mixture_shares(properties.rollout(np.stack([causal] * 200)))[
        "first"
    ]
    assert (np.diff(first) > -1e-6).all() and float(first[-1]) > 0.999


def test_weights_are_the_model_s_own():
    """Of every layer; with the model's values they give what its attention gives."""
    config, params = model(
        "learned_absolute+cycle(rope+t5, alibi+window(max_distance=2))"
    )
    found = np.asarray(jax.jit(weights_map(config))(params, TOKENS))
    assert found.shape == (3, 2, 2, LENGTH, LENGTH)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    far = np.abs(np.subtract.outer(range(LENGTH), range(LENGTH))) > 2
    assert not found[:, 1][..., far].any() and found[:, 0][..., far].all()
    apply = lambda params: Bert(config).apply(
        {"params": params}, TOKENS, capture_intermediates=True, mutable="intermediates"
    )
    inside = jax.jit(apply)(params)[1]["intermediates"]
    inside, params = jax.tree.map(np.asarray, (inside, params))
    for layer in range(2):
        attention, own = (x[f"layer_{layer}"]["attention"] for x in (inside, params))
        x = attention["compared"][0][0]
        values = (
            np.einsum("bld,dhe->blhe", x, own["qkv"]["kernel"][:, 2])
            + own["qkv"]["bias"][2]
        )
        out = np.einsum("bhij,bjhe->bihe", found[:, layer], values)
        out = np.einsum("bihe,hed->bid", out, own["out"]["kernel"]) + own["out"]["bias"]
        np.testing.assert_allclose(attention["__call__"][0], out, atol=1e-4)


def test_batches_change_nothing():
    f = lambda x: {"a": x[0] * 2, "b": x[1].sum(-1)}
    inputs = (np.arange(7.0), np.arange(21.0).reshape(7, 3))
    for batch in (1, 3, 7, 50):
        found = properties.in_batches(f, inputs, batch)
        jax.tree.map(np.testing.assert_allclose, found, f(inputs))


@pytest.mark.filterwarnings("error")
def test_the_report(tmp_path):
    """Numbers of the file are means of what the functions give; one layer, random words."""
    config = PropertiesConfig(size="tiny", length=12, texts=5, parts="attention_flow")
    subject = from_name("rope+causal", config, 0)
    text = measure_properties([subject], config, tmp_path)
    found = json.loads((tmp_path / "attention_flow.json").read_text())[subject.name]
    words = texts(subject, config).tokens
    a = np.asarray(jax.jit(weights_map(subject.model))(subject.params, words))
    first = np.asarray(properties.attention_sinks(a)["first"])
    np.testing.assert_allclose(found["heads"]["first"], first.mean(0), rtol=1e-4)
    distance = np.asarray(properties.mean_distance(a))
    np.testing.assert_allclose(
        found["layers"]["distance"], distance.mean((0, 2)), rtol=1e-4
    )
    near = np.asarray(properties.mixture_shares(properties.rollout(a.mean(2)))["near"])
    np.testing.assert_allclose(found["rollout"]["near"], near.mean(0), rtol=1e-4)
    error = np.std(near, axis=0, ddof=1) / 5**0.5
    np.testing.assert_allclose(found["rollout_error"]["near"], error, rtol=1e-2)
    assert found["even"]["effective_keys"] == pytest.approx([6.5])
    assert "(attention_flow_heads.png)" in text and "| even " in text
