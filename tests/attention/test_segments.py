"""Segments of packed rows: the same numbers as a mask of all pairs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention

from pe_jax import encodings
from pe_jax.attention import attention, attention_weights, forms, segment_mask
from pe_jax.attention.masks import segment_bounds
from pe_jax.attention.tpu_kernel import flash_attention

B, L, H, d = 3, 24, 2, 4
# A short one at each end, one over several blocks, padding, and a row of a single one.
SEGMENTS = np.array([[1] * 2 + [2] * 13 + [3] * 9, [1] * 5 + [2] * 6 + [0] * 13, [1] * 24])
NAMES = [
    "none",
    "rope",
    "learned_relative(clip=3)",
    "sinusoidal_relative(clip=None)",
    "sinusoidal_relative(clip=5)",
    "t5",
    "alibi",
    "window(reach=2)+rope",
    "learned_relative(clip=3)+causal",
    "fire",
    "tupe",
    "cope+causal",
    "fox+causal",
    "dape",
    "deberta",
    "sink",
    "transformer_xl",
]
IN_KERNEL = [
    name
    for name in NAMES
    if name.split("(")[0] in "none rope learned_relative t5 alibi window sink"
]
IN_KERNEL += ["sinusoidal_relative(clip=None)", "causal"]
BLOCKS = forms.Form(block=4)


def build(name):
    encoding = encodings.from_name(
        name, hidden_size=H * d, head_size=d, num_heads=H, max_length=L
    ).layer(0)
    return encoding.in_attention, encoding.in_attention.init(jax.random.key(3))


def draw(seed=0, kv_heads=H):
    keys = jax.random.split(jax.random.key(seed), 4)
    heads = [jax.random.normal(key, (B, L, n, d)) for key, n in zip(keys, (H, kv_heads, kv_heads))]
    return heads, jax.random.normal(keys[3], (B, L, H * d))


def places():
    return np.arange(L) - np.asarray(segment_bounds(jnp.asarray(SEGMENTS))[0])


def context(x, **fields):
    maps = (lambda x: x.reshape(*x.shape[:-1], H, d),) * 2
    return encodings.Context(x_q=x, x_k=x, projections=maps, **fields)


def check(name, form, rate=0.0, kv_heads=H, valid=None):
    """Compare outputs and all gradients with the formula in float64, with one mask of all pairs."""
    encoding, params = build(name)
    qkv, x = draw(kv_heads=kv_heads)
    mask = segment_mask(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS))
    weights = np.random.default_rng(1).normal(size=(B, L, H, d))

    def project(qkv, params, x, form, mask, **fields):
        out = attention(
            *qkv,
            encoding,
            params,
            context(x, **fields),
            mask=mask,
            dropout_rate=rate,
            dropout_rng=jax.random.key(7),
            form=form,
        )
        return (out * weights).sum()

    mask = mask if valid is None else mask & valid
    naive = functools.partial(project, form="naive", mask=mask, positions_q=places())
    expected = paper_attention.in_float64(naive, qkv, params, x)
    ours = functools.partial(project, form=form, mask=valid, segments=SEGMENTS)
    actual = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2)))(qkv, params, x)
    assert_close(actual, expected)


def assert_close(actual, expected, tolerance=2e-4):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", [BLOCKS, "auto"], ids=["block", "all"])
def test_segments_are_a_mask(name, form):
    check(name, form)


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize("name", IN_KERNEL)
def test_segments_in_the_kernel(name):
    check(name, "kernel", rate=0.2)


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize("reach", [None, encodings.Reach(40, 150)])
def test_tiles_of_the_kernel(reach):
    """Several tiles, of which segments leave out some; NaN in these shows it."""
    length = 400
    segments = np.searchsorted([100, 256, 300], np.arange(length), side="right") + 1
    segments = np.stack([np.where(np.arange(length) < 390, segments, 0), np.ones(length, int)])
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, length, 2, 64)).astype(np.float32)
    table, bias = rng.normal(size=(7, 64)).astype(np.float32), np.float32([3, 1, 2, 0, 1, 2, 1])
    encoding = encodings.PositionEncoding(
        (
            encodings.Part(
                "tables",
                lambda key: {"table": jnp.asarray(table), "bias": jnp.asarray(bias)},
                offsets=encodings.Offsets(
                    keys=lambda params, m, _: params["table"][jnp.clip(m, -3, 3) + 3],
                    bias=lambda params, m, _: params["bias"][jnp.clip(m, -3, 3) + 3],
                    clip=3,
                    reach=reach,
                ),
            ),
        )
    )
    params = encoding.init(jax.random.key(0))
    at = encodings.Context(np.arange(length))
    mask = segment_mask(jnp.asarray(segments), jnp.asarray(segments))

    def naive(q, k, v, params):
        return attention(q, k, v, encoding, params, at, mask=mask, form="naive")

    def kernel(q, k, v, params):
        terms = params["tables"]
        tables = {"key_table": terms["table"], "bias": terms["bias"]}
        options = {"reach": reach, "block": (128, 128), "interpret": True}
        return flash_attention(q, k, v, **tables, segments=jnp.asarray(segments), **options)

    def run(function, v):
        loss = lambda *args: (jnp.sin(out := function(*args)).sum(), out)
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(q, k, v, params)

    assert_close(run(kernel, v), run(naive, v), 1e-3)
    v = np.where(np.arange(length)[:, None, None] < 384, v, np.nan)
    (_, out), (dq, *_) = run(kernel, v)
    # The last tile of keys is that of queries from 300 on in the first row, which have a tile of
    # their own from 384 on and share one with others before.
    assert np.isfinite(out[0, :256]).all() and np.isfinite(dq[0, :256]).all()
    assert np.isnan(out[0, 384:390]).all() and np.isnan(out[1, 300:390]).all()


def test_each_document_is_as_alone():
    encoding, params = build("learned_relative(clip=3)")
    qkv, _ = draw()
    out = attention(*qkv, encoding, params, encodings.Context(segments=SEGMENTS), form=BLOCKS)
    for row, segments in enumerate(SEGMENTS):
        for number in range(1, segments.max() + 1):
            (inside,) = np.nonzero(segments == number)
            alone = [x[row : row + 1, inside] for x in qkv]
            expected = attention(*alone, encoding, params, form="naive")
            np.testing.assert_allclose(out[row, inside], expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[SEGMENTS == 0], 0)


@pytest.mark.parametrize("name", ["none", "learned_relative(clip=3)", "fire"])
def test_blocks_skip_keys_of_other_segments(name):
    """NaN among them would show, as 0 · NaN is NaN."""
    encoding, params = build(name)
    (q, k, v), _ = draw()
    segments = np.repeat([[1, 2], [3, 4], [5, 0]], L // 2, axis=1)
    second = np.arange(L)[:, None, None] >= L // 2
    k, v = (jnp.where(second, jnp.nan, x) for x in (k, v))

    def total(q, k, v):
        out = attention(
            q, k, v, encoding, params, encodings.Context(segments=segments), form=BLOCKS
        )
        return out.sum(), out

    grads, out = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v)
    for x in (out, *grads):
        assert np.isfinite(x[:, : L // 2]).all()
        assert np.isnan(x[:2, L // 2 :]).all()


def test_dropout_is_that_of_the_mask():
    check("learned_relative(clip=3)", BLOCKS, rate=0.4)


def test_grouped_heads_and_a_mask_of_keys():
    valid = jax.random.bernoulli(jax.random.key(1), 0.7, (B, 1, 1, L))
    check("rope", BLOCKS, kv_heads=1, valid=valid)


def test_several_seeds_at_once():
    """`vmap` over parameters and over rows with segments of their own."""
    encoding, _ = build("learned_relative(clip=3)")
    params = jax.vmap(encoding.init)(jax.random.split(jax.random.key(0), 2))
    (q, k, v), _ = draw()
    segments = jnp.stack([jnp.asarray(SEGMENTS), jnp.roll(jnp.asarray(SEGMENTS), 1, axis=0)])

    def run(params, segments):
        def loss(q, params):
            at = encodings.Context(segments=segments)
            return (attention(q, k, v, encoding, params, at, form=BLOCKS) ** 2).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(q, params)

    together = jax.jit(jax.vmap(run))(params, segments)
    each = [jax.tree.map(lambda x, i=i: x[i], params) for i in (0, 1)]
    alone = [run(of_seed, segments[i]) for i, of_seed in enumerate(each)]
    assert_close(together, jax.tree.map(lambda *x: jnp.stack(x), *alone))
    shared = jax.jit(jax.vmap(run, (0, None)))(params, segments[0])
    assert_close(jax.tree.map(lambda x: x[0], shared), alone[0])


def test_weights_and_defaults():
    encoding, params = build("learned_relative(clip=3)")
    (q, k, _), _ = draw()
    by_default = attention_weights(q, k, encoding, params, encodings.Context(segments=SEGMENTS))
    mask = segment_mask(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS))
    at = encodings.Context(places())
    np.testing.assert_allclose(
        by_default, attention_weights(q, k, encoding, params, at, mask=mask), atol=1e-6
    )


@pytest.mark.parametrize(
    ("segments", "keys", "message"),
    [
        (SEGMENTS[:, 1:], L, r"must be \[B, L\].*got \[3, 23\]"),
        (SEGMENTS, L - 1, "segment_mask"),
        (SEGMENTS > 0, L, "must be integers.*bool"),
    ],
)
def test_segments_that_do_not_fit(segments, keys, message):
    (q, k, v), _ = draw()
    with pytest.raises(ValueError, match=message):
        attention(q, k[:, :keys], v[:, :keys], context=encodings.Context(segments=segments))
