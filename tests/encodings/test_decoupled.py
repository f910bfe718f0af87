"""RoPE in a slice of the heads, and beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import build, draw, mapped_queries, qk

from pe_jax import encodings
from pe_jax.encodings import Context


def test_a_slice_is_rope_by_itself_and_the_rest_has_no_position():
    encoding, q = build("rope_slice(size=4, layout='half')"), draw(1, 5, 2, 8)
    at = np.array([0, 3, 2**17, 7, 1])
    found = mapped_queries(encoding.parts[0], {}, q, at)
    rope = build("rope", head_size=4)
    expected = mapped_queries(rope.parts[0], {}, q[..., 4:], at)
    np.testing.assert_array_equal(found[..., :4], q[..., :4])
    np.testing.assert_allclose(found[..., 4:], expected, atol=1e-6)
    still = encodings.with_factors(encoding, jnp.zeros_like)
    np.testing.assert_allclose(mapped_queries(still.parts[0], {}, q, at), q, atol=1e-6)
    assert encoding.parts[0].metadata.pairs == ((4, 6), (5, 7))
    with pytest.raises(ValueError, match="must be 2 to head_size=8, got 10"):
        build("rope_slice(size=10)")


def test_decoupled_rope_is_a_slice_of_heads_that_are_built_outside():
    """The same logits from heads of d + r dimensions, rotated in the last r."""
    encoding = build("decoupled_rope(size=4, stddev=1)")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    x = draw(2, 6, 16, seed=2)
    context = Context(positions_q=range(6), x_q=x, x_k=x)
    found = attention_logits(q, k, encoding, params, context)
    more_q = np.einsum("blD,Dhr->blhr", x, params["decoupled_rope"]["query"])
    more_k = np.einsum("blD,Dr->blr", x, params["decoupled_rope"]["key"])[:, :, None]
    more_k = np.broadcast_to(more_k, more_q.shape)
    whole = build("rope_slice(size=4)", head_size=12)
    expected = attention_logits(
        np.append(q, more_q, -1), np.append(k, more_k, -1), whole, {}
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"decoupled_rope computes .* queries .*x_q=x"):
        attention(q, k, k, encoding, params, Context(positions_q=range(6), x_k=x))
