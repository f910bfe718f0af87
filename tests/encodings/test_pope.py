"""PoPE by hand, and against x-transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import draw, made
from helpers.torch_modules import HEAD, HEADS, WIDTH, build_as_theirs, needs, of_layer

from pe_jax.encodings import HookContext


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def test_pope_of_one_coordinate_is_a_cosine():
    encoding, params = made("pope", head_size=1, num_heads=1)
    params = {"pope": {"phase": np.float32([[0.5]])}}
    q, k = draw(1, 4, 1, 1), draw(1, 4, 1, 1, seed=1)
    softplus = lambda x: np.log1p(np.exp(x[0, :, 0, 0]))
    offset = np.arange(4)[None] - np.arange(4)[:, None]
    expected = np.outer(softplus(q), softplus(k)) * np.cos(offset + 0.5)  # w = [1]
    found = attention_logits(q, k, encoding, params)[0, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pope_has_a_frequency_for_each_coordinate_and_leaves_values_alone():
    encoding, params = made("pope")
    (part,) = encoding.parts
    np.testing.assert_allclose(
        part.metadata.frequencies({}), 1e4 ** (-np.arange(8) / 8), rtol=1e-6
    )
    q, k, v = qkv()
    at = HookContext(positions_q=range(6), positions_k=range(6))
    wide_q, wide_k, same_v = part.map_qkv(params["pope"], q, k, v, at)
    assert wide_q.shape == wide_k.shape == (2, 6, 2, 16) and same_v is v
    # At a phase of 0 and position 0 the imaginary part is 0, the real part the magnitude.
    magnitude = np.pad(jax.nn.softplus(q[:, 0]), [(0, 0), (0, 0), (0, 8)])
    np.testing.assert_allclose(wide_q[:, 0], magnitude, rtol=1e-6)


@needs("torch", "x_transformers")
@pytest.mark.parametrize("causal", [False, True])
def test_pope(torch, causal):
    theirs = pytest.importorskip("x_transformers.x_transformers")
    layer = theirs.Attention(WIDTH, heads=HEADS, dim_head=HEAD, causal=causal)
    embedding = theirs.PolarEmbedding(HEAD, HEADS)
    with torch.no_grad():
        embedding.learned_bias.uniform_(-2 * np.pi, 0.0)
        x, positions = 2 * torch.randn(2, 40, WIDTH), torch.arange(40)
        wanted = layer(x, polar_pos_emb=embedding(positions))
    phase = jnp.asarray(embedding.learned_bias.detach().numpy()[:, 0])
    encoding = build_as_theirs("pope+causal" if causal else "pope")
    found = of_layer(layer, x, encoding, {"pope": {"phase": phase}}, np.arange(40))
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
