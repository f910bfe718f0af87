"""The convolution over an input against wav2vec 2's, and rows with several documents."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build, draw, made
from helpers.torch_modules import needs

from pe_jax import encodings


def embedded(encoding, params, x, positions=None):
    return jax.jit(
        lambda x: encodings.embed(
            x, encoding, params, encodings.Context(positions_q=positions)
        )
    )(x)


@needs("torch", "transformers")
@pytest.mark.parametrize("width", [4, 5])
def test_convolutional_is_that_of_wav2vec_2(width):
    import torch
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import (
        Wav2Vec2PositionalConvEmbedding,
    )

    torch.manual_seed(0)
    theirs = Wav2Vec2PositionalConvEmbedding(
        Wav2Vec2Config(
            hidden_size=16,
            num_conv_pos_embeddings=width,
            num_conv_pos_embedding_groups=4,
        )
    ).double()
    x = draw(2, 9, 16).astype(np.float64)
    with torch.no_grad():
        theirs.conv.bias.normal_()
        expected = x + theirs(torch.tensor(x)).numpy()
        weight = theirs.conv.weight.numpy()  # Normalised.
    params = {
        "kernel": weight.reshape(4, 4, 4, width).transpose(3, 0, 2, 1),
        "bias": theirs.conv.bias.detach().numpy(),
    }
    encoding = build(f"convolutional(width={width}, groups=4)")
    with jax.enable_x64(True):
        found = embedded(encoding, {"convolutional": params}, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_documents_and_padding_on_the_left_are_no_neighbours():
    encoding, params = made("convolutional(width=5)")
    params["convolutional"]["bias"] += 1
    x = draw(1, 9, 16)
    for positions in ([0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 1, 2, 3, 4]):
        found = embedded(encoding, params, x, np.array(positions))
        alone = embedded(encoding, params, x[:, 4:])
        np.testing.assert_allclose(found[:, 4:], alone, atol=1e-6)
    assert np.abs(embedded(encoding, params, x)[:, 4:] - alone).max() > 0.01


def test_options_out_of_range():
    with pytest.raises(
        ValueError, match="groups must divide hidden_size=16; got 3 and 5"
    ):
        build("convolutional(width=3, groups=5)")
