"""DeBERTa: rows and terms by hand, and against DeBERTa-v2."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import draw
from helpers.torch_modules import array, loud, needs

from pe_jax import encodings
from pe_jax.encodings import Context

CLOSE = {"atol": 1e-4, "rtol": 0}


def rows_of(encoding, offsets):
    (part,) = encoding.parts
    shape = jax.eval_shape(part.init, jax.random.key(0))["table"].shape
    table = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
    return (
        part.metadata.vectors({"table": table}, np.array(offsets))[:, 0]
        .astype(int)
        .tolist()
    )


def test_deberta_rows_by_hand():
    # k = 3 without buckets: i - j = -3 .. 2, so j - i = 3 .. -2, have the rows 0 .. 5.
    plain = encodings.deberta(hidden_size=2, num_buckets=None, max_distance=3)
    assert rows_of(plain, [9, 3, 2, 1, 0, -1, -2, -3, -9]) == [
        0,
        0,
        1,
        2,
        3,
        4,
        5,
        5,
        5,
    ]
    # k = 8: up to 4 a row each; then ceil(3·log(x/4)/log(64/4)) more, edges at 4·16^(1/3) = 10.1,
    # 25.4 and 64.
    log = encodings.deberta(hidden_size=2, num_buckets=8, max_distance=65)
    left = [0, 1, 4, 5, 10, 11, 25, 26, 64, 65, 500]
    found = [8, 9, 12, 13, 13, 14, 14, 15, 15, 15, 15]
    assert rows_of(log, -np.array(left)) == found
    # To the right one row more, number 0, which all beyond 64 share.
    assert rows_of(log, left) == [16 - row for row in found[:-2]] + [0, 0]


def test_deberta_divides_all_three_terms_by_sqrt_3d():
    encoding = encodings.deberta(hidden_size=2, num_buckets=None, max_distance=1)
    table = {
        "deberta": {"table": np.float32([[1.0, 0.0], [0.0, 1.0]])}
    }  # To the right; the rest.
    double = tuple(lambda x, by=by: by * x[..., None, :1] for by in (10.0, 100.0))
    q, k = (np.full((1, 2, 1, 1), value, np.float32) for value in (2, 3))
    found = attention_logits(
        q, k, encoding, table, Context(positions_q=None, projections=double)
    )[0, 0]
    right = 2 * 3 + 2 * 100 + 10 * 3
    np.testing.assert_allclose(
        found, np.array([[6, right], [6, 6]]) / math.sqrt(3), rtol=1e-6
    )


def test_deberta_says_how_to_pass_projections():
    encoding = encodings.deberta(hidden_size=8)
    q = np.zeros((1, 3, 2, 4), np.float32)
    with pytest.raises(
        ValueError, match=r"context=Context\(projections=\(to_queries, to_keys\)"
    ):
        attention(q, q, q, encoding, encoding.init(jax.random.key(0)))


@needs("torch", "transformers")
@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [(256, 512), (128, 512), (64, 512), (32, 128), (8, 65), (10, 30)],
)
def test_deberta_buckets(torch, buckets, farthest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        make_log_bucket_position,
    )

    x = np.arange(-700, 701)
    theirs = make_log_bucket_position(torch.tensor(-x), buckets, farthest).long()
    theirs = torch.clamp(theirs + buckets, 0, 2 * buckets - 1)
    part = encodings.deberta(
        hidden_size=1, num_buckets=buckets, max_distance=farthest
    ).parts[0]
    table = {"table": jnp.arange(2 * buckets, dtype=jnp.float32)[:, None]}
    np.testing.assert_array_equal(part.metadata.vectors(table, x)[:, 0], theirs)


@needs("torch", "transformers")
@pytest.mark.parametrize("buckets", [8, None])
def test_deberta_weights_are_those_of_v2(torch, buckets):
    """Past the farthest offset, in both directions; projections with their biases."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        DisentangledSelfAttention,
    )

    heads, size, length, farthest = 3, 4, 40, 20
    width = heads * size
    config = DebertaV2Config(
        hidden_size=width,
        num_attention_heads=heads,
        relative_attention=True,
        position_buckets=buckets or -1,
        max_relative_positions=farthest,
        pos_att_type=["c2p", "p2c"],
        share_att_key=True,
    )
    layer = loud(torch, DisentangledSelfAttention(config), 0.3)
    table = draw(2 * (buckets or farthest), width, seed=3)
    x = draw(2, length, width)
    mask = torch.ones(2, 1, length, length)
    _, weights = layer(
        torch.tensor(x),
        mask,
        output_attentions=True,
        rel_embeddings=torch.tensor(table),
    )

    def through(linear):
        w, b = array(linear.weight), array(linear.bias)
        return lambda x: (x @ w.T + b).reshape(*x.shape[:-1], heads, size)

    maps = (through(layer.query_proj), through(layer.key_proj))
    encoding = encodings.deberta(
        hidden_size=width, num_buckets=buckets, max_distance=farthest
    )
    params = {"deberta": {"table": jnp.asarray(table)}}
    context = Context(positions_q=None, projections=maps)
    ours = attention_logits(maps[0](x), maps[1](x), encoding, params, context)
    np.testing.assert_allclose(jax.nn.softmax(ours), weights.detach().numpy(), **CLOSE)
