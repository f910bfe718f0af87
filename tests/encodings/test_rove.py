"""RoVE by hand, with scaled rotations, and against DeepSeek-V4's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import build, draw
from helpers.torch_modules import needs

from pe_jax import encodings
from pe_jax.encodings import Context, with_factors


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def test_outputs_have_values_rotated_by_the_distance():
    encoding = build("rove(rope(layout='interleaved'))", head_size=2)
    positions = np.array([3, 5, 4])
    q, v = np.zeros((1, 3, 2, 2), np.float32), draw(1, 3, 2, 2)
    found = attention(q, q, v, encoding, {}, Context(positions_q=positions))
    for i in range(3):
        turned = [v[0, j] @ rotation(positions[j] - positions[i]).T for j in range(3)]
        np.testing.assert_allclose(found[0, i], np.mean(turned, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("inside", "scale"),
    [
        ("rope(fraction=0.5)", 1),
        ("rope_dynamic_ntk(factor=4, original_length=3)", 1),
        ("rope_slice(size=4)", 1),
        ("rope_yarn(factor=4, original_length=8, attention_factor=0.5)", 0.25),
        ("rope(learnable=True, per_head=True)", 1),
    ],
)
def test_a_query_gets_its_own_value_as_it_is(inside, scale):
    """Attention to itself alone; logits are those of the encoding inside."""
    encoding, plain = build(f"rove({inside})"), build(inside)
    params = plain.init(jax.random.key(0))
    q, k, v = (draw(1, 6, 2, 8, seed=seed) for seed in range(3))
    eye = np.eye(6, dtype=bool)[None, None]
    np.testing.assert_allclose(
        attention(q, k, v, encoding, params, mask=eye), scale * v, atol=1e-5
    )
    same = [attention(q, k, 0 * v + 1, e, params, mask=eye) for e in (encoding, plain)]
    np.testing.assert_allclose(same[0], scale * np.asarray(same[1]), atol=1e-5)


def test_without_frequencies_nothing_rotates():
    q, k, v = (draw(1, 6, 2, 8, seed=seed) for seed in range(3))
    still = with_factors(build("rove(rope)"), jnp.zeros_like)
    np.testing.assert_allclose(attention(q, k, v, still), attention(q, k, v), atol=1e-6)


def test_rove_says_what_it_takes():
    for name in ("alibi", "xpos", "rope_axial"):
        with pytest.raises(ValueError, match=f"rotates pairs .* got {name}"):
            build(f"rove({name})")
    q = draw(1, 6, 2, 8)
    with pytest.raises(ValueError, match="got 4 for values and 8 for keys"):
        attention(q, q, q[..., :4], build("rove(rope)"))


@needs("torch", "transformers")
def test_rove_is_that_of_deepseek_v4():
    """Values that are the keys, and outputs rotated back, by transformers' function."""
    import torch
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        apply_rotary_pos_emb,
    )

    size, length, base = 4, 6, 100.0
    q, kv = (draw(2, length, heads, 8, seed=seed) for seed, heads in enumerate((2, 1)))
    angle = np.arange(length)[:, None] * base ** (-2 * np.arange(size // 2) / size)
    cos, sin = (
        torch.tensor(f(angle), dtype=torch.float32)[None] for f in (np.cos, np.sin)
    )
    theirs = [torch.tensor(x).transpose(1, 2) for x in (q, kv)]
    rotated_q, rotated_kv = (apply_rotary_pos_emb(x, cos, sin) for x in theirs)
    weights = (rotated_q @ rotated_kv.mT / 8**0.5).softmax(-1)
    expected = (
        apply_rotary_pos_emb(weights @ rotated_kv, cos, -sin).transpose(1, 2).numpy()
    )
    encoding = encodings.rove(
        encodings.rope_slice(head_size=8, size=size, base=base, layout="interleaved")
    )
    np.testing.assert_allclose(attention(q, kv, kv, encoding), expected, atol=1e-5)
