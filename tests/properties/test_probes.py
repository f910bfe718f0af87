"""Sweeps, identical word probing, regression probes, correlations."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from helpers.slow import slow_except
from scipy import stats
from scipy.special import softmax
from sklearn.linear_model import LinearRegression, Ridge

from pe_jax import encodings, properties
from pe_jax.encodings.parser import PAPER
from pe_jax.models import (
    Bert,
    BertConfig,
    attention_map,
    projections,
    queries_keys_values,
    query_key_matrices,
)
from pe_jax.properties.position_regression import finite

CONFIG = BertConfig(
    vocab_size=30, hidden_size=8, num_layers=3, num_heads=2, intermediate_size=12, max_length=16,
    initializer_stddev=0.5,
)  # fmt: skip


@functools.cache
def model(position):
    """A model and random parameters, biases included; nothing is compiled to draw them."""
    config = dataclasses.replace(CONFIG, position=paper_attention.clipped(position, 3))
    bert = Bert(config)
    rng = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(rng.normal(scale=0.5, size=leaf.shape), leaf.dtype)
    shapes = jax.eval_shape(bert.init, jax.random.key(0), np.zeros((1, 4), np.int32))
    return config, bert, jax.tree.map(draw, shapes["params"])


# --- sweeps ---------------------------------------------------------------------------------------


def violations(setting):
    w = setting["base"] ** (-jnp.arange(6) / 6)
    phi = properties.proximity(encodings.sinusoid(jnp.arange(24), w))
    return {
        "near": properties.monotonicity(phi, 5),
        "whole": properties.symmetry(phi, length=setting["length"]),
        "psi": properties.psi(w, jnp.arange(24)),
    }


compiled_violations = jax.jit(violations)


@pytest.mark.parametrize(
    ("count", "memory"), [(1, 1), (7, 1), (37, 2**16), (37, 2**30)]
)
def test_a_sweep_equals_a_loop(count, memory):
    """Of a setting, of more than there are devices, in several chunks and in one."""
    rng = np.random.default_rng(count)
    settings = {
        "base": rng.uniform(2, 9000, count),
        "length": rng.integers(3, 24, count),
    }
    found = properties.sweep(violations, settings, memory=memory)
    for i in range(count):
        one = compiled_violations(jax.tree.map(lambda x: x[i], settings))  # noqa: B023
        for name, value in one.items():
            assert isinstance(found[name], np.ndarray) and len(found[name]) == count
            np.testing.assert_allclose(found[name][i], value, rtol=1e-4, atol=1e-5)


def test_seeds_are_settings():
    """Random tables have no property but symmetry, for every seed."""

    def random_table(seed):
        phi = properties.proximity(jax.random.normal(jax.random.key(seed), (48, 32)))
        return properties.translation_invariance(phi), properties.monotonicity(phi)

    invariance, order = properties.sweep(random_table, np.arange(50))
    assert abs(invariance.mean() - 0.96) < 0.03 and len(np.unique(invariance)) == 50
    assert abs(order.mean() - 0.5) < 0.02


def test_chunks_follow_memory_and_devices():
    """At least one setting per device, however little the memory; one chunk if all fit."""
    fn = lambda x: jnp.outer(jnp.arange(64.0) * x, jnp.arange(64.0)).sum()
    settings = np.arange(40, dtype=np.float32)
    expected = np.arange(64).sum() ** 2 * settings
    every = len(jax.devices())
    for memory, devices, chunk in (
        (1, None, every),
        (1, jax.devices()[1:2], 1),
        (2**30, None, 40),
    ):
        sizes: list[int] = []
        found = properties.sweep(
            fn, settings, memory=memory, devices=devices, progress=sizes.append
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert sizes[0] == chunk and sum(sizes) == 40


def test_a_compiled_sweep_takes_any_number_of_settings():
    run = properties.compile_sweep(lambda x: x**2, np.arange(10.0))
    for count in (3, 10, 25):
        np.testing.assert_array_equal(
            run(np.arange(float(count))), np.arange(count) ** 2
        )


@pytest.mark.parametrize(
    "settings", [{"a": np.ones(3), "b": np.ones(4)}, np.ones(0), np.float32(1), {}]
)
def test_settings_without_one_leading_axis(settings):
    with pytest.raises(ValueError, match="the same leading axis"):
        properties.sweep(lambda s: s, settings)


# --- identical words ------------------------------------------------------------------------------


def test_queries_keys_and_values_are_those_of_the_model():
    """Softmax of their logits, times values and output projection, is the model's output."""
    config, bert, params = model("learned_absolute")
    tokens = np.random.default_rng(1).integers(0, 30, (2, 6))

    @jax.jit
    def run(params):
        _, state = bert.apply({"params": params}, tokens, capture_intermediates=True)
        return queries_keys_values(config, params, tokens), state["intermediates"]

    found, inside = run(params)
    for layer in (0, 2):
        q, k, v = np.asarray(found)[:, layer]
        weights = softmax(
            np.einsum("bqhd,bkhd->bhqk", q, k) / 2, axis=-1
        )  # sqrt(d) = 2
        out = params[f"layer_{layer}"]["attention"]["out"]
        expected = (
            np.einsum("bhqk,bkhd,hde->bqe", weights, v, out["kernel"]) + out["bias"]
        )
        got = inside[f"layer_{layer}"]["attention"]["__call__"][0]
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_no_such_layer():
    config, _, params = model("none")
    with pytest.raises(ValueError, match="layer must be 0 to 2, got 3"):
        attention_map(config, layer=3)(params, jnp.zeros((1, 4), jnp.int32))
    with pytest.raises(ValueError, match="'logits' or 'weights', got 'probabilities'"):
        attention_map(config, what="probabilities")


KEPT = [
    "learned_absolute",
    "learned_relative",
    "learned_absolute+learnable_sinusoidal_relative",
]


@pytest.mark.parametrize("position", slow_except(KEPT, PAPER))
def test_identical_words_against_equation_5(position):
    """Against NumPy loops over words and pairs of positions."""
    config, _, params = model(position)
    words, length = np.array([3, 7, 11, 28, 2]), 9
    found = properties.identical_words(
        attention_map(config), params, words, length=length, batch=2
    )
    assert found.shape == (2, length, length)

    names = position.split("+")
    inner = params.get("position", {})
    of = lambda name: inner.get(name, {})
    kernel, bias = (
        np.asarray(params["layer_0"]["attention"]["qkv"][n]) for n in ("kernel", "bias")
    )
    absolute = lambda n, i: np.asarray(paper_attention.vector(n, of(n), i, 8))
    relative = lambda n, m: np.asarray(
        paper_attention.relative_vector(n, of(n), m, 3, 4)
    )
    added = np.stack([
        sum((absolute(n, i) for n in names if "absolute" in n), np.zeros(8)) for i in range(length)
    ])  # fmt: skip
    p = {
        m: sum((relative(n, m) for n in names if "relative" in n), np.zeros(4))
        for m in range(1 - length, length)
    }
    norm = params["embedding_norm"]
    total = np.zeros((2, length, length))
    for word in words:
        x = params["token"]["embedding"][word] + params["token_type"]["embedding"][0]
        rows = np.asarray(x) + added
        rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(
            rows.var(-1, keepdims=True) + 1e-12
        )
        rows = rows * np.asarray(norm["scale"]) + np.asarray(norm["bias"])
        q, k = (np.einsum("ld,dhe->lhe", rows, kernel[:, n]) + bias[n] for n in (0, 1))
        for i in range(length):
            for j in range(length):
                total[:, i, j] += ((k[j] + p[j - i]) * q[i]).sum(-1)
    np.testing.assert_allclose(found, total / len(words), atol=2e-4)


def test_identical_words_show_the_properties_of_table_1():
    """No positions: a constant. Relative ones: the same on every diagonal, not symmetric."""
    words = np.arange(30)
    for position in PAPER[:7]:
        config, _, params = model(position)
        phi = properties.identical_words(
            attention_map(config), params, words, length=12
        )
        phi = np.asarray(phi)
        invariant = properties.translation_invariance(phi)
        if position == "none":
            np.testing.assert_allclose(phi, phi[:, :1, :1] + 0 * phi, atol=1e-4)
        elif "relative" in position:
            np.testing.assert_allclose(invariant, 0, atol=1e-6)
            assert float(properties.symmetry(phi).min()) > 0.01
        else:
            assert float(invariant.min()) > 0.05
    attend = attention_map(config, what="weights")
    weights = properties.identical_words(attend, params, words, length=12)
    np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, atol=1e-5)


def test_positions_through_the_projections():
    _, _, params = model("learned_absolute")
    p = np.asarray(params["position"]["learned_absolute"]["table"])
    q, k = map(np.asarray, projections(params, 1))
    found = properties.position_products(p, q, k)
    for h in range(2):
        np.testing.assert_allclose(
            found[h], p @ q[:, h] @ k[:, h].T @ p.T, rtol=2e-4, atol=1e-5
        )
    matrices = query_key_matrices(params, 3)
    whole = sum(q[:, h] @ k[:, h].T for h in range(2))
    np.testing.assert_allclose(matrices[1], whole, rtol=1e-4, atol=1e-5)


# --- regression -----------------------------------------------------------------------------------


def test_regression_equals_scikit_learn():
    """Fewer and more vectors than dimensions, least squares and ridge."""
    rng = np.random.default_rng(0)
    for rows, dim in ((40, 7), (30, 64)):
        x, y = rng.normal(size=(rows, dim)), np.arange(rows)
        fits = properties.regress(x, ridge=(0.0, 1e-3, 1.0))
        even = y % 2 == 0
        largest = np.linalg.svd(x[even] - x[even].mean(0), compute_uv=False)[0]
        for fit, other in zip(
            fits,
            [
                LinearRegression(),
                *(Ridge(a * largest**2, solver="svd") for a in (1e-3, 1.0)),
            ],
            strict=True,
        ):
            other.fit(x[even], y[even])
            np.testing.assert_allclose(fit.predicted, other.predict(x), atol=1e-8)
            assert fit.r2["test"] == pytest.approx(other.score(x[~even], y[~even]))
            assert fit.mean_absolute_error["all"] == pytest.approx(
                np.abs(other.predict(x) - y).mean()
            )


def test_regression_is_exact_for_a_line_and_at_chance_for_noise():
    line = np.stack([np.arange(20) * 0.1, np.ones(20)], axis=1).astype(np.float32)
    exact = properties.regress(line)[0]
    assert (
        exact.r2["test"] == pytest.approx(1) and exact.mean_absolute_error["all"] < 1e-4
    )
    noise = np.random.default_rng(0).normal(size=(400, 4))
    assert abs(properties.regress(noise)[0].r2["test"]) < 0.1
    constant = properties.regress(np.ones((10, 3)))[
        0
    ]  # No information: predicts the mean.
    np.testing.assert_allclose(constant.predicted, 4)


def test_regression_on_offsets_and_a_choice_of_training_positions():
    x = np.arange(-8, 9)
    fit = properties.regress(x[:, None] * np.ones((1, 3)), x)[0]
    np.testing.assert_allclose(fit.predicted, x, atol=1e-9)
    some = x < 0
    fit = properties.regress(x[:, None] * np.ones((1, 3)), x, train=some)[0]
    assert fit.r2["test"] == pytest.approx(1)


def test_regression_refuses_bad_arguments():
    with pytest.raises(ValueError, match="got 2 vectors, 1 of them"):
        properties.regress(np.ones((2, 3)))
    with pytest.raises(ValueError, match="0 or more, got -1"):
        properties.regress(np.ones((9, 3)), ridge=(0.0, -1.0))
    with pytest.raises(ValueError, match="penalties must be finite .* got nan"):
        properties.regress(np.ones((9, 3)), ridge=(0.0, np.nan))
    for wrong in (np.nan, np.inf):
        with pytest.raises(
            ValueError, match="^vectors must be finite, .* in 27 of 27 values"
        ):
            properties.regress(np.full((9, 3), wrong))
        with pytest.raises(
            ValueError, match="^positions must be finite, .* in 9 of 9 values"
        ):
            properties.regress(np.ones((9, 3)), np.full(9, wrong))
    with pytest.raises(ValueError, match="^vectors must be real, got complex64"):
        finite("vectors", np.ones((9, 3), np.complex64))


# --- correlations ---------------------------------------------------------------------------------


def test_correlations_equal_scipy():
    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=7), "b": rng.normal(size=7)}
    scores = {"s": table["a"] * 2 + rng.normal(size=7), "t": -np.exp(table["b"])}
    found = {(c.violation, c.score): c for c in properties.correlate(table, scores)}
    assert len(found) == 4
    assert found["b", "t"].spearman == pytest.approx(-1)
    one = found["a", "s"]
    assert one.n == 7
    assert (one.pearson, one.pearson_p) == pytest.approx(
        stats.pearsonr(table["a"], scores["s"])
    )
    assert one.spearman == pytest.approx(
        stats.spearmanr(table["a"], scores["s"]).statistic
    )
    # All orders of the seven: how many are as far from 0?
    ranks, other = (np.argsort(np.argsort(x)) for x in (table["a"], scores["s"]))
    every = np.array(
        [np.corrcoef(ranks, order)[0, 1] for order in itertools.permutations(other)]
    )
    expected = (abs(every) >= abs(one.spearman) - 1e-9).mean()
    assert one.spearman_p == pytest.approx(expected, rel=0.03)
    assert found["b", "t"].spearman_p == pytest.approx(
        2 / 5040
    )  # Not 0: one order of 5,040 each.


def test_correlations_with_gaps_and_constants():
    scores = [1.0, 2.0, np.nan, 3.0, 5.0]
    gap, constant = properties.correlate(
        {"v": [1, 2, 3, 4, 5], "c": [0, 0, 0, 0, 0]}, {"s": scores}
    )
    assert gap.n == 4 and gap.spearman == pytest.approx(1)
    assert constant.pearson is constant.pearson_p is None
    assert constant.spearman is constant.spearman_p is None


def test_too_few_runs_to_correlate():
    with pytest.raises(ValueError, match="at least 4 runs that have both, got 3"):
        properties.correlate({"v": [1, 2, 3]}, {"s": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"the same length, got \{'v': 4, 's': 5\}"):
        properties.correlate({"v": [1, 2, 3, 4]}, {"s": [1, 2, 3, 4, 5]})
