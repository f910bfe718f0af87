"""Fewer heads of keys and values than of queries, against float64 formulas with repeated heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import paper_attention
from helpers.slow import slow_except

import pe_jax.linen
import pe_jax.nnx
from pe_jax import encodings
from pe_jax.attention import attention, cached_attention, init_cache
from pe_jax.attention.tpu_kernel import fits, flash_attention

H, d, L, D = 4, 8, 7, 32
pytestmark = pytest.mark.usefixtures("small_blocks")
SIZES = dict(hidden_size=D, head_size=d, num_heads=H, max_length=16)
RNG = np.random.default_rng(0)
Q = RNG.normal(size=(2, L, H, d)).astype(np.float32)
KV = RNG.normal(size=(2, 2, L, 2, d)).astype(np.float32)
X = RNG.normal(size=(2, L, D)).astype(np.float32)
TO = RNG.normal(size=Q.shape)
VALID = np.array([[True] * L, [True] * 5 + [False] * 2])[:, None, None]


def repeat(x):
    return jnp.repeat(x, H // x.shape[-2], axis=-2)


def compare(found, expected, tolerance=3e-4):
    def check(a, b):
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max())
        )

    jax.tree.map(check, found, expected)


@functools.cache
def relative_vectors():
    return paper_attention.build("learned_relative", 3, H, d)


@functools.cache
def by_loops(kv_heads):
    """Relative vectors by the formula, for every implementation: the value and all gradients."""
    _, params = relative_vectors()
    index = np.tile(np.arange(L), (2, 1))
    mask = np.broadcast_to(VALID[:, 0], (2, L, L))

    def formula(q, k, v, params):
        keys = list(params), params, q, repeat(k), repeat(v)
        return (paper_attention.attention(*keys, index, index, mask, 3) * TO).sum()

    return paper_attention.in_float64(formula, Q, *KV[..., :kv_heads, :], params)


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize("kv_heads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("implementation", ["naive", "table", "fused", "kernel"])
def test_relative_vectors_against_the_loops(implementation, kv_heads):
    """Vectors that join keys and values, query by query."""
    encoding, params = relative_vectors()
    k, v = KV[..., :kv_heads, :]

    def loss(q, k, v, params):
        out = attention(
            q,
            k,
            v,
            encoding,
            params,
            mask=jnp.asarray(VALID),
            implementation=implementation,
        )
        return (out * TO).sum()

    found = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(Q, k, v, params)
    compare(found, by_loops(kv_heads))


# In all implementations: those whose terms differ most; others fall back on the same products.
ENCODINGS = {
    "rope+t5+relative_key": ["naive", "table", "fused"],
    "sinusoidal_relative(max_distance=None)+alibi+causal": ["table", "kernel"],
    "rope+t5+causal": ["kernel"],
    "relative_key_query": ["naive", "table"],
    "transformer_xl": ["naive", "fused"],
    "deberta": ["fused"],
    "cope+causal": ["fused"],
    "fox+causal": ["naive"],
}


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize(
    "name",
    slow_except(
        ["rope+t5+relative_key", "relative_key_query", "cope+causal"], ENCODINGS
    ),
)
def test_encodings_against_repeated_keys_in_float64(name):
    """Biases, vectors, maps, terms that read keys and projections."""
    encoding = encodings.from_name(name, **SIZES)
    drawn = jax.jit(encoding.init)(jax.random.key(1))
    noise = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: np.asarray(x) + 0.1 * noise.normal(size=x.shape), drawn
    )
    w_q = noise.normal(size=(D, H, d)) / 6
    w_k = noise.normal(size=(D, 2, d)) / 6

    def loss(q, k, v, params, x, w_q, w_k, *, whole=False, **how):
        w_k = repeat(w_k) if whole else w_k
        maps = [
            lambda x, w=w: jnp.einsum("...D,Dhd->...hd", x, w.astype(x.dtype))
            for w in (w_q, w_k)
        ]
        context = encodings.Context(x_q=x, x_k=x, projections=tuple(maps))
        k, v = (repeat(k), repeat(v)) if whole else (k, v)
        out = attention(
            q, k, v, encoding, params, context, mask=jnp.asarray(VALID), **how
        )
        return (out * TO).sum()

    arguments = Q, *KV, params, X, w_q, w_k
    expected = paper_attention.in_float64(
        lambda *args: loss(*args, whole=True, implementation="naive"), *arguments
    )
    single = jax.tree.map(lambda x: np.asarray(x, np.float32), arguments)
    for implementation in ENCODINGS[name]:
        run = functools.partial(loss, implementation=implementation)
        run = jax.jit(jax.value_and_grad(run, argnums=range(7)))
        compare(run(*single), expected)


@pytest.mark.parametrize("kv_heads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_bfloat16_stays_near_float32(kv_heads):
    """Gradients at sizes of real heads: XLA lacks some bfloat16 products on CPUs, see `product`."""
    encoding = (
        encodings.learned_relative(head_size=64, max_distance=5) + encodings.causal()
    )
    params = encoding.init(jax.random.key(0))
    shapes = [(2, 48, heads, 64) for heads in (H, kv_heads, kv_heads)]
    qkv = [np.random.default_rng(0).normal(size=shape) / 2 for shape in shapes]
    to = jnp.cos(jnp.arange(64))

    def gradients(dtype, implementation):
        def loss(q, k, v, params):
            out = attention(q, k, v, encoding, params, implementation=implementation)
            return (out.astype(jnp.float32) * to).sum()

        arguments = (*(jnp.asarray(x, dtype) for x in qkv), params)
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arguments)

    expected = gradients(jnp.float32, "table")
    for implementation in ("naive", "table", "fused"):
        for a, b in zip(
            *map(jax.tree.leaves, (gradients(jnp.bfloat16, implementation), expected))
        ):
            assert np.linalg.norm(
                np.asarray(a, np.float32) - b
            ) < 0.02 * np.linalg.norm(b)


@pytest.mark.parametrize("implementation", ["naive", "table", "fused"])
def test_keys_are_not_repeated(implementation):
    """Forward and backward, no array has the shape of keys with the heads of queries."""
    shape = jax.ShapeDtypeStruct(
        (2, 11, H, d), jnp.float32
    )  # Of 11 keys for 7 queries.
    encoding, params = relative_vectors()
    context = encodings.Context(positions_q=range(L), positions_k=range(11))

    def loss(q, k, v):
        return attention(
            q, k, v, encoding, params, context, implementation=implementation
        ).sum()

    q, k = (jax.ShapeDtypeStruct(x, jnp.float32) for x in (Q.shape, (2, 11, 2, d)))
    program = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(q, k, k))
    assert "2,11,2,8" in program and ",".join(map(str, shape.shape)) not in program


def dense(q, k, v, key_table=None, value_table=None, *, bias=None, valid, scale):
    """The formula with all of [B, H, Lq, Lk] at once, heads of keys repeated."""
    offsets = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None]
    clip = next(len(x) // 2 for x in (key_table, value_table, bias) if x is not None)
    rows = np.clip(offsets, -clip, clip) + clip
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, repeat(k))
    if key_table is not None:
        per_head = key_table if key_table.ndim == 3 else key_table[:, None].repeat(H, 1)
        logits += jnp.einsum("bqhd,qkhd->bhqk", q, per_head[rows])
    logits *= scale
    if bias is not None:
        logits += jnp.moveaxis(bias[rows], -1, 0)
    weights = jax.nn.softmax(jnp.where(valid[:, None, None], logits, -1e300), axis=-1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, repeat(v))
    return (
        out
        if value_table is None
        else out + jnp.einsum("bhqk,qkd->bqhd", weights, value_table[rows])
    )


@pytest.mark.parametrize(
    ("kv_heads", "size"),
    slow_except([(2, 64)], [(2, 64), (1, 32), (2, 128)]),
)
def test_the_kernel_against_the_dense_formula(kv_heads, size, quick_kernel):
    """Heads that fill the lanes alone, two by two, and not at all; several tiles."""
    rng = np.random.default_rng(2)
    shapes = (
        (1, 140, H, size),
        *[(1, 200, kv_heads, size)] * 2,
        (11, H, size),
        (11, size),
        (11, H),
    )
    arguments = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    to, valid = rng.normal(size=shapes[0]), jnp.asarray(rng.random((1, 200)) < 0.8)

    def loss(run, **settings):
        return lambda q, k, v, keys, values, bias: (
            run(q, k, v, keys, values, bias=bias, valid=valid, scale=0.1, **settings)
            * jnp.asarray(to, q.dtype)
        ).sum()

    ours = jax.jit(
        jax.value_and_grad(
            loss(flash_attention, interpret=True, block=(128, 128)), argnums=range(6)
        )
    )
    compare(ours(*arguments), paper_attention.in_float64(loss(dense), *arguments), 5e-4)


def test_the_kernel_refuses():
    q, k = (jax.ShapeDtypeStruct((1, 8, heads, 8), jnp.float32) for heads in (4, 2))
    with pytest.raises(ValueError, match="3 heads, which must divide the 4 heads"):
        fits(q, jax.ShapeDtypeStruct((1, 8, 3, 8), jnp.float32))
    per_head = jax.ShapeDtypeStruct((5, 4, 8), jnp.float32)
    assert fits(q, k, per_head)
    with pytest.raises(
        ValueError, match="for each of 4 heads, but they share 2 heads of values"
    ):
        fits(q, k, value_table=per_head)


def test_heads_that_do_not_fit():
    k, v = KV
    three = Q[:, :, :3]
    with pytest.raises(ValueError, match="heads of keys divide those of queries"):
        attention(Q, three, three)
    per_head = encodings.rope(head_size=d, learnable=True, per_head=True, num_heads=H)
    params = jax.eval_shape(per_head.init, jax.random.key(0))
    for count in (1, 2):
        with pytest.raises(
            ValueError, match=f"cannot map {count} heads of keys with 4 heads"
        ):
            attention(Q, k[:, :, :count], v[:, :, :count], per_head, params)
    for name in (
        "pope",
        "grape_m",
        "string(per_head=True)",
    ):  # These broadcast one head of keys.
        per_head = encodings.from_name(name, **SIZES)
        params = per_head.init(jax.random.key(0))
        with pytest.raises(
            ValueError, match="cannot map 1 heads of keys .*Repeat the keys"
        ):
            attention(Q, k[:, :, :1], v[:, :, :1], per_head, params)
    for make in (
        lambda: pe_jax.nnx.MultiHeadAttention(H, D, num_kv_heads=3, rngs=nnx.Rngs(0)),
        lambda: pe_jax.linen.MultiHeadAttention(H, num_kv_heads=3).init(
            jax.random.key(0), X
        ),
    ):
        with pytest.raises(
            ValueError, match="num_kv_heads must divide num_heads=4, got 3"
        ):
            make()


@pytest.mark.parametrize("kv_heads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_modules_are_those_with_repeated_kernels(kv_heads):
    """In Linen and NNX; a module with all heads of keys has the same function."""
    encoding = encodings.from_name("rope+t5+causal", **SIZES)
    grouped = pe_jax.linen.MultiHeadAttention(H, encoding, num_kv_heads=kv_heads)
    params = jax.jit(grouped.init)(jax.random.key(0), X)["params"]
    assert params["key"]["kernel"].shape == (D, kv_heads, d)
    out = jax.jit(grouped.apply)({"params": params}, X)
    whole = dataclasses.replace(grouped, num_kv_heads=None)
    repeated = {name: jax.tree.map(repeat, params[name]) for name in ("key", "value")}
    compare(out, jax.jit(whole.apply)({"params": {**params, **repeated}}, X), 1e-5)

    layer = pe_jax.nnx.MultiHeadAttention(
        H, D, encoding, num_kv_heads=kv_heads, rngs=nnx.Rngs(0)
    )
    nnx.update(layer, nnx.State(params))
    run = nnx.jit(lambda layer, x: layer(x))
    compare(run(layer, X), out, 1e-5)
    layer.init_cache(2, L)
    assert layer.cache.get_value().keys.shape == (2, L, kv_heads, d)
    decode = nnx.jit(lambda layer, x: layer(x, decode=True))
    steps = [
        decode(layer, x) for x in (X[:, :4], *(X[:, i : i + 1] for i in range(4, L)))
    ]
    compare(np.concatenate(steps, axis=1), out, 1e-5)


def test_a_cache_in_plain_jax():
    encoding = encodings.from_name(
        "rope+learned_relative(max_distance=3)+causal", **SIZES
    )
    params = jax.jit(encoding.init)(jax.random.key(0))
    k, v = KV
    full = jax.jit(lambda *qkv: attention(*qkv, encoding, params))(Q, k, v)
    cache = init_cache(encoding, 2, L, num_kv_heads=2, head_size=d, hidden_size=D)
    step = jax.jit(lambda cache, *new: cached_attention(*new, cache, encoding, params))
    for i in range(L):
        out, cache = step(cache, *(x[:, i : i + 1] for x in (Q, k, v)))
        np.testing.assert_allclose(out[:, 0], full[:, i], atol=1e-5)
