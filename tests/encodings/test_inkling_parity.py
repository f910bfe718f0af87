"""Inkling's relative logits against the module of transformers, on random weights and states.

Runs where the extra `parity` is installed.
"""

import importlib.util

import numpy as np
import pytest

from pe_jax import encodings
from pe_jax.encodings import Context

NEEDED = ("torch", "transformers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)), reason="needs the extra `parity`"
    ),
]


@pytest.mark.parametrize("first", [0, 40])
def test_inkling_is_that_of_transformers(first):
    """Queries from `first` on, of 60 tokens, farther from each other than the extent."""
    import torch
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    torch.manual_seed(0)
    length, width, heads, rank, extent = 60, 24, 3, 4, 17
    theirs, project = InklingRelativeLogits(rank, extent), torch.nn.Linear(width, heads * rank)
    torch.nn.init.normal_(theirs.proj)
    torch.nn.init.zeros_(project.bias)
    x = torch.randn(2, length - first, width)
    with torch.no_grad():
        states = project(x).view(2, length - first, heads, rank)
        expected = theirs(states, torch.arange(first, length), torch.arange(length)).numpy()
    params = {
        "projection": project.weight.detach().numpy().T.reshape(width, heads, rank),
        "table": theirs.proj.detach().numpy().T[::-1],
    }
    encoding = encodings.inkling(
        hidden_size=width, num_heads=heads, extent=extent, rank=rank, bidirectional=False
    )
    q, k = (np.zeros((2, n, heads, 8), np.float32) for n in (length - first, length))
    context = Context(range(first, length), range(length), x_q=x.numpy())
    found = encoding.parts[0].logits(params, q, k, context)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 1
