"""Rows longer than every clip, in every layout of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import SMALL

from pe_jax import encodings
from pe_jax.encodings import Context


def away(params, seed=1):
    """Parameters that differ in all their entries."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: x + 0.5 * rng.normal(size=x.shape).astype(np.float32), params
    )


@pytest.mark.parametrize(
    "name",
    [
        "alibi",
        "alibi(directed=True)",
        pytest.param("t5", marks=pytest.mark.slow),
        pytest.param("fire(threshold=40)", marks=pytest.mark.slow),
        pytest.param("transformer_xl", marks=pytest.mark.slow),
        "transformer_xl(max_distance=20)",
        "deberta(num_buckets=16, max_distance=48)",
    ],
)
def test_long_rows_in_every_layout(name):
    """Past every clip: ranges, arrays, two packed documents, left padding."""
    encoding = encodings.from_name(name, **SMALL)
    params = away(encoding.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    half = 100
    q, k, v = rng.normal(size=(3, 1, half, 2, 4)).astype(np.float32)
    maps = rng.normal(size=(2, 8, 2, 4)).astype(np.float32)
    through = tuple(lambda x, w=w: jnp.einsum("...D,Dhd->...hd", x, w) for w in maps)

    def run(qkv, positions, mask=None, implementation="auto"):
        call = lambda *qkv: attention(
            *qkv,
            encoding,
            params,
            Context(positions_q=positions, projections=through),
            mask=mask,
            implementation=implementation,
        )
        return jax.jit(call)(*qkv)

    expected = run((q, k, v), range(half), implementation="naive")
    close = dict(atol=2e-5)
    for implementation in ("auto", "fused"):
        np.testing.assert_allclose(
            run((q, k, v), range(half), implementation=implementation),
            expected,
            **close,
        )
    twice = [np.concatenate([x, x], axis=1) for x in (q, k, v)]
    apart = np.repeat([0, 1], half)
    packed = run(
        twice, np.tile(np.arange(half), 2), (apart[:, None] == apart)[None, None]
    )
    np.testing.assert_allclose(packed, np.concatenate([expected] * 2, axis=1), **close)
    left = [np.pad(x, [(0, 0), (7, 0), (0, 0), (0, 0)]) for x in (q, k, v)]
    at = np.maximum(np.arange(half + 7) - 7, 0)
    padded = run(left, at[None], (np.arange(half + 7) >= 7)[None, None, None])
    np.testing.assert_allclose(padded[:, 7:], expected, **close)
