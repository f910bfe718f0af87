"""KERPLE by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_encodings import bias_at, made_narrow

from pe_jax.encodings import HookContext


def test_kerple_by_hand():
    own = {"r1": np.float32([2.0, 1.0]), "r2": np.float32([1.0, 3.0])}
    found = bias_at("kerple", own, [0, 3, -3, 5])
    expected = [[0, 0], [np.log(4) * 2, np.log(10)], [np.log(4) * 2, np.log(10)]]
    np.testing.assert_allclose(found[:3], -np.array(expected), rtol=1e-6)
    np.testing.assert_allclose(found[3], [-2 * np.log(6), -np.log(16)], rtol=1e-6)
    # A power above 2 counts as 2.
    found = bias_at("kerple(kernel='power')", own, [0, 3, -3])
    np.testing.assert_allclose(found, [[0, 0], [-6, -9], [-6, -9]], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_beyond_a_bound_has_its_value_and_a_gradient(kernel):
    name = f"kerple(kernel={kernel!r})"
    total = lambda own: jnp.sum(
        made_narrow(name)[0]
        .parts[0]
        .offsets.bias(
            own, np.arange(4), HookContext(positions_q=range(0), positions_k=range(0))
        )
    )
    low = {"r1": np.float32([-1.0, 0.01]), "r2": np.float32([-1.0, 0.01])}
    np.testing.assert_array_equal(*np.moveaxis(bias_at(name, low, range(4)), -1, 0))
    grads = jax.jit(jax.grad(total))(low)
    assert all(grad[0] == grad[1] != 0 for grad in grads.values())


def test_kerple_starts_as_the_authors_do():
    many = dict(num_heads=4000)
    for kernel, widths in (("log", (2, 1)), ("power", (1, 2))):
        own = made_narrow(f"kerple(kernel={kernel!r})", **many)[1]["kerple"]
        for r, width in zip((own["r1"], own["r2"]), widths):
            assert r.min() >= 0 and 0.99 * width < r.max() <= width
            assert abs(r.mean() - width / 2) < 0.05
