"""Rotations by hand, and their two forms."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import value_and_pullback
from helpers.small_encodings import queries_keys

from pe_jax.encodings.rotary import rotation
from pe_jax.encodings.rotary.rope import rotate_heads


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("half", [math.cos(3), math.cos(0.03), math.sin(3), math.sin(0.03)]),
        ("interleaved", [math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)]),
    ],
)
def test_rotation_by_hand(layout, expected):
    # d = 4: frequencies 1 and 1/100; vectors along the first dimension of each pair.
    x = np.array([1, 1, 0, 0] if layout == "half" else [1, 0, 1, 0], np.float32)[
        None, None, None
    ]
    w = np.array([[1, 0.01]], np.float32)
    found = jax.jit(lambda x: rotate_heads(x, np.array([3]), w, layout))(x)
    np.testing.assert_allclose(found[0, 0, 0], expected, 1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_rotates_as_halves_do(layout, dtype):
    """The form of a TPU against that of all others, gradients included; a part stays as it is."""
    x = queries_keys(dtype=dtype)[0]
    rng = np.random.default_rng(1)
    angle = rng.normal(size=(x.shape[1], x.shape[2], 3)).astype(np.float32)
    inputs, weights = (
        (x, 2 * np.cos(angle), 2 * np.sin(angle)),
        rng.normal(size=x.shape),
    )
    got, want = (
        value_and_pullback(
            functools.partial(rotate, layout), inputs, weights.astype(dtype)
        )
        for rotate in (rotation._by_product, rotation._by_halves)
    )
    assert got[0].dtype == want[0].dtype == dtype
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, atol=2e-6 if dtype == jnp.float32 else 0.05)
