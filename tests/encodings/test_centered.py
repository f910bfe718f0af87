"""RoPE at the centres of patches against transformers' DINOv3, and what is drawn while training."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, qk, rotated
from helpers.torch_modules import needs

from pe_jax.encodings import HookContext


@needs("torch", "transformers")
def test_rope_centered_is_that_of_dinov3():
    """Two tokens before 3 × 4 patches."""
    import torch
    from transformers import DINOv3ViTConfig
    from transformers.models.dinov3_vit import modeling_dinov3_vit as theirs

    config = DINOv3ViTConfig(
        hidden_size=16, num_attention_heads=2, patch_size=2, image_size=8
    )
    module = theirs.DINOv3ViTRopePositionEmbedding(config).eval()
    q, k = qk(14)
    cos, sin = module(torch.zeros(1, 3, 6, 8))
    both = theirs.apply_rotary_pos_emb(
        *(torch.tensor(x).transpose(1, 2) for x in (q, k)), cos, sin
    )
    expected = (both[0] @ both[1].mT).numpy() / 8**0.5
    found = attention_logits(
        q, k, build("rope_centered(height=3, width=4, prefix=2)"), {}
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_draws_shift_jitter_and_rescale_each_axis():
    """Centres come from the angle of the slow pair of each axis, ω = 1/10."""
    options = "height=2, width=2, max_shift=0.5, max_jitter=1.2, max_rescale=2"
    part = build(f"rope_centered({options})").parts[0]
    x = np.ones((1, 4, 2, 8), np.float32)

    @jax.jit
    def turned(rng):
        context = HookContext(
            positions_q=range(4), positions_k=range(4), position_rng=rng
        )
        return part.map_qkv({}, x, x, x, context)[:2]

    found = []
    for seed in range(20):
        q, k = turned(jax.random.key(seed))
        np.testing.assert_array_equal(q, k)
        a, b = np.asarray(q)[0, :, 0].reshape(4, 2, 2, 2)[..., 1].transpose(1, 0, 2)
        centres = (np.arctan2(b, a) - np.pi / 4) / (0.2 * np.pi)  # [patch, axis]
        first, last = centres[0], centres[3]  # At -1/2 and 1/2 without draws.
        scale = last - first
        found.append([*scale, *((first + last) / 2 / scale)])
    scale, shift = np.split(np.array(found), 2, axis=1)
    assert scale.min() > 1 / 2.4 and 1.5 < scale.max() < 2.4
    ratio = scale[:, 0] / scale[:, 1]  # Of two jitters.
    assert 1 / 1.44 < ratio.min() < 0.95 and 1.05 < ratio.max() < 1.44
    assert -0.5 < shift.min() < -0.3 and 0.3 < shift.max() < 0.5


def test_without_an_rng_nothing_is_drawn():
    q, _ = qk(4)
    drawing, plain = (
        build(f"rope_centered(height=2, width=2{options})").parts[0]
        for options in (", max_shift=0.5, max_rescale=2", "")
    )
    found, expected = (
        rotated(part, q, range(4), range(4))[0] for part in (drawing, plain)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("height=0, width=2", "height must be at least 1, got 0"),
        ("height=2, width=2, max_jitter=0.5", "max_jitter must be at least 1, got 0.5"),
    ],
)
def test_options_out_of_range(options, match):
    with pytest.raises(ValueError, match=match):
        build(f"rope_centered({options})")
