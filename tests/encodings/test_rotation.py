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


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_rounds_once(layout, dtype):
    """Output and gradient of the inputs, in the form of a TPU, are the exact ones rounded to the
    dtype: a product with a rounded operand would add to that."""
    x = queries_keys(dtype=dtype)[0]
    rng = np.random.default_rng(1)
    angle = rng.normal(size=(x.shape[1], x.shape[2], 3)).astype(np.float32)
    cos, sin = np.cos(angle), np.sin(angle)
    g = jnp.asarray(rng.normal(size=x.shape), dtype)
    rotate = functools.partial(rotation._by_product, layout)
    rotate_x = lambda x: rotate(x, cos, sin)
    out, (dx,) = value_and_pullback(rotate_x, (x,), g)
    wide = lambda x: np.asarray(x, np.float64)
    exact_out = by_hand(layout, wide(x), wide(cos), wide(sin))
    exact_dx = by_hand(layout, wide(g), wide(cos), -wide(sin))
    half_a_digit = 2.0**-8 if dtype == jnp.bfloat16 else 2.0**-21
    np.testing.assert_allclose(
        wide(out), exact_out, rtol=1.01 * half_a_digit, atol=1e-6
    )
    np.testing.assert_allclose(wide(dx), exact_dx, rtol=1.01 * half_a_digit, atol=1e-6)


def by_hand(layout, x, cos, sin):
    """The rotation in NumPy; rotates back where the sine is negative."""
    out = x.copy()
    for m, (a, b) in enumerate(rotation.pairs(cos.shape[-1], layout)):
        out[..., a] = x[..., a] * cos[..., m] - x[..., b] * sin[..., m]
        out[..., b] = x[..., b] * cos[..., m] + x[..., a] * sin[..., m]
    return out


def test_derivatives_of_the_product():
    """Forward, and backward of backward, as of the other form."""
    x = queries_keys()[0]
    angle = np.random.default_rng(1).normal(size=(x.shape[1], 1, 3)).astype(np.float32)
    found = []
    for rotate in (rotation._by_product, rotation._by_halves):

        def energy(x, angle, rotate=rotate):
            return (rotate("half", x, jnp.cos(angle), jnp.sin(angle)) ** 3).sum()

        def derivatives(x, angle, energy=energy):
            gradient = lambda angle: jax.grad(energy)(x, angle)
            return jax.jvp(energy, (x, angle), (x, angle)), jax.vjp(gradient, angle)[1](
                x
            )

        found.append(jax.jit(derivatives)(x, angle))
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
