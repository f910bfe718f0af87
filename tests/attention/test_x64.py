"""Attention and models under `JAX_ENABLE_X64`: float64 where the inputs are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.joined_encodings import JOINED, draws, loss, shapes

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.models import Bert, preset

pytestmark = pytest.mark.usefixtures("small_blocks")
FEW = (
    "learned_relative+t5+fire+cable+dape+sink+rope(learnable=True)"
    "+sinusoidal_relative(max_distance=None)"
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def gradient(name, implementation):
    return jax.value_and_grad(
        lambda *args: loss(name, *args, implementation=implementation), (0, 1, 2)
    )


@pytest.mark.parametrize("name", JOINED.values(), ids=JOINED)
@pytest.mark.parametrize(
    "implementation", ["table", pytest.param("fused", marks=pytest.mark.slow)]
)
def test_types_of_every_gradient(name, implementation):
    args = shapes(name, jnp.float64)
    value, got = jax.eval_shape(gradient(name, implementation), *args)
    assert value.dtype == jnp.float64
    assert jax.tree.map(lambda x: (x.shape, x.dtype), got) == jax.tree.map(
        lambda x: (x.shape, x.dtype), args
    )


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        (FEW, "fused"),
        *(
            pytest.param(n, f, marks=pytest.mark.slow)
            for n in JOINED.values()
            for f in ("table", "fused")
        ),
    ],
)
def test_implementations_agree_to_the_last_digits(name, implementation):
    args = draws(name, jnp.float64)
    got, expected = (
        jax.jit(gradient(name, f))(*args) for f in (implementation, "naive")
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11 * (1 + np.abs(b).max()))


def test_float32_stays_float32():
    """Parameters that were drawn as float64 do not widen what the queries are."""
    encoding = (
        encodings.t5(num_heads=2)
        + encodings.kerple(num_heads=2)
        + encodings.sink(num_heads=2)
    )
    params = encoding.init(jax.random.key(0))
    q = jax.ShapeDtypeStruct((1, 5, 2, 8), jnp.float32)
    for implementation in ("naive", "table", "fused"):
        run = functools.partial(
            attention, implementation=implementation, return_lse=True
        )
        out, lse = jax.eval_shape(
            lambda q, p, run=run: run(q, q, q, encoding, p), q, params
        )
        assert out.dtype == lse.dtype == jnp.float32


@pytest.mark.parametrize(
    "position",
    ["learned_absolute", "learned_relative+alibi", "rope+t5", "deberta+sink"],
)
def test_a_bert_is_differentiated(position):
    model = Bert(preset("tiny", position=position, vocab_size=50))
    tokens = jnp.ones((2, 9), jnp.int32)

    def total(params):
        return sum(
            x.sum() for x in jax.tree.leaves(model.apply({"params": params}, tokens))
        )

    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    grads = jax.eval_shape(jax.grad(total), params)
    assert jax.tree.map(lambda x: x.dtype, grads) == jax.tree.map(
        lambda x: x.dtype, params
    )
