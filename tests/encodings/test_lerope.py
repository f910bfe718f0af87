"""LeRoPE beside RoPE, and against Mistral Large 4's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, draw, frequencies_of, qk
from helpers.torch_modules import needs

from pe_jax.encodings import Context, with_factors


def test_factors_are_one_at_first_and_multiply_frequencies():
    """Around learned frequencies and inside of other factors, too."""
    q, k = qk()
    learnable = build("lerope(rope(learnable=True))")
    params = learnable.init(jax.random.key(0))
    plain = attention_logits(q, k, build("rope"), {})
    np.testing.assert_allclose(
        attention_logits(q, k, learnable, params), plain, atol=1e-6
    )
    np.testing.assert_allclose(
        frequencies_of(learnable), [1, 0.1, 0.01, 0.001], rtol=1e-6
    )
    double = {"rope": params["rope"] | {"log_factors": jnp.full(4, np.log(2.0))}}
    at = Context(positions_q=2 * np.arange(6))
    twice = attention_logits(q, k, learnable, double)
    np.testing.assert_allclose(
        twice, attention_logits(q, k, build("rope"), {}, at), atol=1e-5
    )
    halved = with_factors(learnable, lambda w: jnp.full_like(w, 0.5))
    np.testing.assert_allclose(attention_logits(q, k, halved, double), plain, atol=1e-5)
    assert learnable.parts[0].traits.frequency_params == ("frequencies", "log_factors")


def test_lerope_says_what_it_takes():
    with pytest.raises(ValueError, match="rotates pairs .* got alibi"):
        build("lerope(alibi)")


@needs("torch", "transformers")
def test_lerope_is_that_of_mistral_large_4():
    import torch
    from transformers.models.mistral_large4 import modeling_mistral_large4 as theirs
    from transformers.models.mistral_large4.configuration_mistral_large4 import (
        MistralLarge4TextConfig,
    )

    config = MistralLarge4TextConfig(max_position_embeddings=4096)
    config.head_dim = 8
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    module = theirs.MistralLarge4TextRotaryEmbedding(config)
    alpha = 0.3 * draw(4)
    with torch.no_grad():
        module.alpha.copy_(torch.tensor(alpha))
        q, k = qk()
        cos, sin = module(torch.tensor(q), torch.tensor([[0, 1, 2, 100, 1000, 4000]]))
        rotated = theirs.apply_rotary_pos_emb_interleave(
            *(torch.tensor(x).transpose(1, 2) for x in (q, k)), cos, sin
        )
        expected = (rotated[0] @ rotated[1].mT).numpy() / 8**0.5
    name = "lerope(rope_yarn(factor=4, original_length=1024, base=1000, layout='interleaved'))"
    at = Context(positions_q=np.array([0, 1, 2, 100, 1000, 4000]))
    found = attention_logits(q, k, build(name), {"rope": {"log_factors": alpha}}, at)
    np.testing.assert_allclose(found, expected, atol=2e-3)
