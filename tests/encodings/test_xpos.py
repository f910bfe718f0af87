"""xPos by hand, far apart, and against x-transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw
from helpers.torch_modules import HEAD, HEADS, WIDTH, build_as_theirs, needs, of_layer

from pe_jax.encodings import Context
from pe_jax.encodings.parser import for_text


def test_xpos_decays_the_fast_pairs_most():
    """One pair at a time, by hand: ζ = (2m/8 + 0.4) / 1.4."""
    encoding = build("xpos(scale_base=2)+causal")
    run = jax.jit(
        lambda q: attention_logits(
            q, q, encoding, {}, Context(positions_q=np.arange(3))
        )
    )
    for m in range(4):
        q = np.zeros((1, 3, 2, 8), np.float32)
        q[..., m] = 1.0
        angle = 10_000 ** (-m / 4) * np.arange(3)
        wanted = ((m / 4 + 0.4) / 1.4) ** (np.arange(3) / 2) * np.cos(angle) / 8**0.5
        found = np.asarray(run(q))[0, 0, 2, ::-1]
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_xpos_is_refused_in_an_encoder():
    q = draw(1, 3, 2, 8)
    with pytest.raises(
        ValueError, match=r"grows without bound to the right.*'xpos\+causal'"
    ):
        attention(q, q, q, build("xpos"), {})
    assert "xpos+causal" in for_text()


@pytest.mark.parametrize(
    ("dtype", "implementation"),
    [("float32", "naive"), ("float32", "fused"), ("float16", "naive")],
)
def test_xpos_far_apart(dtype, implementation):
    """Positions 2^17 apart in a row: near pairs are as ever, and nothing overflows."""
    encoding = build("xpos+causal")
    q, k, v = (draw(1, 5, 2, 8, seed=seed).astype(dtype) for seed in range(3))
    at = np.array([0, 1, 2**16, 2**17 - 1, 2**17])

    def run(q):
        out = attention(
            q,
            k,
            v,
            encoding,
            {},
            Context(positions_q=at),
            implementation=implementation,
        )
        first = attention(
            q[:, :2], k[:, :2], v[:, :2], encoding, implementation=implementation
        )
        return out.astype(jnp.float32).sum(), (out, first)

    grad, (out, first) = jax.jit(jax.grad(run, has_aux=True))(q)
    assert np.isfinite(out).all() and np.isfinite(grad).all()
    np.testing.assert_allclose(out[:, :2], first, atol=0.01)


@needs("torch", "x_transformers")
@pytest.mark.parametrize(("length", "scale_base"), [(40, 8), (1500, 512)])
def test_xpos(torch, length, scale_base):
    theirs = pytest.importorskip("x_transformers.x_transformers")
    layer = theirs.Attention(WIDTH, heads=HEADS, dim_head=HEAD, causal=True)
    embedding = theirs.RotaryEmbedding(HEAD, use_xpos=True, scale_base=scale_base)
    with torch.no_grad():
        x = 2 * torch.randn(1, length, WIDTH)
        wanted = layer(x, rotary_pos_emb=embedding(torch.arange(length)))
    encoding = build_as_theirs(
        f"xpos(scale_base={scale_base}, layout='interleaved')+causal"
    )
    found = of_layer(layer, x, encoding, {}, np.arange(length))
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
