"""Hooks of the softmax: logits in the denominator, and maps of the finished logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention

from pe_jax import encodings
from pe_jax.attention import attention, attention_weights
from pe_jax.attention.inputs import apply_encoding
from pe_jax.attention.tpu_kernel import adapter
from pe_jax.encodings import Context, HookContext, Part, PositionEncoding
from pe_jax.encodings.part import no_parameters

H, d, L = 4, 8, 9
pytestmark = pytest.mark.usefixtures("small_blocks")
Q, K, V = paper_attention.draw(2, L, L, H, d)
TO = np.random.default_rng(1).normal(size=Q.shape)
MASK = np.random.default_rng(2).random((2, 1, L, L)) < 0.7
MASK[0, :, 2] = False  # A query that attends to nothing.

SINK = PositionEncoding(
    parts=(
        Part(
            name="sink",
            init=lambda rng: {"logit": jax.random.normal(rng, (H,))},
            sink=lambda p, _: p["logit"],
        ),
    )
)


ALIBI = encodings.alibi(num_heads=H)


def capped(params, content, bias):
    return 2 * jnp.tanh((content + bias) / 2)


SOFT_CAP = PositionEncoding(
    parts=(
        Part(
            name="soft_cap",
            map_logits=lambda params, content, terms, mask: capped(
                params, content, terms
            ),
        ),
    )
)


def dape(params, content, terms, mask):
    """DAPE (Zheng et al. 2024): content + bias + an MLP of both, over the heads of each pair."""
    both = jnp.concatenate([content, terms], axis=1)
    hidden = jnp.tanh(jnp.einsum("bhqk,hm->bmqk", both, params["in"]))
    return content + terms + jnp.einsum("bmqk,mh->bhqk", hidden, params["out"])


DAPE = PositionEncoding(
    parts=(
        Part(
            name="dape",
            init=lambda rng: {
                "in": jax.random.normal(rng, (2 * H, 5)),
                "out": jax.random.normal(rng, (5, H)),
            },
            map_logits=dape,
        ),
    )
)


def mapped(params, content, bias):
    return dape(params["dape"], content, jnp.broadcast_to(bias, content.shape), None)


HALVED = PositionEncoding(
    parts=(
        Part(
            name="halved",
            init=no_parameters,
            map_logits=lambda p, content, terms, _: content / 2 + terms,
        ),
    )
)


def capped_and_halved(params, content, bias):
    return jnp.tanh((content + bias) / 2)


def formula(q, k, v, params, *, finish=lambda params, content, bias: content + bias):
    """ALiBi with the hooks above, all pairs at once."""
    offset = np.arange(L) - np.arange(L)[:, None]
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    bias = jnp.asarray(-slopes[:, None, None] * np.abs(offset))
    logits = finish(
        params, jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d), bias[None]
    )
    exp = jnp.where(MASK, jnp.exp(logits), 0)
    total = exp.sum(-1, keepdims=True)
    if "sink" in params:
        total += jnp.exp(params["sink"]["logit"])[:, None, None]
    weights = exp / jnp.where(total == 0, 1, total)
    return (jnp.einsum("bhqk,bkhd->bqhd", weights, v) * jnp.asarray(TO, q.dtype)).sum()


@functools.cache
def expected_results(encoding, finish):
    """Parameters; value and gradients by the formula, the same for every implementation."""
    params = encoding.init(jax.random.key(0))
    finished = {} if finish is None else {"finish": finish}
    results = paper_attention.in_float64(
        lambda *args: formula(*args, **finished), Q, K, V, params
    )
    return params, results


def check(encoding, implementation, finish=None):
    params, expected = expected_results(encoding, finish)

    def loss(q, k, v, params):
        out = attention(
            q,
            k,
            v,
            encoding,
            params,
            mask=jnp.asarray(MASK),
            implementation=implementation,
        )
        return (out * TO).sum()

    found = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(Q, K, V, params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
        found,
        expected,
    )


@pytest.mark.parametrize("implementation", ["naive", "table", "fused"])
def test_a_sink_of_each_head(implementation):
    """Outputs and gradients, those of the sink among them."""
    check(ALIBI + SINK, implementation)


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize("kv_heads", [pytest.param(H, marks=pytest.mark.slow), 2])
def test_sinks_in_the_kernel(kv_heads):
    """By `auto` on a TPU as well; a row without any key, and heads that share keys."""
    encoding = encodings.alibi(num_heads=H) + SINK
    params = encoding.init(jax.random.key(0))
    mask = np.random.default_rng(2).random((2, 1, 1, L)) < 0.7
    mask[0] = False
    mask = jnp.asarray(mask)
    k, v = K[:, :, :kv_heads], V[:, :, :kv_heads]

    def run(implementation):
        out = lambda *x: attention(
            *x[:3], encoding, x[3], mask=mask, implementation=implementation
        )
        loss = lambda *x: (out(*x) * TO).sum()
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(Q, k, v, params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        run("kernel"),
        run("naive"),
    )
    context = HookContext(positions_q=range(L), positions_k=range(L))
    x = apply_encoding(encoding, params, Q, k, v, context, mask)
    assert not adapter.unsupported_reason(x)


def test_weights_leave_room_for_a_sink():
    params = {"sink": {"logit": jnp.full(H, 50.0)}}
    assert attention_weights(Q, K, SINK, params).max() < 1e-6
    params = {"sink": {"logit": jnp.full(H, -50.0)}}
    np.testing.assert_allclose(
        attention_weights(Q, K, SINK, params).sum(-1), 1, atol=1e-6
    )


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.slow
def test_sinks_with_dropout_in_every_implementation():
    encoding = encodings.alibi(num_heads=H) + SINK
    params = encoding.init(jax.random.key(0))
    how = dict(dropout_rate=0.4, dropout_rng=jax.random.key(1))

    def run(implementation):
        loss = lambda *args: (
            attention(
                *args[:3], encoding, args[3], implementation=implementation, **how
            )
            ** 2
        ).sum()
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 3)))(Q, K, V, params)

    expected = run("naive")
    for implementation in ("table", "fused", "kernel"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            run(implementation),
            expected,
        )


@pytest.mark.parametrize("implementation", ["naive", "table", "fused"])
def test_maps_of_the_finished_logits(implementation):
    """They see the terms of other parts."""
    check(ALIBI + SOFT_CAP, implementation, capped)
    check(DAPE + ALIBI, implementation, mapped)


@pytest.mark.parametrize("implementation", ["naive", "table", "fused"])
def test_maps_leave_keys_forbidden_that_a_bias_forbids(implementation):
    """Biases of -inf, before two maps, are as a mask of the same keys; gradients too."""
    with_chunks = encodings.chunks(size=4) + DAPE + SOFT_CAP
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        run_maps(with_chunks, implementation=implementation),
        maps_under_a_mask(),
    )


def run_maps(encoding, **how):
    """The value and gradients of a layer with the parameters of two maps."""
    params = (DAPE + SOFT_CAP).init(jax.random.key(0))
    loss = lambda *x: (attention(*x[:3], encoding, x[3], **how) * TO).sum()
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(Q, K, V, params)


@functools.cache
def maps_under_a_mask():
    """Two maps under a mask of the keys in chunks of four, the same for every implementation."""
    chunk = np.arange(L) // 4
    same_chunk = jnp.asarray(chunk == chunk[:, None])[None, None]
    return run_maps(DAPE + SOFT_CAP, mask=same_chunk, implementation="naive")


def test_a_map_of_values_that_is_undone_refuses_vectors_added_to_values():
    negated = Part(
        name="negated",
        init=no_parameters,
        map_qkv=lambda p, q, k, v, _: (q, k, -v),
        map_output=lambda p, o, _: -o,
    )
    undone = PositionEncoding(parts=(negated,))
    np.testing.assert_allclose(
        attention(Q, K, V, undone), attention(Q, K, V), rtol=1e-5
    )
    both = undone + encodings.learned_relative(head_size=d, max_distance=2)
    with pytest.raises(
        ValueError, match=r"negated.*adds vectors to the values.*`map_output`"
    ):
        attention(Q, K, V, both, both.init(jax.random.key(0)))


@pytest.mark.parametrize("implementation", ["naive", "fused"])
def test_maps_follow_one_another(implementation):
    both = SOFT_CAP + HALVED
    check(ALIBI + both, implementation, capped_and_halved)
    with pytest.raises(ValueError, match="'kernel' needs"):
        attention(Q, K, V, both, implementation="kernel")
    assert "maps the finished logits" in both.parts[0].effects
    assert "adds to the denominator of the softmax" in SINK.parts[0].effects
    attention(
        Q, K, V, SINK, {"sink": {"logit": jnp.zeros(H)}}, Context(positions_q=range(L))
    )
