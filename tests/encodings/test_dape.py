"""DAPE: networks of logits by hand."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, qk


def test_dape_sees_products_and_biases_of_all_heads():
    """A hidden unit that adds up the second head's product and bias, for the first head."""
    encoding, (q, k) = build("alibi+dape(width=1)"), qk()
    plain = attention_logits(q, k, build("alibi"), {})
    params = {
        "hidden": {"kernel": np.float32([[0], [1], [0], [1]]), "bias": np.float32([2])},
        "out": {"kernel": np.float32([[3, 0]]), "bias": np.float32([0, 5])},
    }
    plain = np.asarray(plain)
    found = np.asarray(attention_logits(q, k, encoding, {"dape": params}))
    hidden = plain[:, 1] + 2
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    np.testing.assert_allclose(found[:, 0], plain[:, 0] + 3 * hidden, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], plain[:, 1] + 5, atol=1e-5)


def test_dape_v2_with_a_kernel_of_one_is_dape():
    params = jax.jit(build("dape").init)(jax.random.key(0))
    one = jax.tree.map(
        lambda x: np.asarray(x)[None] if x.ndim == 2 else x, params["dape"]
    )
    (q, k), v2 = qk(), build("alibi+dape_v2(kernel_size=1)")
    expected = attention_logits(q, k, build("alibi+dape"), params)
    np.testing.assert_allclose(
        attention_logits(q, k, v2, {"dape_v2": one}), expected, rtol=1e-5, atol=1e-5
    )
    with pytest.raises(
        ValueError, match="kernel_size must be odd and at least 1, got 4"
    ):
        build("dape_v2(kernel_size=4)")


def test_dape_v2_meets_neighbours_on_the_side_that_its_kernel_says():
    """Only the first rows of the kernels: the product two keys to the left."""
    (q, k), heads = qk(), 2
    hidden = np.zeros((3, 2 * heads, 1), np.float32)
    out = np.zeros((3, 1, heads), np.float32)
    hidden[0, 1], out[0, 0, 0] = 1.0, 1.0
    params = {
        "hidden": {"kernel": hidden, "bias": np.zeros(1, np.float32)},
        "out": {"kernel": out, "bias": np.zeros(heads, np.float32)},
    }
    plain = np.asarray(attention_logits(q, k, build("none"), {}))
    found = np.asarray(
        attention_logits(q, k, build("dape_v2(width=1)"), {"dape_v2": params})
    )
    leaky = np.where(plain[:, 1] > 0, plain[:, 1], 0.01 * plain[:, 1])
    moved = np.pad(leaky, ((0, 0), (0, 0), (2, 0)))[..., :-2]
    np.testing.assert_allclose(found[:, 0], plain[:, 0] + moved, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], plain[:, 1], atol=1e-6)


@pytest.mark.parametrize("name", ["dape", "dape_v2"])
def test_networks_of_logits_do_not_see_forbidden_keys(name):
    """Biases of -inf, from heads that look to one side and from chunks, and masks."""
    encoding = build(f"alibi(directed=True)+chunks(size=4)+{name}")
    params = jax.jit(encoding.init)(jax.random.key(0))
    (q, k), mask = qk(), (np.arange(6) < 5)[None, None, None]

    def loss(q, k, params):
        out = attention(q, k, k, encoding, params, mask=mask)
        return (out[:, :2] ** 2).sum()

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, grads)))
    seen = np.abs(np.asarray(grads[1])).max(axis=(0, 2, 3)) > 0
    np.testing.assert_array_equal(seen, np.arange(6) < 4)
