"""Encodings that add something up from key to key: padding, and keys out of order."""

import jax
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.attention import attention, document_mask
from pe_jax.attention.masks import in_order
from pe_jax.encodings import Context

SIZES = dict(hidden_size=8, head_size=4, num_heads=2, max_length=16)


def layer(name, length=8, compiled=jax.jit):
    """`run(positions, keys, queries, mask)`: outputs of some of `length` tokens."""
    encoding = encodings.from_name(name, **SIZES)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, length, 8)).astype(np.float32)
    heads = rng.normal(size=(3, 1, length, 2, 4)).astype(np.float32)
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf + 0.5 * rng.normal(size=leaf.shape), np.float32),
        jax.jit(encoding.init)(jax.random.key(0)),
    )

    def run(positions, keys, queries=None, mask=None):
        queries = keys if queries is None else queries
        positions_q = (
            positions[np.searchsorted(keys, queries)] if queries is not keys else None
        )
        q, k, v = heads[0][:, queries], heads[1][:, keys], heads[2][:, keys]

        @compiled
        def outputs(params, q, k, v, x_q, x_k):
            context = Context(
                positions_q=positions_q, positions_k=positions, x_q=x_q, x_k=x_k
            )
            return attention(
                q, k, v, encoding, params, context, mask=mask, implementation="naive"
            )

        return outputs(params, q, k, v, x[:, queries], x[:, keys])

    return run


@pytest.mark.parametrize("name", ["path_attention+causal", "selective_rope"])
def test_padding_on_the_left_by_the_mask_alone(name):
    """Padding has positions 0, 1, 2, like tokens, so that only the mask tells."""
    run, tokens = layer(name), np.arange(3, 8)
    masked = run(np.arange(8), np.arange(8), mask=(np.arange(8) >= 3)[None, None, None])
    np.testing.assert_allclose(masked[:, 3:], run(np.arange(5), tokens), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["fox", "cable", "cope+causal", "path_attention(width=1)+causal"]
)
def test_padding_between_tokens(name):
    """A prompt that is padded on the right, and what follows it."""
    run, tokens = layer(name), np.array([0, 1, 2, 5, 6, 7])
    positions = np.array([0, 1, 2, 0, 0, 3, 4, 5])
    mask = np.isin(np.arange(8), tokens)[None, None, None]
    masked = np.asarray(run(positions, np.arange(8), mask=mask))[:, tokens]
    np.testing.assert_allclose(masked, run(np.arange(6), tokens), atol=1e-5)


def test_keys_out_of_order_are_refused():
    """Pages of a cache, the last one first and not full."""
    run = layer("fox", compiled=lambda outputs: outputs)  # So that the order is known.
    keys, query = np.arange(8), np.array([2])
    pages = np.array([4, 5, 6, 0, 0, 1, 2, 3])
    mask = (keys != 3)[None, None, None]
    with pytest.raises(
        ValueError, match="positions of keys must rise from key to key for fox"
    ):
        run(pages, keys, query, mask)
    assert np.isnan(jax.jit(lambda pages: run(pages, keys, query, mask))(pages)).all()
    assert np.isfinite(run(np.arange(8), keys, query, mask)).all()


def test_order_of_keys():
    packed, document_ids = np.array([[0, 1, 2, 0, 1]]), np.array([[1, 1, 1, 2, 2]])
    assert in_order(packed, document_mask(document_ids, document_ids)).all()
    assert not in_order(packed, None).any()
    np.testing.assert_array_equal(  # Later keys matter to no query but the last.
        in_order(packed, np.tril(np.ones((5, 5), bool))[None, None]), [[1, 1, 1, 0, 0]]
    )
    padded, valid = np.array([[0, 0, 0, 1, 2]]), np.arange(5) >= 2
    assert in_order(padded, valid[None, None, None]).all()
    assert in_order(np.array([[0.5, 0.75]], np.float32), None).all()
