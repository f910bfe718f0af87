"""Vectors of offsets: their signs, shifts and tables; NEZHA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build_clipped, draw, made_narrow
from helpers.torch_modules import array, loud, needs, projected

from pe_jax import encodings
from pe_jax.attention import attention_weights
from pe_jax.encodings.parser import PAPER
from pe_jax.encodings.sinusoid import rotate_pairs

HEADS, SIZE, LENGTH = 3, 4, 11
WIDTH = HEADS * SIZE
CLOSE = {"atol": 1e-5, "rtol": 0}


def test_nezha_is_the_papers_sinusoid_with_rotated_projections():
    """S(m + clip) = R S(m): R undone at queries and keys, and at values and outputs."""
    nezha, paper = (
        made_narrow("nezha(max_distance=3)")[0],
        made_narrow("sinusoidal_relative(max_distance=3)")[0],
    )
    w = encodings.default_frequencies(4)
    rotate = lambda x, by: rotate_pairs(x, np.array(by), w)
    q, k, v = (draw(2, 9, 2, 4, seed=n) for n in range(3))
    expected = attention(q, k, v, nezha)
    back = attention(rotate(q, -3), rotate(k, -3), rotate(v, -3), paper)
    np.testing.assert_allclose(rotate(back, 3), expected, atol=1e-5)
    assert np.abs(attention(q, k, v, paper) - expected).max() > 0.1


def test_separate_tables_for_keys_and_values():
    encoding = encodings.learned_relative(head_size=4, max_distance=3, separate=True)
    params = encoding.init(jax.random.key(0))
    assert encodings.parameter_count(encoding) == 2 * 7 * 4
    own = params["learned_relative"]
    assert not np.allclose(own["key"]["table"], own["value"]["table"])


def test_the_sign_of_offsets():
    """Positive to the right: query 0 sees key 2 at offset +2."""
    expected = [[0, 1, 2], [-1, 0, 1]]
    assert encodings.offsets(np.arange(2), np.arange(3)).tolist() == expected

    encoding = build_clipped("learned_relative")
    table = jnp.arange(7.0)[:, None] * jnp.ones(
        (1, 4)
    )  # Row r holds r; offset m is row m + 3.
    params = {"learned_relative": {"table": table}}
    q, k = jnp.ones((1, 2, 1, 4)), jnp.zeros((1, 5, 1, 4))
    context = encodings.Context(positions_q=range(2), positions_k=range(5))
    got = attention_logits(q, k, encoding, params, context)[0, 0] * 4**0.5 / 4
    assert got.tolist() == [[3, 4, 5, 6, 6], [2, 3, 4, 5, 6]]  # Clipped at +3.


@pytest.mark.parametrize("name", [n for n in PAPER if "relative" in n])
def test_relative_terms_ignore_a_common_shift(name):
    encoding = build_clipped(name)
    params = encoding.init(jax.random.key(0))
    q = jax.random.normal(jax.random.key(1), (2, 9, 2, 4))
    logits = lambda at: attention_logits(
        q, q, encoding, params, encodings.Context(positions_q=at)
    )
    np.testing.assert_allclose(logits(range(9)), logits(range(100, 109)), atol=1e-4)


@needs("torch", "transformers", "x_transformers")
@pytest.mark.parametrize("clip", [64, 3])
def test_nezha(torch, transformers, clip):
    from transformers.models.deprecated.nezha.modeling_nezha import NezhaSelfAttention

    config = transformers.models.deprecated.nezha.configuration_nezha.NezhaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        max_relative_position=clip,
    )
    layer = loud(torch, NezhaSelfAttention(config), 0.5)
    x = draw(2, LENGTH, WIDTH)
    out, weights = layer(torch.tensor(x), output_attentions=True)[:2]
    q, k, v = projected(layer, x)
    encoding = encodings.nezha(head_size=SIZE, max_distance=clip)
    np.testing.assert_allclose(
        attention_weights(q, k, encoding, {}), array(weights), **CLOSE
    )
    ours = jax.jit(lambda *qkv: attention(*qkv, encoding))(q, k, v).reshape(out.shape)
    np.testing.assert_allclose(ours, array(out), **CLOSE)
