"""T5's buckets by hand, and its logits against PyTorch's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import draw
from helpers.torch_modules import array, loud, needs

from pe_jax import encodings
from pe_jax.encodings import HookContext

CLOSE = {"atol": 1e-4, "rtol": 0}


def buckets_of(encoding, offsets):
    """The bucket of each offset, read off a table that numbers them."""
    (part,) = encoding.parts
    shape = jax.eval_shape(part.init, jax.random.key(0))["table"].shape
    table = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
    return (
        part.offsets.bias(
            {"table": table},
            np.array(offsets),
            HookContext(positions_q=range(0), positions_k=range(0)),
        )[:, 0]
        .astype(int)
        .tolist()
    )


def test_t5_buckets_by_hand():
    # 8 exact distances, then the edges 8·16^(n/8) = 11.3, 16, 22.6, 32, 45.3, 64, 90.5.
    edges = [
        0,
        1,
        7,
        8,
        11,
        12,
        15,
        16,
        22,
        23,
        31,
        32,
        45,
        46,
        63,
        64,
        90,
        91,
        128,
        5000,
    ]
    found = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15]
    assert buckets_of(encodings.t5(num_heads=2), -np.array(edges)) == found
    assert buckets_of(encodings.t5(num_heads=2), edges[1:]) == [
        16 + one for one in found[1:]
    ]


def test_t5_in_one_direction():
    encoding = encodings.t5(
        num_heads=2, num_buckets=8, max_distance=64, bidirectional=False
    )
    # 4 exact distances, then 4·16^(n/4) = 8, 16, 32.
    offsets = [9, 1, 0, -1, -3, -4, -7, -8, -15, -16, -31, -32, -900]
    assert buckets_of(encoding, offsets) == [0, 0, 0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7]


@needs("torch", "transformers")
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (64, 256), (16, 40), (12, 100)]
)
def test_t5_buckets(torch, buckets, max_distance, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    x = np.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(x), bidirectional, buckets, max_distance
    )
    encoding = encodings.t5(
        num_heads=1,
        num_buckets=buckets,
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    table = {"table": jnp.arange(buckets, dtype=jnp.float32)[:, None]}
    ours = encoding.parts[0].offsets.bias(
        table, x, HookContext(positions_q=range(0), positions_k=range(0))
    )[:, 0]
    np.testing.assert_array_equal(ours, theirs)


@needs("torch", "transformers")
def test_t5_logits(torch):
    """W_q times sqrt(d), and the logits are those of T5, which has no scale."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=12, d_kv=4, num_heads=3)
    theirs = loud(torch, T5Attention(config, has_relative_attention_bias=True), 0.3)
    encoding = encodings.t5(num_heads=3)
    params = {"t5": {"table": array(theirs.relative_attention_bias.weight)}}
    q, k = draw(2, 140, 3, 4, seed=1), draw(2, 140, 3, 4, seed=2)
    ours = attention_logits(q * math.sqrt(4), k, encoding, params)
    expected = np.einsum("bqhd,bkhd->bhqk", q, k) + array(theirs.compute_bias(140, 140))
    np.testing.assert_allclose(ours, expected, **CLOSE)
