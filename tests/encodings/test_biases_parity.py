"""The same logits as PyTorch's Bloom, MPT, T5, XLNet and DeBERTa-v2, on random weights."""

import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.torch_modules import array, draw, loud

from pe_jax import encodings
from pe_jax.attention import attention_logits
from pe_jax.encodings import Context
from pe_jax.encodings.bias.alibi import slopes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
        reason="PyTorch and transformers, the extra parity, are not installed",
    ),
]
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def bias(encoding, params, heads, positions):
    zeros = jnp.zeros((np.atleast_2d(positions).shape[0], np.shape(positions)[-1], heads, 4))
    return np.asarray(attention_logits(zeros, zeros, encoding, params, Context(positions)))


# --- ALiBi ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 3, 8, 12, 20, 71])
def test_alibi_slopes(torch, heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    np.testing.assert_allclose(slopes(heads), bloom, rtol=1e-6)
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    np.testing.assert_allclose(slopes(heads), mpt, rtol=1e-6)


def test_alibi_with_left_padding(torch):
    """Bloom adds m·j, equal to -m·(i - j) up to a number of each query; keys to the left only."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    valid = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    theirs = build_alibi_tensor(torch.tensor(valid), 6, torch.float32).view(2, 6, 1, 5).numpy()
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)
    ours = bias(encodings.alibi(num_heads=6), {}, 6, positions)
    difference = ours - theirs
    for row, first in ((0, 0), (1, 2)):
        for i in range(first, 5):
            of_query = difference[row, :, i, first : i + 1]
            np.testing.assert_allclose(of_query, np.tile(of_query[:, -1:], i - first + 1), **CLOSE)


# --- T5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (64, 256), (16, 40), (12, 100)])
def test_t5_buckets(torch, buckets, max_distance, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    x = np.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(x), bidirectional, buckets, max_distance
    )
    encoding = encodings.t5(
        num_heads=1, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    table = {"table": jnp.arange(buckets, dtype=jnp.float32)[:, None]}
    ours = encoding.parts[0].offsets.bias(table, x, Context(None))[:, 0]
    np.testing.assert_array_equal(ours, theirs)


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


# --- Transformer-XL -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 5])
def test_transformer_xl_is_xlnets(torch, clip):
    """Its bidirectional attention, one layer: u and v are `r_w_bias` and `r_r_bias`, W is `r`."""
    from transformers import XLNetConfig, XLNetModel

    heads, size, length = 3, 4, 9
    width = heads * size
    config = XLNetConfig(
        vocab_size=5, d_model=width, n_layer=1, n_head=heads, d_inner=4, clamp_len=clip or -1
    )
    model = loud(torch, XLNetModel(config), 0.3)
    layer = model.layer[0].rel_attn
    x = torch.tensor(draw(length, 2, width))
    project = lambda weight: torch.einsum("ibh,hnd->ibnd", x, weight)
    q, k = project(layer.q), project(layer.k)
    far = model.relative_positional_encoding(length, length, bsz=2)
    _, weights = layer.rel_attn_core(
        q, k, project(layer.v), torch.einsum("ibh,hnd->ibnd", far, layer.r), output_attentions=True
    )
    # Sines come first in their sinusoid, and take turns with cosines in ours.
    turns = np.arange(width).reshape(2, -1).T.reshape(-1)
    params = {"kernel": array(layer.r)[turns], "u": array(layer.r_w_bias)}
    params["v"] = array(layer.r_r_bias)
    encoding = encodings.transformer_xl(
        head_size=size, num_heads=heads, hidden_size=width, clip=clip
    )
    by_row = (array(one.transpose(0, 1)) for one in (q, k))
    ours = attention_logits(*by_row, encoding, {"transformer_xl": params})
    expected = weights.permute(2, 3, 0, 1).detach().numpy()  # From [i, j, b, n].
    np.testing.assert_allclose(jax.nn.softmax(ours), expected, **CLOSE)


# --- DeBERTa --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [(256, 512), (128, 512), (64, 512), (32, 128), (8, 65), (10, 30)],
)
def test_deberta_buckets(torch, buckets, farthest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    x = np.arange(-700, 701)
    theirs = make_log_bucket_position(torch.tensor(-x), buckets, farthest).long()
    theirs = torch.clamp(theirs + buckets, 0, 2 * buckets - 1)
    part = encodings.deberta(hidden_size=1, buckets=buckets, max_relative_positions=farthest).parts[
        0
    ]
    table = {"table": jnp.arange(2 * buckets, dtype=jnp.float32)[:, None]}
    np.testing.assert_array_equal(part.metadata.vectors(table, x)[:, 0], theirs)


@pytest.mark.parametrize("buckets", [8, None])
def test_deberta_weights_are_those_of_v2(torch, buckets):
    """Past the farthest offset, in both directions; projections with their biases."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

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
        torch.tensor(x), mask, output_attentions=True, rel_embeddings=torch.tensor(table)
    )

    def through(linear):
        w, b = array(linear.weight), array(linear.bias)
        return lambda x: (x @ w.T + b).reshape(*x.shape[:-1], heads, size)

    maps = (through(layer.query_proj), through(layer.key_proj))
    encoding = encodings.deberta(
        hidden_size=width, buckets=buckets, max_relative_positions=farthest
    )
    params = {"deberta": {"table": jnp.asarray(table)}}
    context = Context(None, projections=maps)
    ours = attention_logits(maps[0](x), maps[1](x), encoding, params, context)
    np.testing.assert_allclose(jax.nn.softmax(ours), weights.detach().numpy(), **CLOSE)
