"""FoPE: mixtures of frequencies, and those that are too slow for the length."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, made, qk, rotated

from pe_jax.encodings import Context, HookContext


def test_without_mixing_fast_pairs_are_those_of_rope():
    """Of four frequencies, two have a turn within 70 tokens; the other pairs are still."""
    encoding = build("fope(original_length=70, gain=0)")
    params = encoding.init(jax.random.key(0))
    assert params["fope"]["cosine"].shape == (2, 2, 2)
    part = encoding.parts[0]
    x, _ = qk()
    found = np.asarray(
        jax.jit(
            lambda x: part.map_qkv(
                params["fope"],
                x,
                x,
                x,
                HookContext(positions_q=range(6), positions_k=range(6)),
            )[0]
        )(x)
    )
    expected = np.asarray(rotated(build("rope").parts[0], x, range(6), range(6))[0])
    np.testing.assert_allclose(
        found[..., [0, 1, 4, 5]], expected[..., [0, 1, 4, 5]], atol=1e-6
    )
    still = x[..., [2, 3]] - x[..., [6, 7]]
    np.testing.assert_allclose(found[..., [2, 3]], still, atol=1e-6)


def test_mixed_frequencies_see_absolute_positions():
    encoding, params = made("fope(original_length=70)")
    q, k = qk()
    logits = jax.jit(
        lambda at: attention_logits(q, k, encoding, params, Context(positions_q=at))
    )
    assert np.abs(logits(np.arange(6)) - logits(np.arange(6) + 5)).max() > 0.1


def test_a_length_without_a_turn_is_an_error():
    with pytest.raises(ValueError, match="at least 7 tokens, .* got 8 and 6"):
        build("fope(original_length=6)")
