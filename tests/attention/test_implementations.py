"""Implementations of attention against helpers/paper_attention.py, query by query: outputs,
gradients, dropped weights.

The TPU kernel itself is tested in test_tpu_kernel.py; here, that it is called as it should be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from helpers.slow import slow_except

from pe_jax import encodings
from pe_jax.attention import (
    attention,
    dropout,
    implementations,
    offset_terms,
    relative_shift,
)
from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.encodings.parser import PAPER

H, d = 2, 4
RELATIVE = [n for n in PAPER if n.endswith("relative") and "+" not in n]
SERVED = [
    (implementation, name)
    for implementation in ("naive", "table", "fused")
    for name in RELATIVE
]


def draw(rows, lq, lk):
    return paper_attention.draw(rows, lq, lk, H, d)


def build(name, clip):
    return paper_attention.build(name, clip, H, d)


@pytest.fixture
def small_blocks():
    """Three queries at a time, so that short sequences have several blocks, the last one short."""
    with implementations.queries_per_block(3):
        yield


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("implementation", "name"), SERVED)
@pytest.mark.parametrize(("lq", "lk", "first", "clip"), [(5, 8, 2, 2)])
def test_every_implementation_against_the_formula(
    implementation, name, lq, lk, first, clip
):
    """Clips within and beyond the length, queries that start elsewhere, masked keys."""
    mask = np.ones((2, lq, lk), bool)
    mask[1, :, -2:] = False
    at_q, at_k = np.arange(lq) + first, np.arange(lk)
    paper_attention.check_attention(
        name, draw(2, lq, lk), at_q, at_k, mask, clip, implementation
    )


@pytest.mark.usefixtures("small_blocks", "quick_kernel")
def test_every_implementation_drops_the_same_weights():
    encoding, params = build("learned_relative", 3)
    q, k, v = draw(2, 8, 8)

    def run(implementation):
        call = lambda *args: attention(
            *args,
            dropout_rate=0.4,
            dropout_rng=jax.random.key(5),
            implementation=implementation,
        )
        loss = lambda q, k, v, params: (call(q, k, v, encoding, params) ** 2).sum()
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, params)

    expected = run("naive")
    for implementation in ("table", "fused", "kernel"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            run(implementation),
            expected,
        )


# A sinusoid without parameters has the program of one with frequencies, without their gradient.
@pytest.mark.parametrize(
    ("implementation", "name"),
    slow_except([case for case in SERVED if case[1] != "sinusoidal_relative"], SERVED),
)
@pytest.mark.parametrize(
    "per_row",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["shared", "per row"],
)
def test_bfloat16_gradients_stay_near_float32(implementation, name, per_row):
    """At sizes of real heads: XLA lacks some bfloat16 products on CPUs, see `product`."""

    def near(a, b):
        a, b = np.asarray(a, np.float32), np.asarray(b)
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b)

    jax.tree.map(
        near, gradients(jnp.bfloat16, implementation, name, per_row), in_float32(name)
    )


def test_bfloat16_gradients_of_several_rows_in_several_blocks():
    """XLA's CPU backend failed on the gradient of the keys, see `product`."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 256, 2, 32))

    def gradients(dtype, implementation):
        loss = lambda *qkv: jnp.float32(
            attention(*qkv, implementation=implementation)
        ).var()
        return jax.jit(jax.grad(loss, (0, 1, 2)))(*(x.astype(dtype) for x in (q, k, v)))

    for ours, exact in zip(
        gradients("bfloat16", "fused"), gradients("float32", "naive")
    ):
        assert np.linalg.norm(np.float32(ours) - exact) < 0.05 * np.linalg.norm(exact)


@functools.cache
def in_float32(name):
    """The same positions, whether they are shared or each row's own."""
    return gradients(jnp.float32, "naive", name, False)


def gradients(dtype, implementation, name, per_row):
    encoding, params = paper_attention.build(name, 5, 4, 64)
    positions = jnp.tile(jnp.arange(64), (4, 1)) if per_row else None
    qkv = [jnp.asarray(x / 2, dtype) for x in paper_attention.draw(4, 64, 64, 4, 64)]
    to = np.random.default_rng(9).normal(size=qkv[0].shape)

    def loss(q, k, v, params):
        out = attention(
            q,
            k,
            v,
            encoding,
            params,
            encodings.Context(positions_q=positions),
            implementation=implementation,
        )
        return (out.astype(jnp.float32) * to).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*qkv, params)


def test_dropped_weights_are_those_of_dropout():
    """Weights that are all alike, values that are one-hot: the output shows what was kept."""
    zero = np.zeros((2, 4, H, 4), np.float32)
    v = np.broadcast_to(np.eye(4, dtype=np.float32)[None, :, None], zero.shape)
    key = jax.random.key(0)
    run = jax.jit(lambda *qkv: attention(*qkv, dropout_rate=0.5, dropout_rng=key))
    out = run(zero, zero, v)  # [B, Lq, H, Lk]
    expected = np.asarray(
        jax.jit(dropout, static_argnums=1)(zero.swapaxes(1, 2) + 0.25, 0.5, key)
    )
    np.testing.assert_allclose(out, expected.swapaxes(1, 2), atol=1e-7)
    assert 0 < (expected == 0).mean() < 1


def test_gradient_through_dropout_is_the_derivative():
    encoding, params = build("learnable_sinusoidal_relative", 3)
    ((name, own),) = params.items()
    q, k, v = (jnp.asarray(x, jnp.float32) for x in draw(1, 6, 6))
    loss = lambda params: (
        attention(
            q, k, v, encoding, params, dropout_rate=0.3, dropout_rng=jax.random.key(1)
        )
        ** 2
    ).sum()
    loss = jax.jit(loss)
    slope = jax.jit(jax.grad(loss))(params)[name]["frequencies"][1]
    at = lambda h: loss({name: {"frequencies": own["frequencies"].at[1].add(h)}})
    np.testing.assert_allclose(slope, (at(1e-2) - at(-1e-2)) / 2e-2, rtol=2e-2)


def test_relative_shift_and_its_transpose():
    rng = np.random.default_rng(0)
    for clip, lq, lk, shift in (
        (3, 5, 7, 0),
        (3, 5, 7, -2),
        (9, 4, 4, 1),
        (1, 6, 3, 4),
    ):
        by_offset = rng.normal(size=(2, lq, 2 * clip + 1)).astype(np.float32)
        x = rng.normal(size=(2, lq, lk)).astype(np.float32)
        out = np.asarray(
            relative_shift.relative_shift(clip, lk, jnp.asarray(by_offset), shift)
        )
        collected = np.asarray(
            relative_shift.relative_shift_transpose(clip, lk, jnp.asarray(x), shift)
        )
        for i in range(lq):
            for j in range(lk):
                bucket = min(max(j - i + shift, -clip), clip) + clip
                np.testing.assert_array_equal(out[:, i, j], by_offset[:, i, bucket])
        there = (out * x).sum()
        back = (by_offset * collected).sum()
        np.testing.assert_allclose(there, back, rtol=1e-4)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("clip", [3, 9, pytest.param(20, marks=pytest.mark.slow)])
def test_blocks_of_queries_meet_the_rows_of_their_pairs(clip, per_head):
    """Tables shorter and longer than what a block meets, and offsets beyond them on both sides."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    lq, lk, rows = 3, 8, 2 * clip + 1
    heads = (H,) if per_head else ()
    tables = offset_terms.Tables(
        clip=clip,
        key_vectors=normal(rows, *heads, d),
        query_vectors=normal(rows, *heads, d),
        bias=normal(rows, *heads),
        value_vectors=normal(rows, *heads, d),
    )
    q, k = normal(2, lq, H, d), normal(2, lk, H, d)
    weights, factors = normal(2, H, lq, lk), normal(2, lq, H, d)

    def loss(arrays, offset):
        tables, q, k, weights = arrays
        logits = offset_terms.table_logits(tables, q, k, offset)
        out = offset_terms.table_values(tables, weights, offset)
        return sum((x * weights).sum() for x in logits) + (out * factors).sum()

    def loss_of_pairs(arrays, offset):
        """The same, with the row of each pair of query and key."""
        tables, q, k, weights = arrays
        offsets = jnp.arange(lk) - jnp.arange(lq)[:, None] + offset
        row = jnp.clip(offsets, -clip, clip) + clip
        pairs = jax.tree.map(lambda table: table[row], tables)
        h = "h" if per_head else ""
        logits = jnp.einsum(f"bqhd,qk{h}d->bhqk", q, pairs.key_vectors)
        logits += jnp.einsum(f"bkhd,qk{h}d->bhqk", k, pairs.query_vectors)
        logits += jnp.moveaxis(pairs.bias, -1, 0) if per_head else pairs.bias
        out = jnp.einsum(f"bhqk,qk{h}d->bqhd", weights, pairs.value_vectors)
        return (logits * weights).sum() + (out * factors).sum()

    steps = [jax.jit(jax.value_and_grad(each)) for each in (loss, loss_of_pairs)]
    arrays = tables, q, k, weights
    for offset in (-30, -7, 0, 4, 30):
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
            *(step(arrays, offset) for step in steps),
        )


# Absolute encodings are not in the attention.
@pytest.mark.parametrize(
    "name",
    slow_except(
        ["none", "learnable_sinusoidal_relative", "relative_key_query"],
        ["none", *RELATIVE, "relative_key_query"],
    ),
)
def test_fused_memory_is_linear_in_the_length(name):
    """Twice the length, at most a little over twice the temporaries, forward and backward."""

    def temporaries(length):
        sizes = dict(hidden_size=8, head_size=d, num_heads=H, max_length=length)
        encoding = encodings.from_name(name, **sizes)
        shape = jax.ShapeDtypeStruct((1, length, H, d), jnp.float32)
        params = jax.eval_shape(encoding.init, jax.random.key(0))
        loss = lambda q, k, v, p: attention(
            q,
            k,
            v,
            encoding,
            p,
            dropout_rate=0.1,
            dropout_rng=jax.random.key(0),
            implementation="fused",
        ).sum()
        step = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(
            shape, shape, shape, params
        )
        return step.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4096) < 2.2 * temporaries(2048)


def test_fused_memory_is_far_below_that_of_all_weights():
    shape = jax.ShapeDtypeStruct((1, 4096, H, d), jnp.float32)

    def temporaries(implementation):
        loss = lambda q, k, v: attention(q, k, v, implementation=implementation).sum()
        step = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape)
        return step.compile().memory_analysis().temp_size_in_bytes

    assert 10 * temporaries("fused") < temporaries("naive")


@pytest.fixture
def on(monkeypatch):
    """A function that sets the platform for which `"auto"` chooses."""
    return lambda name: monkeypatch.setattr(
        implementations, "target_platform", lambda: name
    )


@pytest.mark.parametrize(
    ("platform", "keys", "expected"),
    [
        ("cpu", 511, "table"), ("cpu", 512, "fused"),
        ("gpu", 1024, "table"), ("gpu", 1025, "fused"),
        ("tpu", 1024, "table"), ("tpu", 1025, "fused"),
        ("another", 1024, "table"),
    ],
)  # fmt: skip
def test_auto_takes_what_the_platform_is_good_at(platform, keys, expected, on):
    on(platform)
    assert implementations.choose(keys) == expected
    assert implementations.choose(64, vectors=True) == "naive"
    assert not implementations.auto_tries_kernel(keys)
    window = encodings.AttentionWindow(left=10, right=10)  # 21 keys and a block of 128.
    assert implementations.choose(500, window) == "fused"
    assert implementations.choose(140, window) == "table"


def test_auto_takes_the_kernel_on_a_tpu_where_that_is_allowed(on):
    """Kernel or XLA's form, by the program: only the first calls Pallas."""
    x = jax.ShapeDtypeStruct((1, 130, H, d), jnp.float32)
    short = jax.ShapeDtypeStruct((1, 20, H, d), jnp.float32)

    def in_kernel(x, **more):
        return "pallas_call" in str(
            jax.make_jaxpr(lambda x: attention(x, x, x, **more))(x)
        )

    on("tpu")
    assert not in_kernel(x)
    with implementations.kernel_in_auto():
        assert in_kernel(x) and not in_kernel(short)
        assert not in_kernel(x, mask=jnp.ones((1, 1, 130, 130), bool))
        assert not in_kernel(x, return_lse=True) and not in_kernel(
            x, implementation="table"
        )
        on("gpu")
        assert not in_kernel(x)
    on("tpu")
    assert not in_kernel(x)


def test_the_platform_is_of_the_mesh_or_the_default_device():
    """Not of the process: its first devices may be others."""
    assert implementations.target_platform() == "cpu"
    with jax.default_device("tpu"):
        assert implementations.target_platform() == "tpu"
        with jax.set_mesh(jax.make_mesh((4,), ("data",))):
            assert implementations.target_platform() == "cpu"
    with jax.default_device(jax.devices()[1]):
        assert implementations.target_platform() == "cpu"


@pytest.mark.parametrize(
    "implementation", [None, 5, ["naive"], "flash", "", "Naive", "buckets"]
)
def test_names_that_are_none(implementation):
    with pytest.raises(
        ValueError, match=r"^implementation must be one of auto, naive, .*; got "
    ):
        implementations.check_name(implementation)


@pytest.mark.parametrize("shape", [(1, 6, H, d), (0, 6, H, d)])
def test_an_unknown_name_without_anything_to_compute(shape):
    x = jnp.zeros(shape)
    with pytest.raises(
        ValueError, match="^implementation must be one of .*got 'flash'"
    ):
        attention(x, x, x, implementation="flash")


@pytest.mark.parametrize(
    "transform",
    [lambda f: f, jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())],
    ids=["eager", "jit", "vmap", "grad"],
)
def test_the_kernel_needs_a_tpu(transform):
    def run(x):
        rows = x.reshape(-1, 6, H, d)
        return attention(rows, rows, rows, implementation="kernel")

    with pytest.raises(
        ValueError, match="'kernel' needs a TPU, but .* for cpu. Use 'auto'"
    ):
        transform(run)(jnp.zeros((2, 1, 6, H, d)))


def test_the_kernel_is_compiled_for_a_tpu_that_is_not_there():
    x = jax.ShapeDtypeStruct((1, 6, H, d), jnp.float32)
    call = jax.jit(functools.partial(attention, implementation="kernel"))
    program = jax.export.export(call, platforms=["tpu"])(x, x, x)
    assert "tpu_custom_call" in program.mlir_module()
    with pytest.raises(
        ValueError, match="needs a TPU, but this program is compiled for cpu"
    ):
        jax.export.export(call, platforms=["tpu", "cpu"])(x, x, x)


@pytest.mark.parametrize(
    ("change", "needs"),
    [("wide values", "no wider"), ("values of another dtype", "values of one dtype")],
)
def test_values_that_the_kernel_does_not_take(change, needs):
    q, k, v = draw(1, 6, 6)
    v = (
        np.repeat(v, 2, axis=-1)
        if change == "wide values"
        else jnp.asarray(v, jnp.bfloat16)
    )
    with pytest.raises(ValueError, match=f"implementation='kernel' needs .*{needs}"):
        attention(q, k, v, implementation="kernel")


def test_auto_names_no_implementation_that_cannot_serve(on):
    """Packed positions, known at run time only, in every platform's choice."""
    encoding, params = build("learned_relative", 3)
    q, k, v = draw(1, 6, 6)
    packed = jnp.array([[0, 1, 2, 0, 1, 2]])
    run = lambda positions: attention(
        q, k, v, encoding, params, encodings.Context(positions_q=positions)
    )
    expected = run(packed)
    for platform in ("gpu", "tpu"):
        on(platform)
        with implementations.kernel_in_auto():
            out = jax.jit(lambda positions: run(positions))(packed)
        np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.usefixtures("quick_kernel")
def test_two_relative_terms_at_once():
    both = encodings.learned_relative(
        head_size=d, max_distance=2
    ) + encodings.sinusoidal_relative(head_size=d, max_distance=None)
    params = jax.jit(both.init)(jax.random.key(0))
    q, k, v = draw(1, 9, 9)
    run = jax.jit(
        lambda implementation: attention(
            q, k, v, both, params, implementation=implementation
        ),
        static_argnums=0,
    )
    expected = run("naive")
    for implementation in ("auto", "fused", "kernel"):
        out = run(implementation)
        np.testing.assert_allclose(out, expected, atol=2e-5)


def test_implementations_that_cannot():
    encoding, params = build("learned_relative", 3)
    q, k, v = draw(1, 6, 6)
    with pytest.raises(ValueError, match=r"auto, naive, table, fused.*got 'flash'"):
        attention(q, k, v, encoding, params, implementation="flash")
    apart = encodings.Context(positions_q=np.array([0, 2, 4, 6, 8, 10]))
    with pytest.raises(ValueError, match=r"'kernel' needs .*ranges.*learned_relative"):
        attention(q, k, v, encoding, params, apart, implementation="kernel")
    unclipped = encodings.sinusoidal_relative(head_size=d, max_distance=None)
    real = encodings.Context(positions_q=np.arange(6) / 2)
    for implementation in ("table", "fused"):
        with pytest.raises(
            ValueError,
            match=f"{implementation!r} needs vectors at integer.*sinusoidal_rel",
        ):
            attention(q, k, v, unclipped, None, real, implementation=implementation)
    chosen = attention(q, k, v, unclipped, None, real)
    plain = attention(q, k, v, unclipped, None, real, implementation="naive")
    np.testing.assert_array_equal(chosen, plain)


def test_blocks_are_cut_and_joined():
    x = jnp.arange(2 * 7 * 3.0).reshape(2, 7, 3)
    parts = cut_axis(x, 3, 1)
    assert parts.shape == (3, 2, 3, 3)
    np.testing.assert_array_equal(join_axis(parts, 1, 7), x)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(H, 7, 7), (7, 7), (1, H, 7, 1), (1, 1, 1, 7)])
def test_arrays_of_logits_leave_out_axes_or_have_one_entry(shape):
    """Outputs and gradients in blocks of queries, which meet the keys of a window alone."""
    init = lambda key: {"bias": jax.random.normal(key, shape)}
    part = encodings.Part(name="table", init=init, logits=lambda p, *_: p["bias"])
    encoding = encodings.PositionEncoding(parts=(part,)) + encodings.window(
        max_distance=1
    )
    params = encoding.init(jax.random.key(0))
    q, k, v = draw(2, 7, 7)

    def run(implementation):
        loss = lambda params: (
            attention(q, k, v, encoding, params, implementation=implementation) ** 2
        ).sum()
        return jax.jit(jax.value_and_grad(loss))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        run("fused"),
        run("naive"),
    )
