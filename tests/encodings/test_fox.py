"""FoX: sums of gates by hand, caches, documents; against x-transformers."""

import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.small_encodings import draw, made
from helpers.torch_modules import array, bias_by_name, loud, needs

from pe_jax.encodings import Context

HEADS, SIZE, LENGTH = 3, 4, 11
WIDTH = HEADS * SIZE
CLOSE = {"atol": 1e-5, "rtol": 0}


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def gates(left=1.0, right=2.0):
    """Parameters of gates that do not depend on hidden states."""
    kernel = np.zeros((16, 2), np.float32)
    side = lambda bias: {"kernel": kernel, "bias": np.full(2, bias, np.float32)}
    return {"fox": {"left": side(left), "right": side(right)}}


def test_fox_with_constant_gates_is_alibi_with_two_slopes():
    encoding, _ = made("fox")
    q = np.zeros((1, 4, 2, 8), np.float32)
    context = Context(positions_q=range(4), x_k=draw(1, 4, 16))
    found = attention_logits(q, q, encoding, gates(1.0, 2.0), context)
    left, right = (np.log1p(np.exp(-bias)) for bias in (1.0, 2.0))
    o = np.arange(4)[None] - np.arange(4)[:, None]
    np.testing.assert_allclose(
        found[0, 0], np.where(o < 0, left * o, -right * o), atol=1e-6
    )


def test_fox_sums_the_gates_between_query_and_key():
    encoding, _ = made("fox")
    params = gates()
    x, kernel = np.zeros((1, 3, 16), np.float32), np.zeros((16, 2), np.float32)
    x[0, :, 0], kernel[0] = (5, -1, 2), 1
    params["fox"]["left"] = {"kernel": kernel, "bias": np.zeros(2, np.float32)}
    q = np.zeros((1, 3, 2, 8), np.float32)
    found = attention_logits(q, q, encoding, params, Context(positions_q=None, x_k=x))
    log_gates = -np.log1p(np.exp([-5.0, 1.0, -2.0]))
    # Query 2 sees key 0 through the gates of tokens 1 and 2: its own counts, the key's does not.
    np.testing.assert_allclose(
        found[0, 0, 2, 0], log_gates[1] + log_gates[2], rtol=1e-6
    )
    np.testing.assert_allclose(found[0, 0, 1, 0], log_gates[1], rtol=1e-6)
    assert (found <= 0).all()


@pytest.mark.parametrize("as_ranges", [True, False])
def test_fox_decodes_with_a_cache_as_all_at_once(as_ranges):
    encoding, params = made("fox(gate_bias=0)")
    q, k, v = qkv()
    x = draw(2, 6, 16, seed=9)
    causal = np.tril(np.ones((6, 6), bool))[None, None]
    whole = attention(
        q, k, v, encoding, params, Context(positions_q=range(6), x_k=x), mask=causal
    )
    for i in (0, 2, 5):
        at_q = range(i, i + 1) if as_ranges else np.full((2, 1), i)
        # An array of keys has its final length from the start; what is not there yet is masked.
        at_k = range(i + 1) if as_ranges else np.arange(6)
        n = len(at_k)
        context = Context(positions_q=at_q, positions_k=at_k, x_k=x[:, :n])
        mask = None if as_ranges else causal[:, :, i : i + 1]
        one = attention(
            q[:, i : i + 1], k[:, :n], v[:, :n], encoding, params, context, mask=mask
        )
        np.testing.assert_allclose(one[:, 0], whole[:, i], atol=1e-6)


def test_fox_keeps_packed_documents_apart():
    encoding, params = made("fox(gate_bias=0)")
    q, k, v = qkv()
    x = 3 * draw(2, 6, 16, seed=9)
    document = np.array([0, 0, 1, 1, 1, 1])
    mask = (document[:, None] == document)[None, None]
    positions = np.array([0, 1, 0, 1, 2, 3])
    packed = attention(
        q, k, v, encoding, params, Context(positions_q=positions, x_k=x), mask=mask
    )
    for own in (slice(0, 2), slice(2, 6)):
        apart = attention(
            q[:, own],
            k[:, own],
            v[:, own],
            encoding,
            params,
            Context(positions_q=None, x_k=x[:, own]),
        )
        np.testing.assert_allclose(packed[:, own], apart, atol=1e-6)


def test_fox_says_what_it_needs():
    encoding, params = made("fox")
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"x_k=x"):
        attention(q, k, v, encoding, params)
    x = draw(2, 6, 16)
    with pytest.raises(ValueError, match="every query must be among the keys"):
        attention(
            q,
            k,
            v,
            encoding,
            params,
            Context(positions_q=range(3, 9), positions_k=range(6), x_k=x),
        )
    strange = Context(positions_q=np.array([7]), positions_k=np.arange(6), x_k=x)
    assert np.isnan(attention(q[:, :1], k, v, encoding, params, strange)).all()


@needs("torch", "transformers", "x_transformers")
def test_fox_is_the_data_dependent_alibi(torch):
    from x_transformers.x_transformers import DataDependentAlibi

    theirs = loud(torch, DataDependentAlibi(WIDTH, HEADS, causal=False), 0.5)
    linear = theirs.to_forget_gates[0]
    weight, start = array(linear.weight).T, array(linear.bias)
    params = {
        side: {"kernel": weight[:, own], "bias": start[own]}
        for side, own in (("left", slice(0, HEADS)), ("right", slice(HEADS, None)))
    }
    x = draw(2, LENGTH, WIDTH)
    ours = bias_by_name("fox", {"fox": params}, x_k=x)
    np.testing.assert_allclose(ours, array(theirs(torch.tensor(x))), **CLOSE)
