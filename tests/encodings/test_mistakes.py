"""Arguments that do not fit an encoding are errors, not other numbers."""

import functools
import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from helpers.slow import slow_except

from pe_jax import encodings
from pe_jax.attention import cached_attention, init_cache
from pe_jax.encodings import Context, Part, PositionEncoding

B, L, H, d = 2, 6, 4, 8
SIZES = {"hidden_size": 32, "head_size": d, "num_heads": H, "max_length": 16}
Q, K, V = np.random.default_rng(0).normal(size=(3, B, L, H, d)).astype(np.float32)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


# --- queries, keys and values ---


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rope", {"head_size": 4}),
        ("rope", {"head_size": 16}),
        ("interpolated(rope, factor=2)", {"head_size": 4}),
        ("learned_relative(clip=3)", {"head_size": 4}),
        ("alibi", {"num_heads": 2}),
        ("t5", {"num_heads": 1}),
        ("rope+alibi", {"num_heads": 2}),
        ("tupe", {"head_size": 4}),
    ],
)
def test_heads_of_another_model(name, sizes):
    encoding = build(name, **sizes)
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"q, k and v must be \[B, L, H, d\], got \[2, 6, 4, 8\]"):
        attention(Q, K, V, encoding, params)


def test_heads_before_lengths():
    """`[B, H, L, d]`, as PyTorch has them."""
    swapped = [np.swapaxes(x, 1, 2) for x in (Q, K, V)]
    for name in ("alibi", "pope", "fire"):
        encoding = build(name)
        with pytest.raises(ValueError, match=r"is for 4 heads of size 8. jnp.swapaxes\(x, 1, 2\)"):
            attention(*swapped, encoding, encoding.init(jax.random.key(0)))
    # An encoding without heads leaves it to what has a length.
    rope, x = build("rope"), np.zeros((B, L, 32), np.float32)
    for match, arguments in (
        ("each of 4 tokens of q .its axis 1., got 6", {"context": Context(range(L))}),
        (r"here \[2, 6, 4, 4\]; .*axis 1 of q", {"mask": np.ones((B, 1, 1, L), bool)}),
        ("x_k has 6 hidden states for 4 tokens", {"context": Context(x_k=x)}),
    ):
        with pytest.raises(ValueError, match=match):
            attention(*swapped, rope, **arguments)
    cache = init_cache(rope, B, 12, num_heads=H, head_size=d, hidden_size=32)
    with pytest.raises(ValueError, match=r"k must be \[2, T, 4, 8\] .*, got \[2, 4, 6, 8\]"):
        cached_attention(*swapped, cache, rope)


@pytest.mark.parametrize("implementation", ["naive", "auto"])
def test_a_shard_of_the_heads(implementation):
    """An encoding of all heads inside `shard_map` over heads, where each device has some."""
    mesh = jax.make_mesh((1,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, None, "heads")
    encoding = encodings.alibi(num_heads=4 * H)
    local = lambda q, k, v: attention(q, k, v, encoding, implementation=implementation)
    run = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    with pytest.raises(ValueError, match=r"16 heads .*inside shard_map over heads, pass Context"):
        run(Q, K, V)


def test_a_hook_that_adds_a_key():
    def heads(params, q, k, v, context):
        more = lambda x: jnp.pad(x, [(0, 0), (0, 1), (0, 0), (0, 0)])
        return q, more(k), more(v)

    encoding = PositionEncoding((Part("extra", heads=heads),))
    with pytest.raises(ValueError, match="'heads' of extra may change the last axis"):
        attention(Q, K, V, encoding)


def test_parts_of_an_encoding_that_act_in_attention():
    encoding = build("learned_absolute")
    attention(Q, K, V, encoding.in_attention, encoding.init(jax.random.key(0)))
    both = build("learned_absolute+rope")
    assert both.in_attention == build("rope") and both.at_input == encoding
    assert build("none").in_attention == encodings.none()


def test_embeddings_of_another_size():
    encoding = build("raw_index")
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"x must be \[B, L, 32\]"):
        encodings.embed(encoding, params, np.zeros((B, L, 1), np.float32))


# --- parameters ---


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("learned_relative(clip=3)", "learned_relative(clip=5)"),
        ("t5", "t5(buckets=16)"),
        ("learnable_sinusoidal_relative", "learnable_sinusoidal_relative(separate=True)"),
        ("deberta(buckets=8)", "deberta(buckets=16)"),
        ("rope(learnable=True)", "rope(learnable=True, per_head=True)"),
        ("cope", "cope(npos_max=8)"),
    ],
)
def test_parameters_of_another_encoding(name, other):
    encoding = build(name)
    with pytest.raises(ValueError, match="lacks the parameters of|has shape .* has \\("):
        encoding.split(build(other).init(jax.random.key(0)))


def test_parameters_of_another_length():
    short, long = build("relative_key", max_length=8), build("relative_key", max_length=16)
    with pytest.raises(ValueError, match=r"relative_key/table has shape \(31, 8\), .* \(15, 8\)"):
        attention(Q, K, V, short, long.init(jax.random.key(0)))
    with pytest.raises(ValueError, match=r"max_length must be at least 2, got 1"):
        build("relative_key", max_length=1)
    absolute = build("learned_absolute")  # A longer table has the same rows for these positions.
    params = absolute.resize(absolute.init(jax.random.key(0)), 40, "repeat")
    assert encodings.embed(absolute, params, np.zeros((1, 40, 32), np.float32)).shape == (1, 40, 32)


# --- positions ---


@functools.cache
def logits_at(name, *positions):
    encoding = build(name)
    context = Context(np.array(positions))
    return attention_logits(Q, K, encoding, jax.jit(encoding.init)(jax.random.key(0)), context)


@pytest.mark.parametrize(
    "dtype", slow_except([np.uint8], [np.uint8, np.uint16, np.uint32, np.int8, np.int16])
)
@pytest.mark.parametrize(
    "name", ["rope+causal", "alibi+causal", "t5", "learned_relative(clip=3)", "fire"]
)
def test_narrow_and_unsigned_positions(name, dtype):
    encoding, positions = build(name), np.array([0, 1, 2, 50, 120, 127])
    params = jax.jit(encoding.init)(jax.random.key(0))
    expected = logits_at(name, *positions.tolist())
    run = jax.jit(lambda x: attention_logits(Q, K, encoding, params, Context(x)))
    narrow = positions.astype(dtype)
    np.testing.assert_allclose(run(narrow), expected, atol=1e-5)
    other = attention_logits(Q, K, encoding, params, Context(narrow))
    np.testing.assert_allclose(other, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [bool, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["rope", "causal", "learned_relative(clip=3)"])
def test_positions_that_are_no_numbers_or_too_coarse(name, dtype):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match="must be integers, float32 or float64, got"):
        attention(Q, K, V, encoding, params, Context(np.arange(L).astype(dtype)))
    absolute = build("sinusoidal_absolute")
    x = np.zeros((B, L, 32), np.float32)
    with pytest.raises(ValueError, match="must be integers, float32 or float64, got"):
        encodings.embed(absolute, {}, x, np.arange(L).astype(dtype))


@pytest.mark.parametrize("name", ["causal", "rope", "alibi", "fox"])
def test_positions_of_more_rows_than_the_batch(name):
    """They were broadcast: three outputs of one input."""
    encoding, positions = build(name), np.tile(np.arange(L), (3, 1))
    params, x = jax.jit(encoding.init)(jax.random.key(0)), np.ones((1, L, H * d), np.float32)
    context = Context(positions, x_q=x, x_k=x)
    with pytest.raises(ValueError, match="positions of q have 3 rows for a batch of 1"):
        attention(Q[:1], K[:1], V[:1], encoding, params, context)
    with pytest.raises(ValueError, match="positions of k have 3 rows for a batch of 1"):
        attention(Q[:1], K[:1], V[:1], encoding, params, Context(range(L), positions))
    for rows in (1, 2):  # Of the batch, or of each row.
        x = np.ones((2, L, H * d), np.float32)
        attention(Q, K, V, encoding, params, Context(positions[:rows], x_q=x, x_k=x))


def test_positions_of_more_rows_than_an_input():
    absolute, grid = build("sinusoidal_absolute"), build("sinusoidal_2d")
    x = np.ones((1, L, H * d), np.float32)
    with pytest.raises(ValueError, match=r"positions of x have 2 rows for a batch of 1.*\[L\]"):
        encodings.embed(absolute, {}, x, np.tile(np.arange(L), (2, 1)))
    pairs = np.ones((L, 2), np.int32)  # Of two axes, [L, 2].
    assert encodings.embed(grid, {}, x, pairs).shape == x.shape
    with pytest.raises(ValueError, match=r"have 2 rows for a batch of 1.*\[L, axes\]"):
        encodings.embed(grid, {}, x, np.stack([pairs, pairs]))


def test_unsigned_positions_in_a_cache():
    encoding = build("alibi+causal")
    cache = init_cache(encoding, B, L, num_heads=H, head_size=d, hidden_size=32)
    context = Context(np.arange(L, dtype="u4"))
    # The cache is a constant of the program.
    out, _ = jax.jit(lambda: cached_attention(Q, K, V, cache, encoding, context=context))()
    np.testing.assert_allclose(out, attention(Q, K, V, encoding), atol=1e-5)


def test_positions_of_queries_and_keys_default_to_one_another():
    encoding = build("rope+causal")
    positions = np.array([[0, 1, 2, 3, 4, 5], [3, 7, 8, 9, 20, 30]])
    expected = attention(Q, K, V, encoding, context=Context(positions, positions))
    for context in (Context(positions), Context(positions_k=positions)):
        np.testing.assert_array_equal(attention(Q, K, V, encoding, context=context), expected)
    for context in (None, Context(range(2)), Context(positions_k=range(L))):
        with pytest.raises(ValueError, match="2 queries to 6 keys needs the positions of both"):
            attention(Q[:, :2], K, V, encoding, context=context)


# --- dtypes ---


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize(
    "name", ["learned_absolute", "sinusoidal_absolute", "normalised_index", "complex_order"]
)
def test_embeddings_keep_their_dtype(name, dtype):
    encoding = build(name)
    x = np.random.default_rng(0).normal(size=(1, L, 32)).astype(dtype)
    params = jax.jit(encoding.init)(jax.random.key(1))
    tokens = np.arange(L)[None]
    embed = jax.jit(lambda x: encodings.embed(encoding, params, x, tokens=tokens))
    out, precise = embed(x), np.asarray(embed(x.astype(np.float32)))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, precise.astype(dtype))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: encodings.rope(head_size=4, base=x),
            r"base of rope .* float32\[\].*learnable=True",
        ),
        (lambda x: encodings.window(reach=x), r"reach of window .*of an encoding that learns"),
        (
            lambda x: encodings.randomised(encodings.alibi(num_heads=1), longest=x),
            "longest of rand",
        ),
    ],
)
def test_options_are_no_arrays(build, message):
    with pytest.raises(ValueError, match=message):
        jax.vmap(lambda x: build(x).in_attention.init(jax.random.key(0)))(jnp.ones(3))
    with pytest.raises(ValueError, match=message):
        build(jnp.float32(3))


# --- options that are too large ---

REQUIRED = {
    "factor": 2.0, "original_length": 8, "height": 4, "width": 4, "length": 4, "reach": 3,
    "size": 3, "short": (1.0, 1.0), "long": (2.0, 2.0),
}  # fmt: skip


def options_of_type(kind):
    """`(name, option, build)` of all options of numbers of a type, or of tuples of them."""
    sizes = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
    makers = {
        **encodings.ENCODINGS,
        **{
            name: functools.partial(make, encodings.alibi(num_heads=2))
            for name, make in encodings.WRAPPERS.items()
        },
    }
    for name, make in makers.items():
        parameters = inspect.signature(make).parameters
        needed = {
            key: {**sizes, **REQUIRED}[key]
            for key, parameter in parameters.items()
            if parameter.default is parameter.empty
        }
        for option, parameter in parameters.items():
            if kind in str(parameter.annotation):
                share = "tuple" in str(parameter.annotation)

                def build(value, make=make, needed=needed, option=option, share=share):
                    return make(**{**needed, option: (value, value) if share else value})

                yield name, option, build


@pytest.mark.parametrize("number", [10**9, 2**40, 10**100, -(10**9)])
def test_integers_are_bounded(number):
    """Of every encoding; refused before anything of that size is made."""
    options = list(options_of_type("int"))
    assert len(options) > 100
    for name, option, build in options:
        with pytest.raises(ValueError, match=f"{option} of {name} must be at most 16,777,216"):
            build(number)


@pytest.mark.parametrize("number", [1e-300, 1e308, float("inf"), float("nan"), 10**400])
def test_numbers_are_float32(number):
    options = list(options_of_type("float"))
    assert len(options) > 60
    for name, option, build in options:
        with pytest.raises(ValueError, match=f"{option} of {name} must be a float32 number"):
            build(number)


def test_parameters_are_bounded():
    message = r"learned_relative\(.*\): the parameter table would have 2,147,483,776 numbers"
    with pytest.raises(ValueError, match=message):
        encodings.learned_relative(head_size=128, clip=2**23)
    with pytest.raises(ValueError, match=r"learned_absolute.*at most 536,870,912"):
        encodings.learned_absolute(hidden_size=4096, max_length=2**20)


@pytest.mark.parametrize(
    "positions",
    [
        range(2**31 - 8, 2**31 - 8 + L),
        np.arange(L) + 2**31,
        -(np.arange(L) + 2**30),
        np.arange(L, dtype=np.uint64) + np.uint64(2**63),
        np.arange(L, dtype=np.float32) + 2**24,
    ],
)
def test_positions_too_far_out(positions):
    with pytest.raises(ValueError, match="positions of q must be between"):
        attention(Q, K, V, build("rope"), {}, Context(positions))


def test_positions_that_are_scaled_are_exact():
    """From 2^24 on, float32 has no neighbours to scale."""
    encoding, far = build("interpolated(rope, factor=2)"), np.arange(L) + 2**24
    with pytest.raises(ValueError, match="positions of encodings that scale them must be between"):
        attention(Q, K, V, encoding, {}, Context(far))
    run = jax.jit(lambda at: attention(Q, K, V, encoding, {}, Context(at)))
    assert np.isnan(run(far)).all() and np.isfinite(run(far - L)).all()


def test_dropout_needs_an_rng():
    with pytest.raises(ValueError, match=r"dropout_rng is required with dropout_rate=0.1"):
        attention(Q, K, V, dropout_rate=0.1)
