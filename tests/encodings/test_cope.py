"""CoPE by hand, and against x-transformers."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import draw, made_narrow
from helpers.torch_modules import array, loud, needs

from pe_jax import encodings

HEADS, SIZE, LENGTH = 3, 4, 11
CLOSE = {"atol": 1e-5, "rtol": 0}


def test_cope_with_open_gates_counts_keys():
    """Gates of 1: the query's own key is at position 1, the next to the left at 2, and so on."""
    encoding, _ = made_narrow("cope(num_positions=4)+causal")
    table = jnp.arange(4.0)[:, None] * np.float32([1.0, 0, 0, 0])
    q = jnp.zeros((1, 5, 2, 4)).at[..., 0].set(100.0)
    found = attention_logits(q, q, encoding, {"cope": {"table": table}})[0, 0]
    expected = np.tril(np.minimum(np.arange(5)[:, None] - np.arange(5) + 1, 3))
    np.testing.assert_allclose((found - 100 * 100 / 2) / 100, expected, atol=1e-5)


def test_cope_with_half_open_gates_lies_between_two_positions():
    encoding, _ = made_narrow("cope+causal")
    table = jnp.zeros((64, 4)).at[0, 0].set(3.0).at[1, 0].set(5.0)
    q = jnp.zeros((1, 1, 2, 4)).at[..., 0].set(1.0)
    k = jnp.zeros((1, 1, 2, 4)).at[..., 1].set(1.0)  # q·k = 0, a gate of 1/2.
    found = attention_logits(q, k, encoding, {"cope": {"table": table}})
    np.testing.assert_allclose(found, 4.0, rtol=1e-6)


def test_cope_does_not_count_hidden_keys():
    """A key that a mask hides within the row has no part in the positions of those before it."""
    encoding, _ = made_narrow("cope(num_positions=8)+causal")
    params = {"cope": {"table": draw(8, 4)}}
    q, k, v = (draw(1, 6, 2, 4, seed=seed) for seed in range(3))
    shown = np.array([0, 1, 3, 4, 5])
    mask = jnp.zeros((1, 1, 1, 6), bool).at[..., shown].set(True)
    hidden = attention(q, k, v, encoding, params, mask=mask)[:, shown]
    alone = attention(q[:, shown], k[:, shown], v[:, shown], encoding, params)
    np.testing.assert_allclose(hidden, alone, atol=1e-5)


def test_cope_is_refused_without_causal_attention():
    encoding, params = made_narrow("cope")
    q = draw(1, 3, 2, 4)
    with pytest.raises(
        ValueError, match=r"cope needs causal attention: it counts .*'cope\+causal'"
    ):
        attention(q, q, q, encoding, params)
    attention(q, q, q, *made_narrow("cope+causal"))


@needs("torch", "transformers", "x_transformers")
@pytest.mark.parametrize("num_positions", [4, 32])
def test_cope(torch, num_positions):
    """Where counts reach the last position, and where they do not."""
    from x_transformers.x_transformers import CoPE

    theirs = loud(torch, CoPE(SIZE, HEADS, num_positions), 0.5)
    q, k = draw(2, HEADS, LENGTH, SIZE, seed=1), draw(2, HEADS, LENGTH, SIZE, seed=2)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    content = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(SIZE)
    masked = np.where(causal, content, np.finfo(np.float32).min)
    expected = array(theirs(torch.tensor(q), torch.tensor(masked)))
    encoding = (
        encodings.cope(head_size=SIZE, num_positions=num_positions) + encodings.causal()
    )
    params = {"cope": {"table": array(theirs.pos_emb)}}
    ours = (
        attention_logits(q.swapaxes(1, 2), k.swapaxes(1, 2), encoding, params) - content
    )
    np.testing.assert_allclose(
        np.where(causal, ours, 0), np.where(causal, expected, 0), **CLOSE
    )
