"""Attention against helpers/paper_attention.py, query by query: outputs and gradients where
lengths, clips and masks are special. test_conformance_suite.py has all encodings at one length."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention

from pe_jax import encodings
from pe_jax.attention import (
    attention,
    document_mask,
    dropout,
    masked_softmax,
    padding_mask,
)
from pe_jax.attention.implementations import queries_per_block
from pe_jax.encodings.parameters import split_params
from pe_jax.encodings.parser import PAPER

H, d = 2, 4
RELATIVE = [n for n in PAPER if n.endswith("relative") and "+" not in n]


def draw(rows, lq, lk):
    return paper_attention.draw(rows, lq, lk, H, d)


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("clip", [1, 4, 20], ids=["shorter", "just", "longer"])
def test_clip_shorter_and_longer_than_the_sequence(name, clip):
    paper_attention.check_attention(
        name, draw(1, 5, 5), np.arange(5), np.arange(5), np.ones((1, 5, 5), bool), clip
    )


@pytest.mark.parametrize("name", RELATIVE)
def test_one_position(name):
    paper_attention.check_attention(
        name,
        draw(2, 1, 1),
        np.arange(1),
        np.arange(1),
        np.ones((2, 1, 1), bool),
        clip=3,
    )


@pytest.mark.parametrize("name", RELATIVE)
def test_queries_and_keys_of_other_lengths_and_places(name):
    paper_attention.check_attention(
        name,
        draw(2, 3, 8),
        np.arange(3) + 4,
        np.arange(8),
        np.ones((2, 3, 8), bool),
        clip=2,
    )


@pytest.mark.parametrize("name", ["none", *RELATIVE])
def test_packed_documents_and_rows_that_see_nothing(name):
    """Two sequences in a row, positions starting again; then padding, which sees nothing."""
    document_ids = np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 0, 0]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 4, 0, 0]])
    mask = np.asarray(
        document_mask(jnp.asarray(document_ids), jnp.asarray(document_ids))
    )[:, 0]
    assert not mask[0, 6].any()
    paper_attention.check_attention(
        name, draw(2, 7, 7), positions, positions, mask, clip=2
    )


@pytest.mark.parametrize("name", RELATIVE)
def test_positions_known_only_at_run_time(name):
    """Traced positions give what concrete ones give: nothing is left out by mistake."""
    encoding = encodings.from_name(
        paper_attention.clipped(name, 3),
        hidden_size=8,
        head_size=d,
        num_heads=H,
        max_length=16,
    )
    params = encoding.init(jax.random.key(0))
    q, k, v = draw(2, 7, 7)
    run = lambda p: attention(
        q, k, v, encoding, params, encodings.Context(positions_q=p)
    )
    concrete = run(range(7))
    np.testing.assert_allclose(run(np.arange(7)), concrete, atol=1e-6)
    np.testing.assert_allclose(jax.jit(run)(jnp.arange(7)), concrete, atol=1e-6)
    per_row = jnp.tile(jnp.arange(7), (2, 1))
    np.testing.assert_allclose(jax.jit(run)(per_row), concrete, atol=1e-6)


@pytest.mark.parametrize("name", RELATIVE)
def test_separate_values_table(name):
    """With P zero in the values only the logits see positions, and the other way round."""
    if name == "sinusoidal_relative":
        pytest.skip("has nothing to learn, so nothing to separate")
    make = getattr(encodings, name)
    encoding = make(head_size=d, max_distance=3, separate=True)
    params = encoding.init(jax.random.key(0))
    q, k, v = draw(1, 5, 5)
    loss = lambda p: attention(q, k, v, encoding, p).sum()
    grads = jax.jit(jax.grad(loss))(params)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
    once = make(head_size=d, max_distance=3)
    one = params[name]["key"]
    np.testing.assert_allclose(
        attention(q, k, v, encoding, {name: {"key": one, "value": one}}),
        attention(q, k, v, once, {name: one}),
        atol=1e-6,
    )


@pytest.mark.parametrize("clip", [None, 400])
def test_unclipped_sinusoid(clip):
    encoding = encodings.learnable_sinusoidal_relative(head_size=d, max_distance=clip)
    params = encoding.init(jax.random.key(0))
    q, k, v = draw(1, 300, 300)
    out = attention(q, k, v, encoding, params)
    ((part, own),) = split_params(encoding, params)
    p = part.metadata.vectors(own, encodings.offsets(range(300), range(300)))
    logits = (
        np.einsum("bqhd,bqkhd->bhqk", q, k[:, None] + np.asarray(p)[None, :, :, None])
        / 2
    )
    weights = np.asarray(jax.nn.softmax(logits))
    expected = np.einsum(
        "bhqk,bqkhd->bqhd", weights, v[:, None] + np.asarray(p)[None, :, :, None]
    )
    np.testing.assert_allclose(out, expected, atol=2e-4)


@pytest.mark.parametrize("name", PAPER)
def test_bfloat16_stays_near_float32(name):
    encoding = encodings.from_name(
        name, hidden_size=8, head_size=d, num_heads=H, max_length=512
    )
    params = encoding.init(jax.random.key(0))
    q, k, v = draw(2, 300, 300)
    run = jax.jit(lambda *qkv: attention(*qkv, encoding.in_attention, params))
    full, half = run(q, k, v), run(*(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.05)


def test_softmax_row_that_may_look_at_nothing():
    logits = jnp.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    mask = jnp.array([[[[True, True], [False, False]]]])
    weights = masked_softmax(logits, mask)
    assert weights[0, 0, 1].tolist() == [0, 0]
    assert float(weights[0, 0, 0].sum()) == pytest.approx(1)
    grad = jax.grad(lambda x: (masked_softmax(x, mask) ** 2).sum())(logits)
    assert np.isfinite(grad).all() and grad[0, 0, 1].tolist() == [0, 0]


def test_masks_by_hand():
    assert padding_mask(jnp.array([[True, False]])).shape == (1, 1, 1, 2)
    document_ids = jnp.array([[1, 1, 2, 0]])
    assert document_mask(document_ids, document_ids)[0, 0].astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_dropout():
    x = jnp.ones((400, 500))
    out = dropout(x, 0.1, jax.random.key(0))
    assert float((out == 0).mean()) == pytest.approx(0.1, abs=0.003)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.003)
    np.testing.assert_array_equal(out, dropout(x, 0.1, jax.random.key(0)))
    assert dropout(x, 0.1, None) is x and dropout(x, 0.0, jax.random.key(0)) is x
    with pytest.raises(ValueError, match=r"got 1\.0"):
        dropout(x, 1.0, jax.random.key(0))


def test_a_key_does_not_see_the_future_of_a_mask():
    """Causality through gradients: outputs up to i do not move with later keys."""
    q, k, v = draw(1, 6, 6)
    encoding = encodings.learned_relative(head_size=d, max_distance=3)
    params = encoding.init(jax.random.key(0))
    causal = jnp.tril(jnp.ones((6, 6), bool))[None, None]

    def early(k, v):
        return (attention(q, k, v, encoding, params, mask=causal)[:, :3] ** 2).sum()

    for grad in jax.jit(jax.grad(early, argnums=(0, 1)))(k, v):
        assert np.abs(grad[:, :3]).max() > 0 and np.abs(grad[:, 3:]).max() == 0


def test_what_attention_refuses():
    q, k, v = draw(1, 3, 5)
    encoding = encodings.learned_relative(head_size=d, max_distance=3)
    params = encoding.init(jax.random.key(0))
    none = encodings.none()

    def at(positions_q, positions_k=None, **more):
        return encodings.Context(
            positions_q=positions_q, positions_k=positions_k, **more
        )

    for message, arguments, more in (
        ("of learned_relative", (encoding, None, at(range(3), range(5))), {}),
        ("3 queries to 5 keys needs the positions of both", (encoding, params), {}),
        (
            "each of 3 tokens of q .*got 4",
            (encoding, params, at(range(4), range(5))),
            {},
        ),
        (
            "each of 5 tokens of k .*got 4",
            (encoding, params, at(range(3), range(4))),
            {},
        ),
        (
            "3 queries to 5 keys needs the positions",
            (encoding, params, at(range(3))),
            {},
        ),
        ("mask must be bool.*additive == 0", (none,), {"mask": np.zeros((1, 1, 3, 5))}),
        ("mask must be .*here", (none,), {"mask": np.ones((3, 5), bool)}),
        ("mask must be .*Lk", (none,), {"mask": np.ones((1, 1, 3, 1), bool)}),
    ):
        with pytest.raises(ValueError, match=message):
            attention(q, k, v, *arguments, **more)


def test_names_are_no_encodings():
    """In a process of its own: here the types of arguments are checked before."""
    code = """
import jax
import jax.numpy as jnp
from flax import nnx
from pe_jax import attention, encodings, linen, models
from pe_jax import nnx as pe_nnx
from pe_jax.encodings.parameters import split_params
x, rng, rngs = jnp.zeros((1, 2, 1, 4)), jax.random.key(0), nnx.Rngs(0)
calls = [
    lambda: linen.MultiHeadAttention(1, "rope").init(rng, x[:, :, 0]),
    lambda: linen.PositionEmbedding("rope").init(rng, x[:, :, 0]),
    lambda: pe_nnx.MultiHeadAttention(1, 4, "rope", rngs=rngs),
    lambda: pe_nnx.PositionEmbedding("rope", rngs=rngs),
    lambda: models.BertConfig(position=None),
    lambda: attention.attention(x, x, x, "rope"),
    lambda: encodings.embed(x[:, :, 0], "rope"),
    lambda: encodings.parameter_count("rope"),
    lambda: encodings.per_layer("rope"),
    lambda: attention.attention(x, x, x, context=range(2)),
    lambda: attention.attention(x, x, x, mask=[[True]]),
    lambda: split_params(encodings.alibi(num_heads=1), encodings.Context()),
]
for call in calls:
    try:
        call()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    told = done.stdout.splitlines()
    wrong = (*["str"] * 4, "None", *["str"] * 4, "range", "list", "Context")
    for line, name in zip(told, wrong, strict=True):
        assert f"got {name}" in line


def test_attention_takes_the_encoding_of_one_layer():
    x = jnp.zeros((1, 2, 1, 4))
    encoding = encodings.cycle(encodings.rope(head_size=4), encodings.none())
    with pytest.raises(
        ValueError, match=r"layers of cycle\(rope, none\) differ.*layer\(i\)"
    ):
        attention(x, x, x, encoding)
    attention(x, x, x, encoding.layer(0))


def test_forward_mode_and_second_derivatives_of_the_naive_implementation():
    """Against differences, and the Hessian against the derivative of the gradient."""
    encoding = encodings.learnable_sinusoidal_relative(head_size=d, max_distance=3)
    params = encoding.init(jax.random.key(0))
    q, k, v = (jnp.asarray(x) for x in draw(1, 4, 4))
    f = lambda q: (
        attention(q, k, v, encoding, params, implementation="naive") ** 2
    ).sum()
    to = jax.random.normal(jax.random.key(1), q.shape)
    value, slope = jax.jit(lambda q: jax.jvp(f, (q,), (to,)))(q)
    np.testing.assert_allclose(value, jax.jit(f)(q), rtol=1e-5)
    grad, product = jax.jit(lambda q: jax.jvp(jax.grad(f), (q,), (to,)))(q)
    np.testing.assert_allclose(slope, (grad * to).sum(), rtol=1e-4)
    hessian = jax.jit(jax.hessian(f))(q).reshape(q.size, q.size)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-3)
    product = product.ravel()
    np.testing.assert_allclose(hessian @ to.ravel(), product, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: jax.jvp(f, (x,), (x,)),
        lambda f, x: jax.jvp(jax.jit(f), (x,), (x,)),
        lambda f, x: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x),
        lambda f, x: jax.jacfwd(f)(x),
    ],
    ids=["jvp", "jvp of jit", "jit of jvp", "jacfwd"],
)
def test_forward_mode_names_the_naive_implementation(derivative):
    x = jnp.zeros((1, 2, 1, 4))
    with pytest.raises(TypeError, match=r'no forward mode.*implementation="naive"'):
        derivative(lambda q: attention(q, x, x), x)


def test_second_derivatives_of_all_queries_and_of_blocks():
    encoding = encodings.learned_relative(head_size=d, max_distance=1)
    params = encoding.init(jax.random.key(0))
    q, k, v = (jnp.asarray(x) for x in draw(1, 3, 3))
    to = jax.random.normal(jax.random.key(1), q.shape)

    @jax.jit
    def products(q):
        """Of the Hessian with a vector."""
        losses = [
            lambda q, implementation=implementation: (
                attention(q, k, v, encoding, params, implementation=implementation) ** 2
            ).sum()
            for implementation in ("naive", "table", "fused")
        ]
        return [jax.jvp(jax.grad(loss), (q,), (to,))[1] for loss in losses]

    with queries_per_block(2):
        expected, *results = products(q)
    for result in results:
        np.testing.assert_allclose(result, expected, atol=1e-4)
