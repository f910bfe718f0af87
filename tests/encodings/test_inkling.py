"""Inkling by hand, and Inkling and Inkling 2 against transformers'."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, qk
from helpers.torch_modules import needs

from pe_jax import encodings
from pe_jax.encodings import Context


def test_inkling_weighs_distances_by_a_projection_of_the_query():
    encoding = build("inkling(max_distance=1, rank=1)")
    params = {
        "projection": np.zeros((16, 2, 1), np.float32),
        "table": np.array([[2.0], [3.0], [5.0]], np.float32),  # Of offsets -1, 0, 1.
    }
    params["projection"][0, :, 0] = 1.0, 10.0
    x = np.zeros((1, 4, 16), np.float32)
    x[0, :, 0] = 1.0, 2.0, 3.0, 4.0
    zero = np.zeros((1, 4, 2, 8), np.float32)
    context = Context(positions_q=range(4), x_q=x)
    found = attention_logits(zero, zero, encoding, {"inkling": params}, context)[0]
    expected = np.array([[3, 5, 0, 0], [4, 6, 10, 0], [0, 6, 9, 15], [0, 0, 8, 12]])
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], 10 * expected)
    left = build("inkling(max_distance=1, rank=1, bidirectional=False)")
    params["table"] = params["table"][:2]
    found = attention_logits(zero, zero, left, {"inkling": params}, context)[0, 0]
    np.testing.assert_array_equal(found, np.tril(expected))


def test_inkling_says_what_it_needs():
    encoding = build("inkling(max_distance=3)")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    with pytest.raises(ValueError, match=r"inkling computes .* queries .*x_q=x"):
        attention(q, k, k, encoding, params)
    real = Context(positions_q=np.arange(6) / 2, x_q=draw(2, 6, 16))
    with pytest.raises(ValueError, match="integer offsets .* got float"):
        attention(q, k, k, encoding, params, real)
    with pytest.raises(ValueError, match="max_distance must be at least 0, got -1"):
        build("inkling(max_distance=-1)")
    with pytest.raises(ValueError, match="max_norm must be positive, got 0"):
        build("inkling(max_norm=0)")


@needs("torch", "transformers")
@pytest.mark.parametrize("first", [0, 40])
def test_inkling_is_that_of_transformers(first):
    """Queries from `first` on, of 60 tokens, farther from each other than the table reaches."""
    import torch
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    torch.manual_seed(0)
    length, width, heads, rank, extent = 60, 24, 3, 4, 17
    theirs, project = (
        InklingRelativeLogits(rank, extent),
        torch.nn.Linear(width, heads * rank),
    )
    torch.nn.init.normal_(theirs.proj)
    torch.nn.init.zeros_(project.bias)
    x = torch.randn(2, length - first, width)
    with torch.no_grad():
        states = project(x).view(2, length - first, heads, rank)
        expected = theirs(
            states, torch.arange(first, length), torch.arange(length)
        ).numpy()
    params = {
        "projection": project.weight.detach().numpy().T.reshape(width, heads, rank),
        "table": theirs.proj.detach().numpy().T[::-1],
    }
    encoding = encodings.inkling(
        hidden_size=width,
        num_heads=heads,
        max_distance=extent - 1,
        rank=rank,
        bidirectional=False,
    )
    q, k = (np.zeros((2, n, heads, 8), np.float32) for n in (length - first, length))
    context = Context(
        positions_q=range(first, length), positions_k=range(length), x_q=x.numpy()
    )
    found = attention_logits(q, k, encoding, {"inkling": params}, context)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 1


@needs("torch", "transformers")
def test_inkling_with_a_clip_is_inkling_2():
    """Some projections are shorter than the clip, and some longer."""
    import torch
    from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
    from transformers.models.inkling2.modeling_inkling2 import (
        Inkling2RelativePositionBias,
    )

    torch.manual_seed(0)
    length, extent = 20, 7
    config = Inkling2TextConfig(hidden_size=16, d_rel=4, rel_l2_clip_threshold=2.0)
    theirs = Inkling2RelativePositionBias(config, 2, extent, log_scaling=False)
    x, positions = torch.randn(2, length, 16), torch.arange(length)
    with torch.no_grad():
        for weight in theirs.parameters():
            torch.nn.init.normal_(weight, std=0.7)
        distance = positions[:, None] - positions
        expected = theirs(x, distance, positions[None]).numpy()
    array = lambda weight: weight.detach().numpy()
    params = {
        "projection": array(theirs.linear.weight).T.reshape(16, 2, 4),
        "table": array(theirs.proj).T[::-1],
        "scale": array(theirs.norm.scale),
    }
    encoding = build(
        f"inkling(max_distance={extent - 1}, rank=4, bidirectional=False, max_norm=2)"
    )
    zero = np.zeros((2, length, 2, 8), np.float32)
    context = Context(positions_q=range(length), x_q=x.numpy())
    found = attention_logits(zero, zero, encoding, {"inkling": params}, context)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    projected = np.einsum("blD,Dhr->blhr", x, params["projection"]) * params["scale"]
    lengths = np.linalg.norm(projected, axis=-1)
    assert 0.1 < (lengths < 2).mean() < 0.9
