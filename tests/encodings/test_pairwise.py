"""Networks of pairs have the same values and gradients for a few queries at a time as for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.encodings import pairwise

L = 7


@pytest.mark.parametrize("name", ["fire", "cope+causal", "kerple+dape", "fire+dape_v2"])
def test_a_few_queries_at_a_time(name, monkeypatch):
    encoding = encodings.from_name(
        name, hidden_size=8, head_size=4, num_heads=2, max_length=L
    )
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, L, 2, 4)).astype(np.float32) for _ in range(3))
    mask = np.arange(L) < np.array([[L], [5]])  # Keys of each row.
    params = jax.jit(encoding.init)(jax.random.key(0))
    params = jax.tree.map(
        lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params
    )

    def loss(params, q, k):
        out = attention(q, k, v, encoding, params, mask=mask[:, None, None])
        return (out * jnp.arange(out.size).reshape(out.shape)).sum()

    def run():
        traced = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).trace(params, q, k)
        return "scan[" in str(traced.jaxpr), traced.lower().compile()(params, q, k)

    cut, expected = run()
    assert not cut
    # 7 queries in several blocks, the last one padded.
    monkeypatch.setattr(pairwise, "_ON_CPU", 500)
    cut, found = run()
    assert cut
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4),
        expected,
        found,
    )


@pytest.mark.parametrize("name", ["fire", "cope+causal", "fire+dape_v2"])
def test_a_batch_without_rows(name):
    encoding = encodings.from_name(
        name, hidden_size=8, head_size=4, num_heads=2, max_length=L
    )
    q = np.zeros((0, L, 2, 4), np.float32)
    run = lambda key: attention(q, q, q, encoding, encoding.init(key))
    assert jax.eval_shape(run, jax.random.key(0)).shape == q.shape
