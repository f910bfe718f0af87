"""Documents of packed rows: the same numbers as a mask of all pairs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from helpers.slow import slow_except

from pe_jax import encodings
from pe_jax.attention import attention, attention_weights, blocks, document_mask
from pe_jax.attention.tpu_kernel import flash_attention

B, L, H, d = 3, 24, 2, 4
# A short one, several over more than a block, and padding. Blocks of four queries meet all keys,
# but for the last two, which meet 12 at most.
DOCUMENT_IDS = np.array(
    [[1] * 2 + [2] * 10 + [3] * 12, [1] * 5 + [2] * 6 + [0] * 13, [1] * 14 + [2] * 10]
)
NAMES = [
    "none",
    "rope",
    "learned_relative(max_distance=3)",
    "sinusoidal_relative(max_distance=None)",
    "sinusoidal_relative(max_distance=5)",
    "t5",
    "alibi",
    "window(max_distance=2)+rope",
    "learned_relative(max_distance=3)+causal",
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
    "none",
    "sinusoidal_relative(max_distance=None)",
    "t5",
    "alibi",
    "window(max_distance=2)+rope",
    "learned_relative(max_distance=3)+causal",
    "sink",
    "causal",
]
pytestmark = pytest.mark.usefixtures("small_blocks")
VALID = np.random.default_rng(1).random((B, 1, 1, L)) < 0.7


@pytest.fixture
def two_widths(monkeypatch):
    """Blocks meet half of the keys or all: their programs have a branch for each width, six
    otherwise, and compiling those is what these tests cost."""
    monkeypatch.setattr(blocks, "_EIGHTHS", (4, 8))


@functools.cache
def build(name):
    encoding = encodings.from_name(
        name, hidden_size=H * d, head_size=d, num_heads=H, max_length=L
    ).layer(0)
    init = jax.jit(encoding.in_attention.init)
    return encoding.in_attention, jax.tree.map(np.asarray, init(jax.random.key(3)))


def draw(kv_heads=H):
    rng = np.random.default_rng(0)
    shapes = [(B, L, n, d) for n in (H, kv_heads, kv_heads)] + [(B, L, H * d)]
    *heads, x = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return heads, x


def places():
    return np.arange(L) - np.argmax(
        DOCUMENT_IDS[:, None] == DOCUMENT_IDS[:, :, None], axis=-1
    )


def context(x, **fields):
    maps = (lambda x: x.reshape(*x.shape[:-1], H, d),) * 2
    return encodings.Context(x_q=x, x_k=x, projections=maps, **fields)


def projection(name, implementation, mask, **fields):
    """A random projection of the output, as a function of q, k and v, parameters and x."""
    encoding, _ = build(name)
    to = np.random.default_rng(1).normal(size=(B, L, H, d))
    how = dict(
        implementation=implementation,
        mask=mask,
        dropout_rate=0.2,
        dropout_rng=jax.random.key(7),
    )
    return lambda qkv, params, x: (
        attention(*qkv, encoding, params, context(x, **fields), **how) * to
    ).sum()


@functools.cache
def expected(name, kv_heads=H, keys_masked=False):
    """The formula in float64 with one mask of all pairs: the same for every implementation."""
    qkv, x = draw(kv_heads)
    mask = document_mask(DOCUMENT_IDS, DOCUMENT_IDS) & (VALID if keys_masked else True)
    naive = projection(name, "naive", jnp.asarray(mask), positions_q=places())
    return paper_attention.in_float64(naive, qkv, build(name)[1], x)


def check(name, implementation, kv_heads=H, keys_masked=False):
    """Compare outputs and all gradients, with dropout, which drops the same weights everywhere."""
    qkv, x = draw(kv_heads)
    mask = jnp.asarray(VALID) if keys_masked else None
    ours = projection(name, implementation, mask, document_ids=DOCUMENT_IDS)
    actual = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2)))(
        qkv, build(name)[1], x
    )
    assert_close(actual, expected(name, kv_heads, keys_masked))


def assert_close(actual, expected, tolerance=2e-4):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


KEPT = [
    "none",
    "learned_relative(max_distance=3)",
    "sinusoidal_relative(max_distance=None)",
    "t5",
    "fire",
]


@pytest.mark.parametrize("name", slow_except(KEPT, NAMES))
@pytest.mark.parametrize("implementation", ["fused", "auto"], ids=["block", "all"])
@pytest.mark.usefixtures("two_widths")
def test_documents_are_a_mask(name, implementation):
    check(name, implementation)


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize(
    "name", slow_except(["t5", "learned_relative(max_distance=3)+causal"], IN_KERNEL)
)
def test_documents_in_the_kernel(name):
    check(name, "kernel")


@pytest.mark.usefixtures("quick_kernel")
@pytest.mark.parametrize(
    "window",
    [
        pytest.param(None, marks=pytest.mark.slow),
        encodings.AttentionWindow(left=40, right=150),
    ],
)
def test_tiles_of_the_kernel(window):
    """Several tiles, of which documents leave out some; NaN in these shows it."""
    length = 400
    document_ids = np.searchsorted([100, 256, 300], np.arange(length), side="right") + 1
    with_padding = np.where(np.arange(length) < 390, document_ids, 0)
    document_ids = np.stack([with_padding, np.ones(length, int)])
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, length, 2, 64)).astype(np.float32)
    table = rng.normal(size=(7, 64)).astype(np.float32)
    bias = np.float32([3, 1, 2, 0, 1, 2, 1])

    def init(key):
        return {"table": jnp.asarray(table), "bias": jnp.asarray(bias)}

    def row(name):
        return lambda params, m, _: params[name][jnp.clip(m, -3, 3) + 3]

    terms = encodings.OffsetTerms(
        key_vectors=row("table"), bias=row("bias"), max_distance=3, window=window
    )
    part = encodings.Part(name="tables", init=init, offsets=terms)
    encoding = encodings.PositionEncoding(parts=(part,))
    params = encoding.init(jax.random.key(0))
    at = encodings.Context(positions_q=np.arange(length))
    mask = jnp.asarray(document_mask(document_ids, document_ids))

    def naive(q, k, v, params):
        return attention(
            q, k, v, encoding, params, at, mask=mask, implementation="naive"
        )

    def kernel(q, k, v, params):
        terms = params["tables"]
        tables = {"key_table": terms["table"], "bias": terms["bias"]}
        options = {"window": window, "block": (128, 128), "interpret": True}
        return flash_attention(
            q, k, v, **tables, document_ids=jnp.asarray(document_ids), **options
        )

    def compiled(function):
        loss = lambda *args: (jnp.sin(out := function(*args)).sum(), out)
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))

    kernel = compiled(kernel)
    assert_close(kernel(q, k, v, params), compiled(naive)(q, k, v, params), 1e-3)
    v = np.where(np.arange(length)[:, None, None] < 384, v, np.nan)
    (_, out), (dq, *_) = kernel(q, k, v, params)
    # The last tile of keys is that of queries from 300 on in the first row, which have a tile of
    # their own from 384 on and share one with others before.
    assert np.isfinite(out[0, :256]).all() and np.isfinite(dq[0, :256]).all()
    assert np.isnan(out[0, 384:390]).all() and np.isnan(out[1, 300:390]).all()


def test_each_document_is_as_alone():
    """Documents of seven tokens, in blocks of four."""
    encoding, params = build("learned_relative(max_distance=3)")
    qkv, _ = draw()
    document_ids = np.repeat([[1, 2, 3], [4, 5, 0], [0, 6, 7]], 7, axis=1)
    document_ids = np.pad(document_ids, ((0, 0), (2, 1)))
    at = encodings.Context(document_ids=document_ids)
    out = jax.jit(
        lambda *qkv: attention(*qkv, encoding, params, at, implementation="fused")
    )(*qkv)
    alone = jax.jit(
        lambda *qkv: attention(*qkv, encoding, params, implementation="naive")
    )
    for number in range(1, 8):
        row, inside = np.nonzero(document_ids == number)
        expected = alone(*(x[row[:1], inside][None] for x in qkv))
        np.testing.assert_allclose(
            out[row[0], inside], expected[0], rtol=1e-5, atol=1e-5
        )
    after_one = (document_ids == 0) & (np.cumsum(document_ids, axis=1) > 0)
    np.testing.assert_array_equal(np.asarray(out)[after_one], 0)


def test_documents_may_be_numbered_from_0():
    encoding, params = build("learned_relative(max_distance=3)")
    qkv, _ = draw()
    run = jax.jit(
        lambda document_ids: attention(
            *qkv, encoding, params, encodings.Context(document_ids=document_ids)
        )
    )
    from_1 = np.repeat([[1, 2, 3], [1, 1, 2], [1, 1, 1]], L // 3, axis=1)
    np.testing.assert_allclose(run(from_1 - 1), run(from_1), atol=1e-6)


@pytest.mark.parametrize("name", ["none", "learned_relative(max_distance=3)", "fire"])
@pytest.mark.usefixtures("two_widths")
def test_blocks_skip_keys_of_other_documents(name):
    """NaN among them would show, as 0 · NaN is NaN."""
    encoding, params = build(name)
    (q, k, v), _ = draw()
    document_ids = np.repeat([[1, 2], [3, 4], [5, 0]], L // 2, axis=1)
    second = np.arange(L)[:, None, None] >= L // 2
    k, v = (np.where(second, np.float32(np.nan), x) for x in (k, v))

    def total(q, k, v):
        out = attention(
            q,
            k,
            v,
            encoding,
            params,
            encodings.Context(document_ids=document_ids),
            implementation="fused",
        )
        return out.sum(), out

    grads, out = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v)
    for x in (out, *grads):
        assert np.isfinite(x[:, : L // 2]).all()
        assert np.isnan(x[:2, L // 2 :]).all()


@pytest.mark.usefixtures("two_widths")
def test_grouped_heads_and_a_mask_of_keys():
    check("rope", "fused", kv_heads=1, keys_masked=True)


@pytest.mark.usefixtures("two_widths")
def test_several_seeds_at_once():
    """`vmap` over parameters and over rows with documents of their own."""
    encoding, params = build("learned_relative(max_distance=3)")
    params = jax.tree.map(lambda x: np.stack([x, 2 * x]), params)
    (q, k, v), _ = draw()
    document_ids = np.stack([DOCUMENT_IDS, np.roll(DOCUMENT_IDS, 1, axis=0)])

    def run(params, document_ids):
        def loss(q, params):
            at = encodings.Context(document_ids=document_ids)
            return (
                attention(q, k, v, encoding, params, at, implementation="fused") ** 2
            ).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(q, params)

    together = jax.jit(jax.vmap(run))(params, document_ids)
    each = [jax.tree.map(lambda x, i=i: x[i], params) for i in (0, 1)]
    single = jax.jit(run)
    alone = [single(of_seed, document_ids[i]) for i, of_seed in enumerate(each)]
    assert_close(together, jax.tree.map(lambda *x: np.stack(x), *alone))
    shared = jax.jit(jax.vmap(run, (0, None)))(params, document_ids[0])
    assert_close(jax.tree.map(lambda x: x[0], shared), alone[0])


def test_weights_and_defaults():
    encoding, params = build("learned_relative(max_distance=3)")
    (q, k, _), _ = draw()
    weights = jax.jit(
        lambda q, k, at, mask=None: attention_weights(
            q, k, encoding, params, at, mask=mask
        )
    )
    by_default = weights(q, k, encodings.Context(document_ids=DOCUMENT_IDS))
    mask = document_mask(DOCUMENT_IDS, DOCUMENT_IDS)
    expected = weights(q, k, encodings.Context(positions_q=places()), mask)
    np.testing.assert_allclose(by_default, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("document_ids", "keys", "message"),
    [
        (DOCUMENT_IDS[:, 1:], L, r"must be \[B, L\].*got \[3, 23\]"),
        (DOCUMENT_IDS, L - 1, "document_mask"),
        (DOCUMENT_IDS > 0, L, "must be integers.*bool"),
        (np.tile([1, 2], (B, L // 2)), L, "document 1 begins twice in a row"),
    ],
)
def test_documents_that_do_not_fit(document_ids, keys, message):
    (q, k, v), _ = draw()
    with pytest.raises(ValueError, match=message):
        attention(
            q,
            k[:, :keys],
            v[:, :keys],
            context=encodings.Context(document_ids=document_ids),
        )


def test_positions_within_documents_are_consecutive():
    qkv, _ = draw()
    context = encodings.Context(positions_q=np.arange(L) * 2, document_ids=DOCUMENT_IDS)
    with pytest.raises(
        ValueError, match="positions must be consecutive within Context.document_ids"
    ):
        attention(*qkv, context=context)
