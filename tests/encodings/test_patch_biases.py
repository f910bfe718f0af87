"""Biases of an image's patches against Swin's, BEiT's and ViTDet's; positions past the image."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, draw, qk
from helpers.torch_modules import needs

from pe_jax.encodings import Context


def bias(encoding, params, length):
    """What it adds between queries and keys of zeros, [H, L, L]."""
    q = np.zeros((1, length, 2, 8), np.float32)
    return attention_logits(q, q, encoding, params)[0]


@needs("torch", "transformers")
def test_bias_2d_is_that_of_swin():
    import torch
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    theirs, table = SwinRelativePositionBias(2, (3, 4)), draw(5 * 7, 2)
    with torch.no_grad():
        theirs.relative_position_bias_table.copy_(torch.tensor(table))
        expected = theirs()[0].numpy()
    found = bias(build("bias_2d(height=3, width=4)"), {"bias_2d": {"table": table}}, 12)
    np.testing.assert_array_equal(found, expected)


@needs("torch", "transformers")
def test_bias_2d_with_cls_is_that_of_beit():
    import torch
    from transformers import BeitConfig
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    config = BeitConfig(
        image_size=(6, 6),
        patch_size=2,
        num_attention_heads=2,
        hidden_size=16,
        num_hidden_layers=1,
    )
    theirs, table = BeitRelativePositionBias(config), draw(5 * 5 + 3, 2)
    with torch.no_grad():
        theirs.relative_position_bias_table.copy_(torch.tensor(table))
        expected = theirs((3, 3))[0].numpy()
    encoding = build("bias_2d(height=3, width=3, cls=True)")
    found = bias(encoding, {"bias_2d": {"table": table}}, 10)
    np.testing.assert_array_equal(found, expected)


@needs("torch", "transformers")
def test_decomposed_2d_is_that_of_vitdet():
    import torch
    from transformers.models.vitdet.modeling_vitdet import (
        add_decomposed_relative_positions,
    )

    q, k = (x.astype(np.float64) for x in qk(12))
    params = {"rows": draw(5, 8), "columns": draw(7, 8, seed=1)}
    params = {name: table.astype(np.float64) for name, table in params.items()}
    by_head, keys = (torch.tensor(x).transpose(1, 2).reshape(4, 12, 8) for x in (q, k))
    tables = [torch.tensor(params[name]) for name in ("rows", "columns")]
    expected = add_decomposed_relative_positions(
        by_head @ keys.mT / 8**0.5, by_head, *tables, (3, 4), (3, 4)
    )
    encoding = build("decomposed_2d(height=3, width=4)")
    with jax.enable_x64(True):
        found = attention_logits(q, k, encoding, {"decomposed_2d": params})
    np.testing.assert_allclose(
        found, expected.numpy().reshape(2, 2, 12, 12), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["bias_2d", "decomposed_2d"])
def test_positions_past_the_image(name):
    encoding = build(f"{name}(height=2, width=3)")
    params = encoding.init(jax.random.key(0))
    q, k = qk(3)
    with pytest.raises(ValueError, match=r"positions 4 to 6 do not fit .* length 6"):
        attention_logits(q, k, encoding, params, Context(positions_q=range(4, 7)))
    with pytest.raises(ValueError, match="must be integers"):
        attention_logits(q, k, encoding, params, Context(positions_q=np.arange(3) / 2))
    traced = jax.jit(
        lambda at: attention_logits(q, k, encoding, params, Context(positions_q=at))
    )
    known = np.isfinite(traced(np.array([4, 5, 6])))[0, 0]
    np.testing.assert_array_equal(known, [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    with pytest.raises(ValueError, match="height must be at least 1, got 0"):
        build(f"{name}(height=0, width=3)")
