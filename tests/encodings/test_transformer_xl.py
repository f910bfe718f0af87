"""Transformer-XL: the four terms by hand, and against XLNet."""

import math

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import draw
from helpers.torch_modules import array, loud, needs

from pe_jax import encodings

CLOSE = {"atol": 1e-4, "rtol": 0}


def test_transformer_xl_by_hand():
    """D = 2, so that R_x = (sin x, cos x) with x = i - j; one head of size 1."""
    encoding = encodings.transformer_xl(head_size=1, num_heads=1, hidden_size=2)
    own = {
        "kernel": np.float32([[[3.0]], [[5.0]]]),
        "u": np.float32([[7.0]]),
        "v": np.float32([[11.0]]),
    }
    q, k = (
        np.float32([2.0, 4.0]).reshape(1, 2, 1, 1),
        np.float32([6.0, 8.0]).reshape(1, 2, 1, 1),
    )
    found = attention_logits(q, k, encoding, {"transformer_xl": own})[0, 0]
    r = lambda x: 3 * math.sin(x) + 5 * math.cos(x)
    expected = [
        [(2 + 7) * 6 + (2 + 11) * r(0), (2 + 7) * 8 + (2 + 11) * r(-1)],
        [(4 + 7) * 6 + (4 + 11) * r(1), (4 + 7) * 8 + (4 + 11) * r(0)],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@needs("torch", "transformers")
@pytest.mark.parametrize("clip", [None, 5])
def test_transformer_xl_is_xlnets(torch, clip):
    """Its bidirectional attention, one layer: u and v are `r_w_bias` and `r_r_bias`, W is `r`."""
    from transformers import XLNetConfig, XLNetModel

    heads, size, length = 3, 4, 9
    width = heads * size
    config = XLNetConfig(
        vocab_size=5,
        d_model=width,
        n_layer=1,
        n_head=heads,
        d_inner=4,
        clamp_len=clip or -1,
    )
    model = loud(torch, XLNetModel(config), 0.3)
    layer = model.layer[0].rel_attn
    x = torch.tensor(draw(length, 2, width))
    project = lambda weight: torch.einsum("ibh,hnd->ibnd", x, weight)
    q, k = project(layer.q), project(layer.k)
    far = model.relative_positional_encoding(length, length, bsz=2)
    _, weights = layer.rel_attn_core(
        q,
        k,
        project(layer.v),
        torch.einsum("ibh,hnd->ibnd", far, layer.r),
        output_attentions=True,
    )
    # Sines come first in their sinusoid, and take turns with cosines in ours.
    turns = np.arange(width).reshape(2, -1).T.reshape(-1)
    params = {"kernel": array(layer.r)[turns], "u": array(layer.r_w_bias)}
    params["v"] = array(layer.r_r_bias)
    encoding = encodings.transformer_xl(
        head_size=size, num_heads=heads, hidden_size=width, max_distance=clip
    )
    by_row = (array(one.transpose(0, 1)) for one in (q, k))
    ours = attention_logits(*by_row, encoding, {"transformer_xl": params})
    expected = weights.permute(2, 3, 0, 1).detach().numpy()  # From [i, j, b, n].
    np.testing.assert_allclose(jax.nn.softmax(ours), expected, **CLOSE)
