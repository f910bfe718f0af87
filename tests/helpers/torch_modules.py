"""What the comparisons with PyTorch's modules share."""

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from helpers.compiled import attention, attention_logits
from pe_jax import encodings
from pe_jax.encodings import Context

WIDTH, HEADS, HEAD = 24, 3, 16


def needs(*modules):
    """A mark of tests that compare with PyTorch: skipped without these modules."""
    missing = [one for one in modules if not importlib.util.find_spec(one)]
    skip = pytest.mark.skipif(bool(missing), reason="needs the extra `parity`")
    return lambda test: pytest.mark.torch(skip(test))


def loud(torch, module, stddev):
    """Weights that are louder than fresh ones, biases among them."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(stddev * torch.randn_like(weight))
    return module.eval()


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def build_as_theirs(name, head=HEAD):
    return encodings.from_name(
        name, hidden_size=WIDTH, head_size=head, num_heads=HEADS, max_length=8
    )


def of_layer(layer, x, encoding, params, positions):
    """Our attention with the weights of a layer of x-transformers, which is of WIDTH."""
    kernel = lambda linear: linear.weight.detach().numpy().T
    q, k, v = (
        jnp.asarray((x.numpy() @ kernel(linear)).reshape(*x.shape[:2], HEADS, HEAD))
        for linear in (layer.to_q, layer.to_k, layer.to_v)
    )
    out = attention(q, k, v, encoding, params, Context(positions_q=positions))
    return np.asarray(out).reshape(*x.shape[:2], HEADS * HEAD) @ kernel(layer.to_out)


def projected(layer, x):
    """Queries, keys and values as the linear maps of BERT's attention make them."""
    return (
        (x @ array(one.weight).T + array(one.bias)).reshape(
            *x.shape[:-1], layer.num_attention_heads, -1
        )
        for one in (layer.query, layer.key, layer.value)
    )


def bias_by_name(name, params, **context):
    """What an encoding adds between 11 queries and keys of zeros, of 3 heads of size 4."""
    encoding = encodings.from_name(
        name, hidden_size=12, head_size=4, num_heads=3, max_length=11
    )
    zeros = jnp.zeros((2, 11, 3, 4))
    return attention_logits(
        zeros, zeros, encoding, params, Context(positions_q=range(11), **context)
    )
