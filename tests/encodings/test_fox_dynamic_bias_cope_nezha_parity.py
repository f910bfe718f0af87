"""The numbers of x-transformers, and of BERT and NEZHA of transformers 4, on random weights."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.torch_modules import array, draw, loud

from pe_jax import encodings
from pe_jax.attention import attention, attention_logits, attention_weights
from pe_jax.encodings import Context

HEADS, SIZE, LENGTH = 3, 4, 11
WIDTH = HEADS * SIZE
CLOSE = {"atol": 1e-5, "rtol": 0}

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "transformers", "x_transformers"))),
        reason="PyTorch, transformers and x-transformers, the extra parity, are not installed",
    ),
]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def bias(name, params, **context):
    """What an encoding adds between queries and keys of zeros."""
    encoding = encodings.from_name(
        name, hidden_size=WIDTH, head_size=SIZE, num_heads=HEADS, max_length=LENGTH
    )
    zeros = jnp.zeros((2, LENGTH, HEADS, SIZE))
    return attention_logits(zeros, zeros, encoding, params, Context(range(LENGTH), **context))


# --- x-transformers -------------------------------------------------------------------------------


def test_fox_is_the_data_dependent_alibi(torch):
    from x_transformers.x_transformers import DataDependentAlibi

    theirs = loud(torch, DataDependentAlibi(WIDTH, HEADS, causal=False), 0.5)
    linear = theirs.to_forget_gates[0]
    weight, start = array(linear.weight).T, array(linear.bias)
    params = {
        side: {"kernel": weight[:, own], "bias": start[own]}
        for side, own in (("left", slice(0, HEADS)), ("right", slice(HEADS, None)))
    }
    x = draw(2, LENGTH, WIDTH)
    ours = bias("fox", {"fox": params}, x_k=x)
    np.testing.assert_allclose(ours, array(theirs(torch.tensor(x))), **CLOSE)


@pytest.mark.parametrize("log_distance", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_dynamic_position_bias(torch, depth, log_distance):
    """Their offsets are i - j: the first kernel changes its sign."""
    from x_transformers.x_transformers import DynamicPositionBias

    module = DynamicPositionBias(5, heads=HEADS, depth=depth, log_distance=log_distance)
    theirs = loud(torch, module, 0.5)
    linear = [m for m in theirs.modules() if isinstance(m, torch.nn.Linear)]
    names = [*(f"hidden_{n}" for n in range(depth)), "out"]
    params = {
        name: {"kernel": array(layer.weight).T, "bias": array(layer.bias)}
        for name, layer in zip(names, linear, strict=True)
    }
    params["hidden_0"]["kernel"] *= -1
    name = f"dynamic_position_bias(width=5, depth={depth}, log_distance={log_distance})"
    ours = bias(name, {"dynamic_position_bias": params})[0]
    np.testing.assert_allclose(ours, array(theirs(LENGTH, LENGTH)), **CLOSE)


@pytest.mark.parametrize("npos_max", [4, 32])
def test_cope(torch, npos_max):
    """Where counts reach the last position, and where they do not."""
    from x_transformers.x_transformers import CoPE

    theirs = loud(torch, CoPE(SIZE, HEADS, npos_max), 0.5)
    q, k = draw(2, HEADS, LENGTH, SIZE, seed=1), draw(2, HEADS, LENGTH, SIZE, seed=2)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    content = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(SIZE)
    masked = np.where(causal, content, np.finfo(np.float32).min)
    expected = array(theirs(torch.tensor(q), torch.tensor(masked)))
    encoding = encodings.cope(head_size=SIZE, npos_max=npos_max) + encodings.causal()
    params = {"cope": {"table": array(theirs.pos_emb)}}
    ours = attention_logits(q.swapaxes(1, 2), k.swapaxes(1, 2), encoding, params) - content
    np.testing.assert_allclose(np.where(causal, ours, 0), np.where(causal, expected, 0), **CLOSE)


# --- transformers 4 -------------------------------------------------------------------------------


@pytest.fixture
def transformers():
    """Version 4: version 5 has neither the relative types of BERT nor NEZHA."""
    module = pytest.importorskip("transformers")
    if int(module.__version__.partition(".")[0]) > 4:
        pytest.skip("transformers 5 has neither BERT's relative_key nor NEZHA; needs version 4")
    return module


def projected(layer, x):
    """Queries, keys and values as the layer's linear maps make them."""
    return (
        (x @ array(one.weight).T + array(one.bias)).reshape(*x.shape[:-1], HEADS, SIZE)
        for one in (layer.query, layer.key, layer.value)
    )


@pytest.mark.parametrize("name", ["relative_key", "relative_key_query"])
def test_relative_key_is_berts(torch, transformers, name):
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        position_embedding_type=name,
    )
    layer = loud(torch, BertSelfAttention(config), 0.5)
    x = draw(2, LENGTH, WIDTH)
    out, weights = layer(torch.tensor(x), output_attentions=True)[:2]
    q, k, v = projected(layer, x)
    encoding = getattr(encodings, name)(head_size=SIZE, max_length=LENGTH)
    params = {name: {"table": array(layer.distance_embedding.weight)}}
    np.testing.assert_allclose(attention_weights(q, k, encoding, params), array(weights), **CLOSE)
    ours = attention(q, k, v, encoding, params).reshape(out.shape)
    np.testing.assert_allclose(ours, array(out), **CLOSE)


@pytest.mark.parametrize("clip", [64, 3])
def test_nezha(torch, transformers, clip):
    from transformers.models.deprecated.nezha.modeling_nezha import NezhaSelfAttention

    config = transformers.models.deprecated.nezha.configuration_nezha.NezhaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        max_relative_position=clip,
    )
    layer = loud(torch, NezhaSelfAttention(config), 0.5)
    x = draw(2, LENGTH, WIDTH)
    out, weights = layer(torch.tensor(x), output_attentions=True)[:2]
    q, k, v = projected(layer, x)
    encoding = encodings.nezha(head_size=SIZE, clip=clip)
    np.testing.assert_allclose(attention_weights(q, k, encoding, {}), array(weights), **CLOSE)
    ours = jax.jit(lambda *qkv: attention(*qkv, encoding))(q, k, v).reshape(out.shape)
    np.testing.assert_allclose(ours, array(out), **CLOSE)
