"""Massive values: which dimensions, how far heads agree, and the loss without them."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers import tiny_subject

from pe_jax import properties
from pe_jax.models import queries_keys_values
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.massive_values import massive_values
from pe_jax.trainer.reports.property_report.render import render
from pe_jax.trainer.reports.property_report.texts import token_scores


def test_massive_by_hand():
    norms = np.array([[1.0, 1, 1, 1, 1, 19], [2, 2, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(
        properties.is_massive(norms, 4.0), [[0, 0, 0, 0, 0, 1], [0] * 6, [0] * 6]
    )
    assert not properties.is_massive(norms).any()  # 19 is 4.75 times the mean.
    np.testing.assert_allclose(properties.peak_to_mean(norms), [4.75, 1, 1])
    nan = np.full((2, 3), np.nan)
    assert (
        not properties.is_massive(nan).any()
        and np.isnan(properties.peak_to_mean(nan)).all()
    )
    np.testing.assert_allclose(properties.peak_to_mean(np.eye(6)), 6)


def test_overlap_and_agreement():
    """Loops over pairs of heads, float64; no number where nothing is massive or one head is."""
    rng = np.random.default_rng(0)
    massive = rng.random((3, 4, 7)) < 0.3
    massive[1, 1:] = massive[1, :1] = False
    massive[1, 2, 3] = True  # One head alone.
    massive[2, 0] = False
    norms = rng.random((3, 4, 7)) + np.array([1.0, 5, 0, 0, 2, 0, 0])
    norms[2] *= np.array([[1.0], [10], [0.1], [3]])  # Neither level nor scale matters.
    pairs = [(g, h) for g in range(4) for h in range(g)]
    for layer in range(3):
        m = massive[layer]
        shares = [
            (m[g] & m[h]).sum() / (m[g] | m[h]).sum()
            for g, h in pairs
            if (m[g] | m[h]).any()
        ]
        assert properties.massive_overlap(massive)[layer] == pytest.approx(
            np.mean(shares), abs=1e-6
        )
        each = [np.corrcoef(norms[layer, g], norms[layer, h])[0, 1] for g, h in pairs]
        assert properties.profile_correlation(norms)[layer] == pytest.approx(
            np.mean(each), abs=1e-5
        )
    assert properties.massive_overlap(massive)[1] == 0
    same = np.broadcast_to(massive[0, :1], (4, 7))
    assert properties.massive_overlap(same) == 1
    assert np.isnan(properties.massive_overlap(np.zeros((4, 7), bool)))
    assert np.isnan(properties.massive_overlap(massive[:, :1])).all()
    profile = rng.random((1, 7)).astype(np.float32)
    scaled = profile * np.array([[1.0], [4], [0.5]]) + np.array([[0.0], [1], [2]])
    np.testing.assert_allclose(properties.profile_correlation(scaled), 1, rtol=1e-5)
    assert np.isnan(properties.profile_correlation(norms[:, :1])).all()
    assert np.isnan(properties.profile_correlation(np.ones((2, 5))))


def test_random_others():
    rng = np.random.default_rng(0)
    massive = rng.random((2, 3, 10)) < 0.3
    massive[0, 0] = True  # None are left.
    massive[1, 1] = False
    found = np.asarray(properties.random_other_dimensions(jax.random.key(0), massive))
    assert not (found & massive).any()
    expected = np.minimum(massive.sum(-1), (~massive).sum(-1))
    np.testing.assert_array_equal(found.sum(-1), expected)
    again = np.asarray(properties.random_other_dimensions(jax.random.key(1), massive))
    assert (found != again).any()
    many = [
        properties.random_other_dimensions(jax.random.key(i), massive[1, 0])
        for i in range(200)
    ]
    share = np.mean(many, 0)[~massive[1, 0]]
    size = massive[1, 0].sum()
    np.testing.assert_allclose(share, size / (10 - size), atol=0.12)


@pytest.fixture
def config():
    size = {"length": tiny_subject.LENGTH, "texts": tiny_subject.TEXTS}
    return PropertiesConfig(**size, bands=2, massive=3.0)


def amplified(position, *dimensions):
    """A subject whose queries and keys are 40 times the first dimension in others of all heads."""
    subject = tiny_subject.subject(position)
    params = jax.tree.map(np.array, subject.heads)
    for layer in ("layer_0", "layer_1"):
        qkv = params["bert"][layer]["attention"]["qkv"]
        qkv["kernel"][:, :2, :, dimensions] = 40 * qkv["kernel"][:, :2, :, :1]
    return dataclasses.replace(subject, heads=params)


def test_the_report(config, tmp_path):
    """Massive values that were put in are found in queries and keys, in their bands of RoPE."""
    large, plain = amplified("rope", 1, 6), tiny_subject.subject("learned_absolute")
    tiny_subject.give(config, large, plain)
    numbers, lines, pictures = render(massive_values, [large, plain], config, tmp_path)
    found = numbers["rope"]
    for what in ("queries", "keys"):
        for layer in found[what]:
            assert layer["massive"] == [[1, 6], [1, 6]] and layer["overlap"] == 1
            assert layer["share"] == 0.25 and layer["agreement"] > 0.8
    for layer in found["values"]:
        assert layer["massive"] == [[], []] and layer["overlap"] is None
    assert found["bands"] == [
        8,
        8,
    ]  # Pairs 1 and 2 of 4; in 2 layers, 2 heads, q and k.
    assert "loss" not in numbers["learned_absolute"]
    assert "bands" not in numbers["learned_absolute"]

    # The same by hand: the dimensions are their mean over all tokens of the unmasked texts.
    texts, model = tiny_subject.texts(), large.model
    inside = jax.jit(lambda p: queries_keys_values(model, p, texts.tokens))(
        large.params
    )
    inside = np.asarray(inside, np.float64)  # [3, N, B, L, H, d]
    m = np.sqrt((inside**2).mean((2, 3)))
    ratios = found["keys"][1]["largest"]
    np.testing.assert_allclose(ratios, (m[1, 1].max(-1) / m[1, 1].mean(-1)), rtol=1e-5)
    params = jax.tree.map(np.array, large.heads)
    for i, layer in enumerate(("layer_0", "layer_1")):
        qkv = params["bert"][layer]["attention"]["qkv"]
        for part in (0, 1):
            for d in (1, 6):
                qkv["kernel"][:, part, :, d] = 0
                qkv["bias"][part, :, d] = inside[part, i, :, :, :, d].mean((0, 1))
    loss = jax.jit(lambda p: token_scores(model, p, texts.masked, texts.tokens)[0])
    means = [
        np.asarray(loss(p), np.float64)[texts.where].mean()
        for p in (large.heads, params)
    ]
    assert found["loss"] == pytest.approx(means[0], rel=1e-5)
    assert found["massive"]["change"] == pytest.approx(means[1] - means[0], abs=1e-4)
    assert (
        np.shape(found["others"]["change"]) == (4,)
        and np.isfinite(found["others"]["error"]).all()
    )
    json.dumps(numbers)
    assert len(pictures) == 2 and all(path.exists() for path in pictures)
    assert "| rope | 16 " in " ".join(" ".join(lines).split())
    assert render(massive_values, [], config, tmp_path) is None


def test_gradients_and_dtypes():
    """Functions of M are differentiable where they are not counts."""
    norms = np.random.default_rng(0).random((3, 5)).astype(np.float32) + np.float32(0.5)
    for metric in (
        lambda x: properties.peak_to_mean(x).sum(),
        properties.profile_correlation,
    ):
        step, run = np.zeros_like(norms), jax.jit(jax.value_and_grad(metric))
        step[0, 1] = 1e-2
        slope = (float(run(norms + step)[0]) - float(run(norms - step)[0])) / 2e-2
        gradient = np.asarray(run(norms)[1])
        assert gradient[0, 1] == pytest.approx(slope, abs=2e-2)
