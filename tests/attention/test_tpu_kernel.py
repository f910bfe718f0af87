"""The fused TPU kernel, run as ordinary operations, against two formulas: query by query, dense."""

import dataclasses
import functools
import importlib.util
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from helpers.slow import slow_except
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from tpu_slices import make_slice

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.attention.devices import emulated_devices
from pe_jax.attention.dropout import keep
from pe_jax.attention.dropout import scale as scale_of_kept
from pe_jax.attention.implementations import kernel_in_auto
from pe_jax.attention.tpu_kernel import arguments, fits, flash, flash_attention
from pe_jax.encodings import AttentionWindow
from pe_jax.models import preset
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.tasks.glue import classification_task
from pe_jax.trainer.tasks.seeds import SEED_AXES, SeedsProgram, seed_mesh
from pe_jax.trainer.training import optimizer as optimizers
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.step import init_state


def draw(rows, lq, lk, heads, size, clip, terms="kv"):
    """q, k, v and terms: tables for keys, queries and values, a bias, a sink; capitals have one per
    head. And c: what the table for keys meets instead of q."""
    rng = np.random.default_rng(0)
    shapes = [(rows, n, heads, size) for n in (lq, lk, lk)]
    for term in terms:
        shape = (2 * clip + 1, *([heads] if term.isupper() else []))
        if term in "sc":
            shapes.append((heads,) if term == "s" else (rows, lq, heads, size))
            continue
        shapes.append(shape if term in "bB" else (*shape, size))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def with_terms(function, terms, **settings):
    """`function` of q, k, v and the arrays that `terms` names."""
    names = {"k": "key_table", "q": "query_table", "v": "value_table", "b": "bias"}
    names |= {"s": "sink", "c": "content"}

    def run(q, k, v, *arrays):
        given = {names[term.lower()]: x for term, x in zip(terms, arrays, strict=True)}
        return function(q, k, v, **given, **settings)

    return run


def dense(
    q,
    k,
    v,
    key_table=None,
    value_table=None,
    *,
    query_table=None,
    content=None,
    bias=None,
    sink=None,
    window=None,
    offset=0,
    valid,
    scale,
    dropout_rate=0.0,
    seed=None,
):
    """The formula with all of [B, H, Lq, Lk] at once."""
    (rows, lq, heads, _), lk = q.shape, k.shape[1]
    offsets = np.arange(lk) - np.arange(lq)[:, None] + offset

    def per_head(x, axes):
        """[Lq, Lk, H, ...]: the rows of all offsets."""
        clip = len(x) // 2
        x = x if x.ndim == axes else x[:, None].repeat(heads, axis=1)
        return x[np.clip(offsets, -clip, clip) + clip]

    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if key_table is not None:
        content = q if content is None else content
        logits += jnp.einsum("bqhd,qkhd->bhqk", content, per_head(key_table, 3))
    logits *= scale
    if query_table is not None:
        logits += jnp.einsum("bkhd,qkhd->bhqk", k, per_head(query_table, 3))
    if bias is not None:
        logits += jnp.moveaxis(per_head(bias, 2), 2, 0)
    allowed = valid[:, None, None] & (window or AttentionWindow()).allows(offsets)
    allowed = jnp.broadcast_to(allowed, logits.shape)
    if sink is not None:
        column = jnp.broadcast_to(sink[:, None, None], (rows, heads, lq, 1))
        logits = jnp.concatenate([logits, column], axis=-1)
        allowed = jnp.concatenate([allowed, jnp.ones_like(column, bool)], axis=-1)
    weights = jax.nn.softmax(logits, where=allowed, axis=-1)
    weights = jnp.where(allowed.any(-1, keepdims=True), weights, 0)[..., :lk]
    if dropout_rate:
        numbers = np.arange(rows * heads * lq, dtype=np.uint32)
        numbers = numbers.reshape(rows, heads, lq, 1)
        kept = keep(seed, numbers, np.arange(lk, dtype=np.uint32), dropout_rate)
        weights = jnp.where(kept, weights * scale_of_kept(dropout_rate), 0)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    if value_table is not None:
        out += jnp.einsum("bhqk,qkhd->bqhd", weights, per_head(value_table, 3))
    return out


def check(args, ours, expected):
    """Compares value and gradients of a random projection of the output; returns the gradients."""
    to = np.random.default_rng(9).normal(size=np.shape(args[0]))
    project = lambda function: lambda *args: (function(*args) * to).sum()
    argnums = range(len(args))
    value, grads = jax.jit(jax.value_and_grad(project(ours), argnums))(*args)
    in_float64 = paper_attention.in_float64(project(expected), *args)
    expected_value, expected_grads = in_float64
    np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-4)
    for a, b in zip(grads, expected_grads):
        np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-5 * max(1, np.abs(b).max()))
    return grads


def test_query_by_query(quick_kernel):
    """Two heads side by side in the lanes, padding, and a row that sees nothing."""
    valid = np.array([[True] * 4 + [False] * 3, [False] * 7])
    positions = np.tile(np.arange(7), (2, 1))
    mask = np.broadcast_to(valid[:, None], (2, 7, 7))

    def ours(q, k, v, table):
        return flash_attention(
            q, k, v, table, table, valid=jnp.asarray(valid), interpret=True
        )

    def formula(q, k, v, table):
        params = {"learned_relative": {"table": table}}
        return paper_attention.attention(
            list(params), params, q, k, v, positions, positions, mask, 2
        )

    grads = check(draw(2, 7, 7, 2, 4, clip=2)[:4], ours, formula)
    assert all(np.abs(grad[1]).max() == 0 for grad in grads[:3])


def around(distance):
    """The window of the keys up to so far from a query, on both sides."""
    return AttentionWindow(left=distance, right=distance)


CAUSAL = AttentionWindow(left=None, right=0)


class Case(typing.NamedTuple):
    """Arguments of the kernel; `terms` as `draw` takes them."""

    lengths: tuple[int, int]  # Of queries and of keys.
    heads: int
    size: int
    clip: int
    terms: str
    offset: int = 0
    window: AttentionWindow | None = None


CASES = {
    "many blocks": Case((300, 200), heads=1, size=128, clip=64, terms="kv", offset=40),
    "only keys, clip longer than the sequence": Case(
        (9, 8), heads=2, size=128, clip=20, terms="k"
    ),
    "only values, clip of more than a block, behind": Case(
        (20, 150), heads=2, size=128, clip=100, terms="v", offset=-70
    ),
    "no terms": Case((130, 70), heads=2, size=128, clip=1, terms=""),
    "per head, side by side in the lanes": Case(
        (9, 130), heads=4, size=64, clip=5, terms="KVB", offset=3
    ),
    "a bias per head alone, many blocks": Case(
        (140, 150), heads=2, size=128, clip=64, terms="B"
    ),
    "a shared bias and keys, window beyond the clip": Case(
        (300, 150), heads=1, size=128, clip=20, terms="kb", offset=40, window=around(64)
    ),
    "a shared bias, window within the clip": Case(
        (20, 300), heads=2, size=64, clip=60, terms="bV", offset=-140, window=around(30)
    ),
    "a window alone, of whole blocks": Case(
        (300, 520), heads=1, size=128, clip=1, terms="", offset=-70, window=around(256)
    ),
    "a window that hides all keys": Case(
        (9, 8), heads=1, size=128, clip=2, terms="b", offset=500, window=around(100)
    ),
    "causal, all terms": Case(
        (300, 280), heads=1, size=128, clip=20, terms="kvb", window=CAUSAL
    ),
    "causal with a window": Case(
        (20, 300),
        heads=2,
        size=64,
        clip=60,
        terms="b",
        offset=-140,
        window=AttentionWindow(left=70, right=0),
    ),
    "sinks alone, causal, many blocks": Case(
        (300, 280), heads=2, size=64, clip=1, terms="s", window=CAUSAL
    ),
    "sinks beside other terms": Case(
        (140, 150), heads=2, size=128, clip=20, terms="vBs", offset=3
    ),
    "queries alone, many blocks": Case(
        (300, 200), heads=1, size=128, clip=64, terms="q"
    ),
    "queries, keys and values per head, clip longer than the sequence": Case(
        (9, 130), heads=2, size=64, clip=140, terms="KQV", offset=3
    ),
    "queries and other terms, causal": Case(
        (140, 300), heads=2, size=64, clip=20, terms="kqB", offset=-140, window=CAUSAL
    ),
    "queries with sinks and a long bias, window": Case(
        (140, 300),
        heads=2,
        size=64,
        clip=200,
        terms="qBs",
        offset=-9,
        window=around(60),
    ),
    "other vectors for the keys, many blocks": Case(
        (300, 200), heads=2, size=64, clip=30, terms="kBc", offset=40
    ),
    "other vectors for the keys per head, and queries": Case(
        (20, 150), heads=4, size=64, clip=100, terms="KcQ", offset=-70
    ),
    "sinks where a window hides all keys": Case(
        (9, 8), heads=2, size=64, clip=2, terms="bs", offset=500, window=around(100)
    ),
}


KEPT = [
    "only values, clip of more than a block, behind",
    "per head, side by side in the lanes",
    "a window that hides all keys",
    "causal, all terms",
    "sinks beside other terms",
    "queries, keys and values per head, clip longer than the sequence",
    "queries and other terms, causal",
    "other vectors for the keys per head, and queries",
]


@pytest.mark.parametrize("case", slow_except(KEPT, CASES))
def test_against_the_dense_formula(case, quick_kernel):
    """Dropout and padding everywhere; blocks of 128."""
    lengths, heads, size, clip, terms, offset, window = CASES[case]
    settings = hard_settings(lengths[1], offset, window)
    ours = with_terms(
        flash_attention, terms, **settings, interpret=True, block=(128, 128)
    )
    expected = jax.jit(with_terms(dense, terms, **settings))
    grads = check(draw(1, *lengths, heads, size, clip, terms), ours, expected)
    if "hides" in case:
        assert all(np.abs(grad).max() == 0 for grad in grads)


def hard_settings(keys, offset, window):
    """Arguments with dropout, and padding anywhere."""
    return dict(
        offset=offset,
        window=window,
        valid=jnp.asarray(np.random.default_rng(1).random((1, keys)) < 0.8),
        scale=0.1,
        dropout_rate=0.2,
        seed=jnp.array([3, 2**31 + 5], jnp.uint32),
    )


LONG = {  # clip, terms, offset, window, block
    "beyond all offsets, two blocks of queries": (600, "B", 40, None, (256, 128)),
    "shared, clipped, tiles before and after the clip": (140, "b", -170, None, (128, 256)),
    "causal with a sink": (400, "Bs", 0, CAUSAL, (256, 256)),
    "a window": (300, "b", 0, around(150), (128, 128)),
    "clipped before the first key": (140, "b", 900, None, (128, 128)),
}  # fmt: skip


@pytest.mark.parametrize("case", slow_except([*LONG][:3], LONG))
def test_a_bias_longer_than_a_tile(case, quick_kernel):
    clip, terms, offset, window, block = LONG[case]
    q, k, v, *arrays = draw(1, 300, 400, 2, 64, clip, terms)
    shared = flash.Shared(bias=arrays[0])
    config = arguments.configure(q, k, shared, window, offset, block=block)
    assert config.terms.long_bias
    settings = hard_settings(400, offset, window)
    ours = with_terms(flash_attention, terms, **settings, interpret=True, block=block)
    check([q, k, v, *arrays], ours, jax.jit(with_terms(dense, terms, **settings)))


def test_tiles_outside_the_window_are_not_computed():
    """What is there does no harm, and is no work for XLA's scheduler to expect."""
    q, k, v = draw(1, 300, 600, 1, 128, 1, "")
    with_nan = np.where(np.arange(600)[:, None, None] < 512, v, np.nan)
    run = functools.partial(flash_attention, block=(128, 128), interpret=True)
    window = around(80)  # The last tile of queries, 256 to 383, up to key 463.
    np.testing.assert_array_equal(
        run(q, k, with_nan, window=window), run(q, k, v, window=window)
    )
    assert np.isnan(run(q, k, with_nan)).all()

    def flops(window):
        loss = lambda q: run(q, k, v, window=window and around(window)).sum()
        return [
            int(n)
            for n in re.findall(r"flops=(\d+)", str(jax.make_jaxpr(jax.grad(loss))(q)))
        ]

    # Tiles of queries meet 2, 3 and 3 tiles of keys instead of 5 each.
    assert [15 * few for few in flops(80)] == [8 * all_ for all_ in flops(None)]
    assert len(flops(None)) == 2


@pytest.mark.parametrize("block", [(128, 128), (256, 128), (128, 384)])
@pytest.mark.parametrize("offset", [0, -300, 777, -5000])
@pytest.mark.parametrize(
    "window",
    [
        *map(around, [0, 127, 128, 300, 1000]),
        AttentionWindow(left=None, right=0),
        AttentionWindow(left=200, right=None),
    ],
)
def test_the_tiles_of_a_window(window, offset, block):
    """Those that are counted are those where a query attends to a key, and they are consecutive."""
    lq, lk = 700, 1100
    q, k = (jax.ShapeDtypeStruct((1, n, 1, 128), np.float32) for n in (lq, lk))
    config = arguments.configure(q, k, flash.Shared(), window, offset, block=block)
    query = np.arange(config.tiling.query_tiles * block[0])
    key = np.arange(config.tiling.key_tiles * block[1])
    attended = np.asarray(window.allows(key - query[:, None] + offset))
    by_tile = attended.reshape(-1, block[0], config.tiling.key_tiles, block[1])
    tiles = by_tile.any((1, 3))
    assert config.tiling.attended_tiles == tiles.sum(1).tolist()
    for n in np.flatnonzero(tiles.any(1)):
        first, end = config.tiling.key_tile_range(int(n))
        assert tiles[n, first:end].all()


def test_what_fits_the_chip():
    """A bias for all offsets of 512 tokens fits; for 16,384 it does not, unless in a window."""

    def ask(length, **more):
        x = jax.ShapeDtypeStruct((1, length, 12, 64), jnp.bfloat16)
        bias = jax.ShapeDtypeStruct((2 * length - 1, 12), jnp.float32)
        return fits(x, x, bias=bias, **more)

    assert ask(512) and not ask(16384)
    assert ask(16384, window=around(512))
    assert ask(4096)


@pytest.mark.parametrize("rows", [8, 3], ids=["shared out", "too few to share out"])
def test_devices_share_the_batch_and_drop_the_same(rows):
    q, k, v, *_ = draw(rows, 20, 20, 1, 128, clip=1)
    seed = jnp.array([1, 2], jnp.uint32)

    def grads(q, k, v):
        run = lambda *x: (
            flash_attention(*x, dropout_rate=0.5, seed=seed, interpret=True) ** 2
        ).sum()
        return jax.grad(run, argnums=(0, 1, 2))(q, k, v)

    alone = jax.jit(grads)(q, k, v)
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data" if rows == 8 else None))
    with jax.set_mesh(mesh):
        compiled = jax.jit(grads, in_shardings=split).lower(q, k, v).compile()
    assert "all-gather" not in compiled.as_text()
    for a, b in zip(compiled(*(jax.device_put(x, split) for x in (q, k, v))), alone):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_vmapped_runs_are_those_alone(quick_kernel):
    """Tables, dropout and gradients of two models side by side: each as by itself."""
    models = [draw(2, 6, 6, 2, 4, clip=2), [2 * x for x in draw(2, 6, 6, 2, 4, clip=2)]]
    seeds = [np.array([n, 1], np.uint32) for n in range(2)]
    document_ids = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])

    def loss(args, seed):
        out = flash_attention(
            *args,
            document_ids=document_ids,
            dropout_rate=0.3,
            seed=seed,
            interpret=True,
        )
        return jnp.square(out).sum()

    run = jax.value_and_grad(loss)
    together = jax.jit(jax.vmap(run))(
        jax.tree.map(lambda *x: np.stack(x), *models), np.stack(seeds)
    )
    for n, (model, seed) in enumerate(zip(models, seeds)):
        alone = jax.jit(run)(model, seed)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(a, b[n], rtol=1e-5, atol=1e-6)


def test_bfloat16_stays_near_float32():
    q, k, v, *_ = draw(1, 20, 20, 1, 128, clip=1)
    half = flash_attention(
        *(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)), interpret=True
    )
    assert half.dtype == jnp.bfloat16
    full = flash_attention(q, k, v, interpret=True)
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.05)


def test_bad_input():
    q, k, v, table, _ = draw(1, 4, 4, 1, 8, clip=2)
    with pytest.raises(ValueError, match=r"float32, bfloat16"):
        flash_attention(q, jnp.asarray(k, jnp.bfloat16), v)
    with pytest.raises(ValueError, match=r"got \[4\]"):
        flash_attention(q, k, v, table[:4])
    with pytest.raises(ValueError, match=r"got \[3, 5\]"):
        flash_attention(q, k, v, table, table[:3])
    with pytest.raises(ValueError, match=r"got \[5, 7\]"):
        flash_attention(q, k, v, table, bias=np.zeros(7, np.float32))
    with pytest.raises(ValueError, match=r"3 tables or biases for 1 heads"):
        flash_attention(q, k, v, bias=np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match=r"got AttentionWindow\(left=-1"):
        flash_attention(q, k, v, window=around(-1))
    with pytest.raises(ValueError, match="sink is not supported beside key_table"):
        flash_attention(q, k, v, table, sink=np.zeros(1, np.float32))
    with pytest.raises(
        ValueError, match=r"content must be .*got \[1, 4, 1, 8\] and no"
    ):
        flash_attention(q, k, v, content=q)
    with pytest.raises(ValueError, match=r"got \(100, 128\)"):
        flash_attention(q, k, v, block=(100, 128))


@pytest.mark.parametrize(
    ("derivative", "missing"),
    [(jax.jacfwd, "forward mode"), (jax.hessian, "second derivatives")],
)
def test_derivatives_that_need_another_implementation(
    derivative, missing, quick_kernel
):
    q, k, v = draw(1, 4, 4, 2, 8, 1, "")

    def loss(q):
        return attention(
            q, k, v, encodings.alibi(num_heads=2), implementation="kernel"
        ).sum()

    with pytest.raises(
        TypeError, match=f'attention has no {missing}.*pass implementation="naive"'
    ):
        derivative(loss)(q)


VECTORS = [
    "relative_key_query",
    "relative_key_query+alibi+causal",
    "deberta(num_buckets=None,max_distance=5)",
    "deberta(num_buckets=8,max_distance=16)",
    "transformer_xl(max_distance=5)",
    "transformer_xl",
    "inkling(max_distance=3,rank=2)",
    "inkling(max_distance=3,rank=2,bidirectional=False)+causal",
    "inkling(max_distance=40,rank=2)+log_n(original_length=8)",
]


@pytest.mark.parametrize("name", slow_except(VECTORS[::2], VECTORS))
def test_vectors_of_keys_and_queries(name, quick_kernel):
    """Against the plain formula in float64, with gradients of all that enters: queries that are
    not the first ones, and vectors that meet something else than the mapped queries."""
    heads, size, keys, first = 2, 8, 12, 3
    encoding = encodings.from_name(
        name, hidden_size=16, head_size=size, num_heads=heads, max_length=16
    )
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    drawn = jax.eval_shape(encoding.init, jax.random.key(0))
    params = jax.tree.map(lambda x: normal(*x.shape), drawn)
    q, x = normal(2, keys - first, heads, size), normal(2, keys - first, 16)
    k, v = normal(2, 2, keys, heads, size)
    kernels = normal(2, 16, heads, size)
    arrays = (q, k, v, x, kernels, params)
    to = normal(*q.shape)

    def loss(arrays, implementation):
        q, k, v, x, kernels, params = arrays

        def to_heads(kernel):
            return lambda table: jnp.einsum("nD,Dhd->nhd", table, kernel)

        context = encodings.Context(
            positions_q=range(first, keys),
            positions_k=range(keys),
            x_q=x,
            projections=(to_heads(kernels[0]), to_heads(kernels[1])),
        )
        out = attention(
            q, k, v, encoding, params, context, implementation=implementation
        )
        return (out * to).sum()

    def gradients(arrays, implementation):
        run = functools.partial(loss, implementation=implementation)
        return jax.jit(jax.value_and_grad(run))(arrays)

    ours = gradients(arrays, "kernel")
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), arrays)
        exact = gradients(wide, "naive")
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        largest = max(1, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("name", ["rope", "liere"])
def test_positions_that_are_arrays(name):
    """Encodings that map queries and keys alone: the kernel needs no offsets."""
    encoding = encodings.from_name(
        name, hidden_size=32, head_size=16, num_heads=2, max_length=128
    )
    params = encoding.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    axes = () if encoding.axes == 1 else (encoding.axes,)
    positions = rng.integers(0, 50, (2, 128, *axes))
    q, k, v, to = rng.normal(size=(4, 2, 128, 2, 16)).astype(np.float32)

    @functools.partial(jax.jit, static_argnames="implementation")
    def value_and_gradients(positions, implementation):
        context = encodings.Context(positions_q=positions)

        def outputs(q, k, v):
            return attention(
                q, k, v, encoding, params, context, implementation=implementation
            )

        out, pullback = jax.vjp(outputs, q, k, v)
        return out, pullback(to)

    with emulated_devices():
        ours = value_and_gradients(positions, "kernel")
    exact = value_and_gradients(positions, "naive")
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
@pytest.mark.parametrize(
    ("terms", "window", "kv_heads", "packed"),
    [
        ("kv", None, 12, False),
        ("KVB", None, 12, False),
        ("b", around(40), 12, False),
        ("Kvb", around(200), 12, False),
        ("", around(1), 12, False),
        ("b", AttentionWindow(left=None, right=0), 12, False),
        ("KvB", AttentionWindow(left=None, right=0), 4, False),
        ("kv", None, 1, False),
        ("s", AttentionWindow(left=127, right=0), 4, False),
        ("kv", None, 12, True),
        ("", around(40), 4, True),
        ("KQ", None, 12, False),
        ("kqb", around(40), 4, True),
        ("KBc", None, 12, False),
    ],
)
def test_compiles_for_a_tpu_without_gathering_the_batch(
    terms, window, kv_heads, packed, monkeypatch
):
    from jax.experimental import topologies

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name="v5e:2x2"
    ).devices
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    whole, split = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",))
    )

    def grads(qkv, arrays, valid, seed):
        settings = dict(window=window, valid=valid, dropout_rate=0.1, seed=seed)
        settings |= {"document_ids": valid.astype(jnp.int32)} if packed else {}
        others = terms.removesuffix("c")

        def loss(qkv, arrays):
            content = {"content": 2 * qkv[0]} if others != terms else {}
            run = with_terms(flash_attention, others, **settings, **content)
            out = run(*qkv, *arrays)
            return jnp.square(out.astype(jnp.float32)).sum()

        return jax.grad(loss, argnums=(0, 1))(qkv, arrays)

    _, _, _, *arrays = draw(8, 1, 1, 12, 64, 64, terms.removesuffix("c"))
    heads = 12, kv_heads, kv_heads
    args = (
        tuple(
            jax.ShapeDtypeStruct((8, 384, count, 64), jnp.bfloat16) for count in heads
        ),
        tuple(arrays),
        jax.ShapeDtypeStruct((8, 384), jnp.bool_),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
    )
    with jax.set_mesh(mesh):
        run = jax.jit(grads, in_shardings=(split, whole, split, whole))
        hlo = run.lower(*args).compile().as_text()
    assert len(re.findall(r'custom_call_target="tpu_custom_call"', hlo)) == 2
    assert ("all-reduce" in hlo) == bool(terms) and "all-gather" not in hlo


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
def test_seeds_compile_for_a_tpu(monkeypatch):
    """A fine-tuning step of four seeds on eight chips: seeds are never gathered."""
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    slice_of_eight = make_slice("v5e:2x4")
    model = dataclasses.replace(
        preset("mini", dtype="bfloat16"), position="learned_relative"
    )
    task = classification_task(model, 2)
    mesh = seed_mesh(4, list(slice_of_eight.mesh.devices.flat))
    schedule = optimizers.make_schedule("linear", 1e-5, 1, 10)
    optimizer = optimizers.update_rule(OptimizerConfig(), schedule)
    program = SeedsProgram(model, task, optimizer, schedule, mesh, (0, 1, 2, 3))
    make = jax.vmap(functools.partial(init_state, task, optimizer), out_axes=SEED_AXES)
    state = jax.eval_shape(lambda: make(jax.random.split(jax.random.key(0), 4)))
    batch = {
        name: jax.ShapeDtypeStruct((4, 16, *rest), dtype)
        for name, rest, dtype in (
            ("tokens", (128,), jnp.int32),
            ("token_type_ids", (128,), jnp.int32),
            ("mask", (128,), jnp.bool_),
            ("label", (), jnp.int32),
        )
    }
    args = (
        sharding.abstract(state, program.shardings),
        sharding.abstract(batch, program.batch_sharding),
    )
    with kernel_in_auto():
        lowered = program.train_step().lower(*args)
    hlo = lowered.compile().as_text()
    assert (
        len(re.findall(r'custom_call_target="tpu_custom_call"', hlo))
        == 2 * model.num_layers
    )
    assert not re.findall(r"= \S+\[4,\S+ all-gather", hlo)
