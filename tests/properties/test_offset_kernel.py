"""The offset kernel: mean logits over random tokens, of any encoding."""

import dataclasses
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.initial_params import initial_params

from pe_jax import encodings, properties
from pe_jax.attention import attention_logits
from pe_jax.models import Bert, BertConfig, attended, attention_map, kernel_map

CONFIG = BertConfig(
    vocab_size=40, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_length=16,
    initializer_stddev=0.5,
)  # fmt: skip
LENGTH = 9
WORDS = np.arange(40)


@functools.cache
def model(position):
    config = dataclasses.replace(CONFIG, position=position)
    return config, initial_params(Bert(config), np.zeros((1, 2), np.int32))


def kernel(position, inputs, batch=8):
    config, params = model(position)
    where = attended(config, inputs.shape[-1])[:, None]
    return properties.offset_kernel(
        kernel_map(config), params, inputs, where=where, batch=batch
    )


def words(count=6, length=LENGTH, seed=0):
    return properties.random_words(
        jax.random.key(seed), WORDS, count=count, length=length
    )


def texts(count, length=LENGTH, seed=0):
    return properties.random_texts(
        jax.random.key(seed), WORDS, count=count, length=length
    )


def embedded(table, encoding, params, inputs):
    """Tokens are rows of a table, both queries and keys; no projections, one head."""
    x = table[inputs][..., None, :]  # [B, T, L, 1, d]
    q, k = (one.reshape(-1, *one.shape[2:]) for one in (x, jnp.roll(x, -1, axis=1)))
    found = attention_logits(q, k, encoding, params)
    return found.reshape(*inputs.shape[:2], *found.shape[1:]).mean(1)


def test_values_by_hand():
    """Two inputs of two words each, queries and keys of size 2, and a bias of the offset."""
    table = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], np.float32)
    encoding = encodings.alibi(num_heads=1)
    attend = lambda params, inputs: embedded(
        jnp.asarray(table), encoding, params, inputs
    )
    params = encoding.init(jax.random.key(0))
    inputs = np.broadcast_to(np.array([[0, 2], [1, 2]])[..., None], (2, 2, 3))
    found = properties.offset_kernel(attend, params, inputs)
    # q·k: (1, 0)·(3, 1) = 3 and (0, 2)·(3, 1) = 2, the same in both directions; over sqrt(2).
    slope = 2.0**-8  # Of a single head.
    apart = np.abs(np.arange(3)[:, None] - np.arange(3))
    np.testing.assert_allclose(
        found.mean[0], 2.5 / np.sqrt(2) - slope * apart, rtol=1e-6
    )
    np.testing.assert_allclose(
        found.error, 0, atol=1e-6
    )  # The words change the level alone.

    texts = np.array([[[0, 1, 2]], [[2, 0, 0]], [[1, 1, 0]]])
    found = properties.offset_kernel(attend, params, texts, batch=2)
    each = [(rows := table[one[0]]) @ rows.T / np.sqrt(2) for one in texts]
    np.testing.assert_allclose(
        found.mean[0], np.mean(each, 0) - slope * apart, rtol=1e-5
    )
    centered = [one - one.mean() for one in each]
    error = np.std(centered, axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(found.error[0], error, rtol=1e-5, atol=1e-6)
    alone = properties.offset_kernel(attend, params, texts[:1])
    assert np.isnan(alone.error).all() and np.isfinite(alone.mean).all()


def test_one_word_is_identical_word_probing():
    config, params = model("learned_absolute+learned_relative+rope")
    ids = np.array([3, 7, 11, 28, 2])
    copies = np.broadcast_to(ids[:, None, None], (5, 1, LENGTH))
    found = properties.offset_kernel(kernel_map(config), params, copies, batch=2)
    for layer in range(2):
        attend = attention_map(config, layer=layer)
        expected = properties.identical_words(
            attend, params, ids, length=LENGTH, batch=2
        )
        np.testing.assert_allclose(found.mean[layer], expected, rtol=1e-5, atol=1e-5)


def test_chunks_change_nothing():
    inputs = texts(11)
    logits = np.asarray(
        jax.jit(kernel_map(CONFIG))(model("learned_absolute")[1], inputs)
    )
    off_diagonal = ~np.eye(LENGTH, dtype=bool)
    seen = logits[..., off_diagonal]
    error = (seen - seen.mean(-1, keepdims=True)).std(0, ddof=1) / np.sqrt(11)
    for batch in (1, 4):
        found = kernel("learned_absolute", inputs, batch=batch)
        np.testing.assert_allclose(
            found.mean[..., off_diagonal], seen.mean(0), atol=1e-5
        )
        np.testing.assert_allclose(
            found.error[..., off_diagonal], error, rtol=1e-4, atol=1e-5
        )


def test_memory_is_that_of_a_batch():
    """Not of all inputs at once: ten times the inputs take no more."""
    config, params = model("rope")
    used = []
    for count in (8, 80):
        program = properties.offset_kernel.lower(
            kernel_map(config),
            params,
            jnp.zeros((count, 2, LENGTH), jnp.int32),
            batch=4,
        )
        used.append(program.compile().memory_analysis().temp_size_in_bytes)
    assert (
        used[1] < used[0] + 80 * 2 * LENGTH * 4 * 4
    )  # The tokens, padded and in blocks.


def test_random_inputs():
    pairs = np.asarray(words(50))
    assert pairs.shape == (50, 2, LENGTH)
    assert (pairs == pairs[..., :1]).all() and (pairs[:, 0] != pairs[:, 1]).all()
    np.testing.assert_array_equal(pairs, words(50))
    assert (pairs != np.asarray(words(50, seed=1))).any()
    rows = np.asarray(texts(LENGTH + 2))
    assert rows.shape == (LENGTH + 2, 1, LENGTH)
    for column in range(LENGTH):  # Every word at every position once.
        np.testing.assert_array_equal(
            np.sort(rows[:LENGTH, 0, column]), np.sort(rows[0, 0])
        )
    assert len(set(rows[0, 0])) == LENGTH and set(rows[0, 0]) != set(rows[LENGTH, 0])
    with pytest.raises(ValueError, match="at least two words, got 1"):
        properties.random_words(jax.random.key(0), WORDS[:1], count=2, length=4)


def test_rope_is_invariant_within_the_standard_error():
    """Exactly for pairs of words, within the noise for texts; learned positions are not."""
    exact = np.asarray(kernel("rope", words()).mean[0])
    where = attended(CONFIG, LENGTH)[0]
    assert float(properties.translation_invariance(exact, where=where).max()) < 1e-8
    noisy = kernel(
        "rope", texts(5 * LENGTH - 4)
    )  # Not in all rotations: the noise is seen.
    mean, error = (np.asarray(x)[0] for x in (noisy.mean, noisy.error))
    curve, _ = properties.offset_curve(mean, where=where)
    at = np.arange(LENGTH)[None, :] - np.arange(LENGTH)[:, None] + LENGTH - 1
    deviation = (mean - np.asarray(curve)[:, at])[:, where] / error[:, where]
    assert 0.01 < (deviation**2).mean() < 1.5
    learned = np.asarray(kernel("learned_absolute", words()).mean)[0]
    assert float(properties.translation_invariance(learned, where=where).min()) > 0.05


@pytest.mark.parametrize("position", ["rope+causal", "rope+window(max_distance=3)"])
def test_entries_that_do_not_exist(position):
    """They are NaN, and no metric reads them."""
    config, _ = model(position)
    where = attended(config, LENGTH)[0]
    at = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
    allowed = at < 0 if "causal" in position else (at != 0) & (np.abs(at) <= 3)
    np.testing.assert_array_equal(where, allowed)
    phi = np.asarray(kernel(position, words()).mean)
    np.testing.assert_array_equal(np.isnan(phi), np.broadcast_to(~allowed, phi.shape))
    for metric in (
        properties.translation_invariance, properties.monotonicity, properties.symmetry,
    ):  # fmt: skip
        assert np.isfinite(metric(phi, where=where)).all()
    assert float(properties.translation_invariance(phi[0], where=where).max()) < 1e-8
    full = np.asarray(kernel("rope", words()).mean)
    np.testing.assert_allclose(phi[0][:, allowed], full[0][:, allowed], atol=1e-4)


def test_metrics_of_some_entries():
    """A mask of the first positions is what `length` is; loops over the entries that exist."""
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(2, 8, 8)).astype(np.float32)
    first = np.arange(8) < 6
    where = first[:, None] & first
    for metric in (
        properties.translation_invariance, properties.monotonicity, properties.symmetry,
        functools.partial(properties.monotonicity, window=3, weighted=True),
    ):  # fmt: skip
        np.testing.assert_allclose(
            metric(phi, where=where), metric(phi, length=6), rtol=1e-5
        )
    below = np.tril(np.ones((8, 8), bool), -1)
    wrong = [
        phi[:, i, far] > phi[:, i, near]
        for i in range(8) for near in range(i) for far in range(near)
    ]  # fmt: skip
    found = properties.monotonicity(phi, where=below)
    np.testing.assert_allclose(found, np.mean(wrong, axis=0), rtol=1e-5)
    assert (
        float(properties.symmetry(phi, where=below).max()) == 0
    )  # No pair has both directions.
    values = np.where(below, phi, np.nan)
    diagonals = [np.diagonal(values, m, 1, 2) for m in range(-7, 0)]
    unexplained = sum(((d - d.mean(-1, keepdims=True)) ** 2).sum(-1) for d in diagonals)
    whole = ((phi - np.nanmean(values, axis=(1, 2), keepdims=True)) ** 2)[:, below].sum(
        -1
    )
    found = properties.translation_invariance(values, where=below)
    np.testing.assert_allclose(found, unexplained / whole, rtol=1e-4)


def test_the_curve_of_a_matrix():
    phi = np.arange(9.0).reshape(3, 3)
    mean, spread = properties.offset_curve(phi)
    np.testing.assert_allclose(mean, [6, 5, 4, 3, 2])
    np.testing.assert_allclose(spread, [0, 2, np.std([0, 4, 8]), 2, 0])
    mean, _ = properties.offset_curve(phi, where=phi > 4)
    np.testing.assert_allclose(mean, [6, 7, 8, 5, np.nan])


def test_a_bias_of_the_distance_has_every_property():
    """ALiBi, the example of docs/measures/offset_kernel.md."""
    page = Path(__file__).parents[2] / "docs/measures/offset_kernel.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    (block,) = [one for one in blocks if "kernel_map" in one]
    exec(block, found := {})
    phi, where = found["kernel"].mean, found["where"][0]
    assert phi.shape == (2, 2, 64, 64)
    np.testing.assert_array_equal(properties.monotonicity(phi, where=where), 0)
    assert float(properties.translation_invariance(phi, where=where).max()) < 1e-8
    assert float(properties.symmetry(phi, where=where).max()) < 1e-8
