"""Gates of each query against x-transformers', and what they need."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import build, draw
from helpers.torch_modules import bias_by_name, needs


@needs("torch", "x_transformers")
def test_per_row_alibi_is_that_of_x_transformers():
    import torch
    from x_transformers.x_transformers import PerRowDataDependentAlibi

    torch.manual_seed(0)
    theirs, x = PerRowDataDependentAlibi(12, 3, dim_head=5), torch.randn(2, 11, 12)
    with torch.no_grad():
        expected = theirs(x).numpy()
        weight = theirs.to_forget_gates[0].weight.numpy()
    query, key = np.moveaxis(weight.reshape(2, 3, 5, 12), 3, 1)
    params = {"per_row_alibi": {"query": query, "key": key}}
    found = bias_by_name(
        "per_row_alibi(rank=5)+causal", params, x_q=x.numpy(), x_k=x.numpy()
    )
    causal = np.tril(np.ones((11, 11), bool))
    np.testing.assert_allclose(np.where(causal, found, 0), expected, atol=1e-5)


def test_per_row_alibi_says_what_it_needs():
    q = draw(1, 6, 2, 8)
    encoding = build("per_row_alibi+causal")
    params = encoding.init(jax.random.key(0))
    with pytest.raises(
        ValueError, match="per_row_alibi computes its terms from hidden states"
    ):
        attention(q, q, q, encoding, params)
    with pytest.raises(ValueError, match="needs causal attention"):
        attention(q, q, q, build("per_row_alibi"), params)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        build("per_row_alibi(rank=0)")
