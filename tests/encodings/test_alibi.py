"""ALiBi: slopes and biases by hand, and against Bloom and MPT."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import bias_between
from helpers.torch_modules import needs

from pe_jax import encodings
from pe_jax.encodings import Context
from pe_jax.encodings.bias.alibi import slopes

CLOSE = {"atol": 1e-4, "rtol": 0}


def bias_of_rows(encoding, params, heads, positions):
    zeros = jnp.zeros(
        (np.atleast_2d(positions).shape[0], np.shape(positions)[-1], heads, 4)
    )
    return np.asarray(
        attention_logits(zeros, zeros, encoding, params, Context(positions_q=positions))
    )


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes(heads, powers):
    np.testing.assert_allclose(slopes(heads), 2.0 ** -np.array(powers), rtol=1e-6)


def test_alibi_by_hand():
    found = bias_between(encodings.alibi(num_heads=2), {}, range(3))
    expected = -np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(found, [expected / 16, expected / 256])


def test_directed_alibi_shows_each_half_of_the_heads_a_side():
    found = bias_between(encodings.alibi(num_heads=2, directed=True), {}, range(3))
    to_the_left = -np.array([[0, np.inf, np.inf], [1, 0, np.inf], [2, 1, 0]])
    to_the_right = -np.array([[0, 1, 2], [np.inf, 0, 1], [np.inf, np.inf, 0]])
    np.testing.assert_allclose(found, np.array([to_the_left, to_the_right]) / 256)


@pytest.mark.parametrize("implementation", ["naive", "auto", "fused"])
def test_directed_alibi_of_a_query_without_a_key_on_its_side(implementation):
    """Padding to the right of all tokens, in a head that attends to the right: zeros."""
    q, k, v = (
        np.random.default_rng(0).normal(size=(1, 4, 2, 4)).astype(np.float32),
    ) * 3
    mask = np.array([True, True, True, False])[None, None, None]
    call = lambda q: attention(
        q,
        k,
        v,
        encodings.alibi(num_heads=2, directed=True),
        mask=mask,
        implementation=implementation,
    )
    out, slope = call(q), jax.jit(jax.grad(lambda q: call(q).sum()))(q)
    assert np.isfinite(out).all() and np.isfinite(slope).all()
    np.testing.assert_array_equal(out[0, 3, 1], 0)
    assert (out[0, 3, 0] != 0).all()


def test_learnable_alibi():
    start = encodings.alibi(num_heads=2, learnable=True)
    params = start.init(jax.random.key(0))
    fixed = bias_between(encodings.alibi(num_heads=2), {}, range(5))
    np.testing.assert_allclose(bias_between(start, params, range(5)), fixed, rtol=1e-5)
    raw = [[math.log(2), 0], [-math.log(3), 0]]  # Left 2/3 and 1/2, right 1/4 and 1/2.
    both = encodings.alibi(num_heads=2, directed=True, learnable=True)
    found = bias_between(both, {"alibi": {"slopes": np.float32(raw)}}, range(2))
    np.testing.assert_allclose(
        found, [[[0, -1 / 4], [-2 / 3, 0]], [[0, -0.5], [-0.5, 0]]]
    )


def test_halves_of_an_odd_number_of_heads():
    with pytest.raises(ValueError, match="num_heads must be even; got 3"):
        encodings.alibi(num_heads=3, directed=True)
    encodings.alibi(num_heads=3, directed=True, learnable=True)


@needs("torch", "transformers")
@pytest.mark.parametrize("heads", [1, 3, 8, 12, 20, 71])
def test_alibi_slopes_are_those_of_bloom_and_mpt(torch, heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    np.testing.assert_allclose(slopes(heads), bloom, rtol=1e-6)
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    np.testing.assert_allclose(slopes(heads), mpt, rtol=1e-6)


@needs("torch", "transformers")
def test_alibi_with_left_padding(torch):
    """Bloom adds m·j, equal to -m·(i - j) up to a number of each query; keys to the left only."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    valid = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    theirs = (
        build_alibi_tensor(torch.tensor(valid), 6, torch.float32)
        .view(2, 6, 1, 5)
        .numpy()
    )
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)
    ours = bias_of_rows(encodings.alibi(num_heads=6), {}, 6, positions)
    difference = ours - theirs
    for row, first in ((0, 0), (1, 2)):
        for i in range(first, 5):
            of_query = difference[row, :, i, first : i + 1]
            np.testing.assert_allclose(
                of_query, np.tile(of_query[:, -1:], i - first + 1), **CLOSE
            )
