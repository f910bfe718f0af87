"""`attention(..., return_lse=True)`: attention to pieces of the keys, put together."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.encodings import Context

L, H, d = 8, 2, 8
pytestmark = pytest.mark.usefixtures("small_blocks")
SIZES = dict(hidden_size=H * d, head_size=d, num_heads=H, max_length=L)
Q, K, V = jax.random.normal(jax.random.key(0), (3, 1, L, H, d))


def in_pieces(name, sink, implementation, params, q, k, v):
    """Attention to either half of the keys, weighted by the denominators; one has the sink."""
    outs, logs = [], []
    for keys, more in ((range(4), sink), (range(4, L), "")):
        encoding = encodings.from_name(name + more, **SIZES)
        piece = slice(keys.start, keys.stop)
        out, lse = attention(
            *(
                q,
                k[:, piece],
                v[:, piece],
                encoding,
                params,
                Context(positions_q=range(L), positions_k=keys),
            ),
            implementation=implementation,
            return_lse=True,
        )
        outs.append(out)
        logs.append(lse)
    weights = jax.nn.softmax(jnp.stack(logs), axis=0)
    return jnp.einsum("nbqh,nbqhd->bqhd", weights, jnp.stack(outs))


@pytest.mark.parametrize(
    "implementation", ["naive", "table", pytest.param("fused", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("name", "sink"),
    [
        ("learned_relative(max_distance=2)+causal", "+sink"),
        pytest.param("window(max_distance=2)+t5", "+sink", marks=pytest.mark.slow),
        pytest.param("kerple+dape+rope", "", marks=pytest.mark.slow),
    ],
)
def test_pieces_of_the_keys_make_the_whole(name, sink, implementation):
    """Also the gradients, which pass through the denominators; some rows of a piece are empty."""
    whole = encodings.from_name(name + sink, **SIZES)
    params = jax.tree.map(lambda x: x + 0.3, whole.init(jax.random.key(1)))

    def of_whole(params, q, k, v):
        return attention(q, k, v, whole, params, implementation="naive")

    def run(function):
        loss = lambda *args: (function(*args) ** 2).sum()
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(params, Q, K, V)

    got, expected = (
        run(functools.partial(in_pieces, name, sink, implementation)),
        run(of_whole),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, expected
    )


def test_it_is_the_logarithm_of_the_sum_of_exponentials():
    logits = np.einsum("bqhd,bkhd->bqhk", Q, K) / d**0.5
    _, lse = attention(Q, K, V, return_lse=True)
    np.testing.assert_allclose(lse, np.log(np.exp(logits).sum(-1)), rtol=1e-5)
    masked = attention(Q, K, V, mask=jnp.zeros((1, 1, 1, L), bool), return_lse=True)[1]
    assert (masked < -1e37).all() and np.isfinite(masked).all()


def test_implementations_without_one():
    for implementation in ("cudnn", "kernel"):
        with pytest.raises(
            ValueError,
            match=f"implementation='{implementation}' needs return_lse=False",
        ):
            attention(Q, K, V, implementation=implementation, return_lse=True)
