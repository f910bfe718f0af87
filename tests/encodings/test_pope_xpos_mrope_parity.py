"""PoPE and xPos against x-transformers, M-RoPE against transformers' Qwen2-VL and Qwen3-VL: their
own modules on random weights and positions.

Runs where the extra `parity` is installed.
"""

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.encodings import Context

DIM, HEADS, HEAD = 24, 3, 16


def needs(*modules):
    missing = [one for one in modules if not importlib.util.find_spec(one)]
    return pytest.mark.skipif(bool(missing), reason="needs the extra `parity`")


pytestmark = [pytest.mark.torch, needs("torch")]


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


def build(name, head=HEAD):
    return encodings.from_name(name, hidden_size=DIM, head_size=head, num_heads=HEADS, max_length=8)


def of_layer(layer, x, encoding, params, positions):
    """Our attention with the weights of a layer of x-transformers."""
    kernel = lambda linear: linear.weight.detach().numpy().T
    q, k, v = (
        jnp.asarray((x.numpy() @ kernel(linear)).reshape(*x.shape[:2], HEADS, HEAD))
        for linear in (layer.to_q, layer.to_k, layer.to_v)
    )
    out = attention(q, k, v, encoding, params, Context(positions))
    return np.asarray(out).reshape(*x.shape[:2], HEADS * HEAD) @ kernel(layer.to_out)


@needs("x_transformers")
@pytest.mark.parametrize("causal", [False, True])
def test_pope(torch, causal):
    theirs = pytest.importorskip("x_transformers.x_transformers")
    layer = theirs.Attention(DIM, heads=HEADS, dim_head=HEAD, causal=causal)
    embedding = theirs.PolarEmbedding(HEAD, HEADS)
    with torch.no_grad():
        embedding.learned_bias.uniform_(-2 * np.pi, 0.0)
        x, positions = 2 * torch.randn(2, 40, DIM), torch.arange(40)
        wanted = layer(x, polar_pos_emb=embedding(positions))
    phase = jnp.asarray(embedding.learned_bias.detach().numpy()[:, 0])
    encoding = build("pope+causal" if causal else "pope")
    found = of_layer(layer, x, encoding, {"pope": {"phase": phase}}, np.arange(40))
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


@needs("x_transformers")
@pytest.mark.parametrize(("length", "scale_base"), [(40, 8), (1500, 512)])
def test_xpos(torch, length, scale_base):
    theirs = pytest.importorskip("x_transformers.x_transformers")
    layer = theirs.Attention(DIM, heads=HEADS, dim_head=HEAD, causal=True)
    embedding = theirs.RotaryEmbedding(HEAD, use_xpos=True, scale_base=scale_base)
    with torch.no_grad():
        x = 2 * torch.randn(1, length, DIM)
        wanted = layer(x, rotary_pos_emb=embedding(torch.arange(length)))
    encoding = build(f"xpos(scale_base={scale_base})+causal")
    found = of_layer(layer, x, encoding, {}, np.arange(length))
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


@needs("transformers")
@pytest.mark.parametrize(
    ("model", "config", "rotary", "interleaved"),
    [
        ("qwen2_vl", "Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding", False),
        ("qwen3_vl", "Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding", True),
    ],
)
@pytest.mark.parametrize("sections", [None, (40, 12, 12), (22, 21, 21)])
def test_mrope(torch, model, config, rotary, interleaved, sections):
    theirs = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    settings = {"rope_type": "default", "rope_theta": 1e6}
    if sections:
        settings["mrope_section"] = list(sections)
    made = getattr(theirs, config)(
        hidden_size=HEADS * 128, num_attention_heads=HEADS, head_dim=128, rope_parameters=settings
    )
    q, k = torch.randn(2, 2, HEADS, 30, 128)
    positions = torch.randint(0, 200, (3, 2, 30))
    cos, sin = getattr(theirs, rotary)(made)(q, positions)
    wanted = theirs.apply_rotary_pos_emb(q, k, cos, sin)

    options = f"interleaved={interleaved}, base=1000000"
    name = f"mrope(sections={sections}, {options})" if sections else f"mrope({options})"
    (part,) = build(name, head=128).parts
    ours = (jnp.asarray(x.transpose(1, 2).numpy()) for x in (q, k))
    at = np.moveaxis(positions.numpy(), 0, -1)
    q, k = ours
    found = part.heads({}, q, k, k, Context(at, at))[:2]
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other.transpose(1, 2).numpy(), atol=1e-4)
