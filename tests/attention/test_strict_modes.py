"""Modes of JAX that refuse implicit promotion, which a caller may set for all of its program."""

import jax
import jax.numpy as jnp
import pytest
from helpers.joined_encodings import JOINED, loss, shapes

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("name", JOINED.values(), ids=JOINED)
@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        ("fused", jnp.bfloat16),
        pytest.param("table", jnp.float32, marks=pytest.mark.slow),
        pytest.param("naive", jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_every_encoding_passes(name, implementation, dtype):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(
            jax.grad(lambda *args: loss(name, *args, implementation=implementation), 1),
            *shapes(name, dtype),
        )
