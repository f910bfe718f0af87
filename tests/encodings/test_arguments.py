"""Arrays and parameters that do not fit an encoding are errors, not other numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention

from pe_jax import encodings
from pe_jax.attention import cached_attention, init_cache
from pe_jax.encodings import Context, Part, PositionEncoding
from pe_jax.encodings.parameters import split_params

B, L, H, d = 2, 6, 4, 8
SIZES = {"hidden_size": 32, "head_size": d, "num_heads": H, "max_length": 16}
Q, K, V = np.random.default_rng(0).normal(size=(3, B, L, H, d)).astype(np.float32)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rope", {"head_size": 4}),
        ("rope", {"head_size": 16}),
        ("interpolated(rope, factor=2)", {"head_size": 4}),
        ("learned_relative(max_distance=3)", {"head_size": 4}),
        ("alibi", {"num_heads": 2}),
        ("t5", {"num_heads": 1}),
        ("rope+alibi", {"num_heads": 2}),
        ("tupe", {"head_size": 4}),
    ],
)
def test_heads_of_another_model(name, sizes):
    encoding = build(name, **sizes)
    params = encoding.init(jax.random.key(0))
    with pytest.raises(
        ValueError, match=r"q, k and v must be \[B, L, H, d\], got \[2, 6, 4, 8\]"
    ):
        attention(Q, K, V, encoding, params)


def test_heads_before_lengths():
    """`[B, H, L, d]`, as PyTorch has them."""
    swapped = [np.swapaxes(x, 1, 2) for x in (Q, K, V)]
    for name in ("alibi", "pope", "fire"):
        encoding = build(name)
        with pytest.raises(
            ValueError, match=r"is for 4 heads of size 8. jnp.swapaxes\(x, 1, 2\)"
        ):
            attention(*swapped, encoding, encoding.init(jax.random.key(0)))
    # An encoding without heads leaves it to what has a length.
    rope, x = build("rope+causal"), np.zeros((B, L, 32), np.float32)
    for match, arguments in (
        (
            "each of 4 tokens of q .its axis 1., got 6",
            {"context": Context(positions_q=range(L))},
        ),
        (r"here \[2, 6, 4, 4\]; .*axis 1 of q", {"mask": np.ones((B, 1, 1, L), bool)}),
        (
            r"x_k must be \[B, L, D\] .* of 4 tokens in 2 rows, as k has, got \[2, 6, 32\]",
            {"context": Context(x_k=x)},
        ),
    ):
        with pytest.raises(ValueError, match=match):
            attention(*swapped, rope, **arguments)
    cache = init_cache(rope, B, 12, num_kv_heads=H, head_size=d, hidden_size=32)
    with pytest.raises(
        ValueError, match=r"k must be \[2, T, 4, 8\] .*, got \[2, 4, 6, 8\]"
    ):
        cached_attention(*swapped, cache, rope)


@pytest.mark.parametrize("implementation", ["naive", "auto"])
def test_a_shard_of_the_heads(implementation):
    """An encoding of all heads inside `shard_map` over heads, where each device has some."""
    mesh = jax.make_mesh((1,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, None, "heads")
    encoding = encodings.alibi(num_heads=4 * H)
    local = lambda q, k, v: attention(q, k, v, encoding, implementation=implementation)
    run = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    with pytest.raises(
        ValueError, match="is for 16 heads .* by jax.jit, not by jax.shard_map"
    ):
        run(Q, K, V)


def test_a_hook_that_adds_a_key():
    def heads(params, q, k, v, context):
        more = lambda x: jnp.pad(x, [(0, 0), (0, 1), (0, 0), (0, 0)])
        return q, more(k), more(v)

    encoding = PositionEncoding(parts=(Part(name="extra", map_qkv=heads),))
    with pytest.raises(ValueError, match="'map_qkv' of extra may change the last axis"):
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
        encodings.embed(np.zeros((B, L, 1), np.float32), encoding, params)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("learned_relative(max_distance=3)", "learned_relative(max_distance=5)"),
        ("t5", "t5(num_buckets=16)"),
        (
            "learnable_sinusoidal_relative",
            "learnable_sinusoidal_relative(separate=True)",
        ),
        ("deberta(num_buckets=8)", "deberta(num_buckets=16)"),
        ("rope(learnable=True)", "rope(learnable=True, per_head=True)"),
        ("cope", "cope(num_positions=8)"),
    ],
)
def test_parameters_of_another_encoding(name, other):
    encoding = build(name)
    with pytest.raises(
        ValueError, match="lacks the parameters of|has shape .* has \\("
    ):
        split_params(encoding, build(other).init(jax.random.key(0)))


def test_parameters_of_another_length():
    short, long = (
        build("relative_key", max_length=8),
        build("relative_key", max_length=16),
    )
    with pytest.raises(
        ValueError, match=r"relative_key/table has shape \(31, 8\), .* \(15, 8\)"
    ):
        attention(Q, K, V, short, long.init(jax.random.key(0)))
    with pytest.raises(ValueError, match=r"max_length must be at least 2, got 1"):
        build("relative_key", max_length=1)
    absolute = build(
        "learned_absolute"
    )  # A longer table has the same rows for these positions.
    params = absolute.resize(absolute.init(jax.random.key(0)), 40, "repeat")
    assert encodings.embed(
        np.zeros((1, 40, 32), np.float32), absolute, params
    ).shape == (1, 40, 32)


def test_a_resizable_parameter_may_have_any_name():
    @encodings.define_encoding
    def scales(*, hidden_size: int, max_length: int) -> encodings.Part:
        return encodings.Part(
            init=lambda rng: {
                "rows": jnp.ones((max_length, hidden_size)),
                "offset": jnp.zeros(hidden_size),
            },
            embed=lambda params, x, context: (
                x * params["rows"][: x.shape[1]] + params["offset"]
            ),
            traits=encodings.Traits(
                max_length=max_length,
                resize=lambda params, *to: {
                    **params,
                    "rows": encodings.resize_table(params["rows"], *to),
                },
            ),
        )

    encoding = scales(hidden_size=4, max_length=3)
    params = encoding.resize(encoding.init(jax.random.key(0)), 5, "repeat")
    x = jnp.ones((1, 2, 4))
    assert (encodings.embed(x, encoding, params) == x).all()
    params["scales"]["offset"] = jnp.zeros(5)
    with pytest.raises(ValueError, match=r"scales/offset has shape \(5,\)"):
        encodings.embed(x, encoding, params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize(
    "name",
    ["learned_absolute", "sinusoidal_absolute", "normalized_index", "complex_order"],
)
def test_embeddings_keep_their_dtype(name, dtype):
    encoding = build(name)
    x = np.random.default_rng(0).normal(size=(1, L, 32)).astype(dtype)
    params = jax.jit(encoding.init)(jax.random.key(1))
    tokens = np.arange(L)[None]
    embed = jax.jit(
        lambda x: encodings.embed(x, encoding, params, Context(tokens=tokens))
    )
    out, precise = embed(x), np.asarray(embed(x.astype(np.float32)))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, precise.astype(dtype))


def test_dropout_needs_an_rng():
    with pytest.raises(
        ValueError, match=r"dropout_rng is required with dropout_rate=0.1"
    ):
        attention(Q, K, V, dropout_rate=0.1)
