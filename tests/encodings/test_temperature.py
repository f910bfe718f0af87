"""log_n by hand, ssmax against transformers', and encodings with layers without positions."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import build, draw, logits_at
from helpers.torch_modules import needs

from pe_jax.attention import document_mask
from pe_jax.encodings import Context, HookContext
from pe_jax.trainer.training.transplant import transplant


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ("", lambda n: np.maximum(np.log(n) / np.log(4), 1)),  # Qwen's.
        (", smooth=True", lambda n: np.log(4 + n) / np.log(4)),  # SWAN's.
        (
            ", coefficient=0.412, count='row'",
            lambda n: np.full(6, 1 + 0.412 * np.log(6 / 4)),
        ),
    ],
)
def test_log_n(options, factor):
    n = np.arange(1, 7)
    found, plain = (
        logits_at(name, range(6))
        for name in (f"log_n(original_length=4{options})", "none")
    )
    found = np.asarray(found) / np.asarray(plain)
    np.testing.assert_allclose(found[0, 0], np.tile(factor(n)[:, None], 6), rtol=1e-5)


def test_log_n_of_a_document_ignores_its_neighbours():
    encoding = build("log_n(original_length=2)")
    q, k, v = (draw(1, 6, 2, 8, seed=seed) for seed in range(3))
    document_ids = np.array([[1, 1, 1, 1, 2, 2]])
    at = np.array([[0, 1, 2, 3, 0, 1]])
    both = attention(
        q,
        k,
        v,
        encoding,
        {},
        Context(positions_q=at),
        mask=document_mask(document_ids, document_ids),
    )
    alone = attention(q[:, 4:], k[:, 4:], v[:, 4:], encoding)
    np.testing.assert_allclose(both[:, 4:], alone, atol=1e-6)
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        build("log_n(original_length=1)")


def test_ssmax_starts_near_the_plain_softmax():
    """Without a bias on average over 1,024 queries, with one exactly."""
    of_query = build("ssmax").parts[0]
    start = of_query.init(jax.random.key(0))
    factors = of_query.scale(
        start, HookContext(positions_q=range(1024), positions_k=range(1024))
    )
    np.testing.assert_allclose(np.mean(factors, axis=1).ravel(), 1, atol=0.003)
    with_bias = logits_at("ssmax(bias=True)", range(6))
    np.testing.assert_allclose(with_bias, logits_at("none", range(6)), atol=1e-6)


@needs("torch", "transformers")
def test_ssmax_is_that_of_mistral_large_4():
    import torch
    from transformers.models.mistral_large4 import modeling_mistral_large4

    theirs = modeling_mistral_large4.MistralLarge4TextSoftmaxScaling(2)
    params = {"scale": draw(2), "bias": draw(2, seed=1)}
    with torch.no_grad():
        theirs.scale.copy_(torch.tensor(params["scale"]))
        theirs.bias.copy_(torch.tensor(params["bias"]))
        positions = torch.tensor([[0, 1, 7], [3, 100_000, 131_072]])
        expected = theirs(torch.ones(2, 2, 3, 1), positions, head_dim_first=True)
    factor = build("ssmax(bias=True)").parts[0].scale
    found = factor(
        params,
        HookContext(positions_q=positions.numpy(), positions_k=positions.numpy()),
    )
    np.testing.assert_allclose(found, expected.numpy().transpose(0, 2, 1, 3), rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "cycle(" + "rope+window(max_distance=3), " * 3 + "none)+causal",
        "cycle(log_n(original_length=8, smooth=True), "
        "rope+window(max_distance=3), rope+window(max_distance=3))+causal",
    ],
)
def test_interleaved_layers_without_positions(name):
    """RNoPE-SWA, SWAN: what a query at the end attends to."""
    encoding = build(name)
    q = draw(1, 9, 2, 8)
    for layer, one in enumerate(encoding.layers):
        of_layer = encoding.layer(layer)
        values = np.eye(9, dtype=np.float32)[None, :, None].repeat(2, axis=2)
        weights = attention(q, q, values, of_layer)
        kept = 4 if "window" in one.name else 9
        assert (np.asarray(weights)[0, -1, 0] > 0).sum() == kept


def test_dropping_rope_keeps_all_parameters():
    """DroPE starts from what a model with RoPE has learned: nothing is lost or new."""
    params = {"bert": {"token": {"embedding": draw(4, 2)}}}
    kept, changes = transplant(params, params)
    assert kept == params and not changes.dropped and not changes.new
    assert not build("rope+log_n(original_length=8)").init(jax.random.key(0))
