"""Encodings of content, tokens and several axes: what can be worked out by hand."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits
from scipy.special import softmax

from pe_jax import encodings
from pe_jax.encodings import Context
from pe_jax.encodings.part import moved

SIZES = {"hidden_size": 16, "head_size": 8, "num_heads": 2, "max_length": 12}
NAMES = [
    "pope(random_phases=True)",
    "fox(gate_bias=2)",
    "rope_axial(base=10000, axes=4)",
    "rope_axial(width=3)",
    "tupe(untied_cls=False)",
    "complex_order(vocab_size=7)",
    "randomised(pope, longest=50)",
    "randomised(learned_absolute, longest=12)+randomised(pope, longest=12, real=True)",
]


def made(name, **sizes):
    encoding = encodings.from_name(name, **{**SIZES, **sizes})
    return encoding, encoding.init(jax.random.key(0))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def softmax_of(logits, v):
    return np.einsum("bhqk,bkhd->bqhd", softmax(logits, axis=-1), v)


@pytest.mark.parametrize("name", NAMES)
def test_names_parse_back(name):
    encoding, _ = made(name)
    assert encoding.name == name
    assert encodings.from_name(encoding.name, **SIZES).name == name


# --- pope -----------------------------------------------------------------------------------------


def test_pope_of_one_coordinate_is_a_cosine():
    encoding, params = made("pope", head_size=1, num_heads=1)
    params = {"pope": {"phase": np.float32([[0.5]])}}
    q, k = draw(1, 4, 1, 1), draw(1, 4, 1, 1, seed=1)
    softplus = lambda x: np.log1p(np.exp(x[0, :, 0, 0]))
    offset = np.arange(4)[None] - np.arange(4)[:, None]
    expected = np.outer(softplus(q), softplus(k)) * np.cos(offset + 0.5)  # w = [1]
    found = attention_logits(q, k, encoding, params)[0, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pope_has_a_frequency_for_each_coordinate_and_leaves_values_alone():
    encoding, params = made("pope")
    (part,) = encoding.parts
    np.testing.assert_allclose(part.metadata.frequencies({}), 1e4 ** (-np.arange(8) / 8), rtol=1e-6)
    q, k, v = qkv()
    at = Context(range(6), range(6))
    wide_q, wide_k, same_v = part.heads(params["pope"], q, k, v, at)
    assert wide_q.shape == wide_k.shape == (2, 6, 2, 16) and same_v is v
    # At a phase of 0 and position 0 the imaginary part is 0, the real part the magnitude.
    magnitude = np.pad(jax.nn.softplus(q[:, 0]), [(0, 0), (0, 0), (0, 8)])
    np.testing.assert_allclose(wide_q[:, 0], magnitude, rtol=1e-6)


# --- fox ------------------------------------------------------------------------------------------


def gates(left=1.0, right=2.0):
    """Parameters of gates that do not depend on hidden states."""
    kernel = np.zeros((16, 2), np.float32)
    side = lambda bias: {"kernel": kernel, "bias": np.full(2, bias, np.float32)}
    return {"fox": {"left": side(left), "right": side(right)}}


def test_fox_with_constant_gates_is_alibi_with_two_slopes():
    encoding, _ = made("fox")
    q = np.zeros((1, 4, 2, 8), np.float32)
    context = Context(range(4), x_k=draw(1, 4, 16))
    found = attention_logits(q, q, encoding, gates(1.0, 2.0), context)
    left, right = (np.log1p(np.exp(-bias)) for bias in (1.0, 2.0))
    o = np.arange(4)[None] - np.arange(4)[:, None]
    np.testing.assert_allclose(found[0, 0], np.where(o < 0, left * o, -right * o), atol=1e-6)


def test_fox_sums_the_gates_between_query_and_key():
    encoding, _ = made("fox")
    params = gates()
    x, kernel = np.zeros((1, 3, 16), np.float32), np.zeros((16, 2), np.float32)
    x[0, :, 0], kernel[0] = (5, -1, 2), 1
    params["fox"]["left"] = {"kernel": kernel, "bias": np.zeros(2, np.float32)}
    q = np.zeros((1, 3, 2, 8), np.float32)
    found = attention_logits(q, q, encoding, params, Context(None, x_k=x))
    log_gates = -np.log1p(np.exp([-5.0, 1.0, -2.0]))
    # Query 2 sees key 0 through the gates of tokens 1 and 2: its own counts, the key's does not.
    np.testing.assert_allclose(found[0, 0, 2, 0], log_gates[1] + log_gates[2], rtol=1e-6)
    np.testing.assert_allclose(found[0, 0, 1, 0], log_gates[1], rtol=1e-6)
    assert (found <= 0).all()


@pytest.mark.parametrize("as_ranges", [True, False])
def test_fox_decodes_with_a_cache_as_all_at_once(as_ranges):
    encoding, params = made("fox(gate_bias=0)")
    q, k, v = qkv()
    x = draw(2, 6, 16, seed=9)
    causal = np.tril(np.ones((6, 6), bool))[None, None]
    whole = attention(q, k, v, encoding, params, Context(range(6), x_k=x), mask=causal)
    for i in (0, 2, 5):
        at_q = range(i, i + 1) if as_ranges else np.full((2, 1), i)
        # An array of keys has its final length from the start; what is not there yet is masked.
        at_k = range(i + 1) if as_ranges else np.arange(6)
        n = len(at_k)
        context = Context(at_q, at_k, x_k=x[:, :n])
        mask = None if as_ranges else causal[:, :, i : i + 1]
        one = attention(q[:, i : i + 1], k[:, :n], v[:, :n], encoding, params, context, mask=mask)
        np.testing.assert_allclose(one[:, 0], whole[:, i], atol=1e-6)


def test_fox_keeps_packed_documents_apart():
    encoding, params = made("fox(gate_bias=0)")
    q, k, v = qkv()
    x = 3 * draw(2, 6, 16, seed=9)
    document = np.array([0, 0, 1, 1, 1, 1])
    mask = (document[:, None] == document)[None, None]
    positions = np.array([0, 1, 0, 1, 2, 3])
    packed = attention(q, k, v, encoding, params, Context(positions, x_k=x), mask=mask)
    for own in (slice(0, 2), slice(2, 6)):
        apart = attention(
            q[:, own], k[:, own], v[:, own], encoding, params, Context(None, x_k=x[:, own])
        )
        np.testing.assert_allclose(packed[:, own], apart, atol=1e-6)


def test_fox_says_what_it_needs():
    encoding, params = made("fox")
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"x_k=x"):
        attention(q, k, v, encoding, params)
    x = draw(2, 6, 16)
    with pytest.raises(ValueError, match="every query must be among the keys"):
        attention(q, k, v, encoding, params, Context(range(3, 9), range(6), x_k=x))
    strange = Context(np.array([7]), np.arange(6), x_k=x)
    assert np.isnan(attention(q[:, :1], k, v, encoding, params, strange)).all()


# --- rope_axial -----------------------------------------------------------------------------------


def grid(rows, columns):
    return np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(
        -1, 2
    )


def test_axial_rope_rotates_one_share_for_each_axis():
    encoding, _ = made("rope_axial", head_size=4)  # w = [1] on each axis.
    q = k = np.array([1.0, 0.0, 0.0, 2.0], np.float32).reshape(1, 1, 1, 4).repeat(2, 1)
    at = np.array([[0.0, 0.0], [0.3, -1.5]], np.float32)  # Real positions.
    found = attention_logits(q, k, encoding, None, Context(at))[0, 0, 0]
    np.testing.assert_allclose(found, [5 / 2, (np.cos(0.3) + 4 * np.cos(1.5)) / 2], atol=1e-6)
    part = encoding.parts[0]
    rotated, _, _ = part.heads({}, q, k, q, Context(at, at))
    expected = [np.cos(0.3), np.sin(0.3), -2 * np.sin(-1.5), 2 * np.cos(-1.5)]
    np.testing.assert_allclose(rotated[0, 1, 0], expected, atol=1e-6)


def test_axial_rope_depends_on_differences_far_out():
    encoding, _ = made("rope_axial")
    q, k, _ = qkv()
    near, far = (
        attention_logits(q, k, encoding, None, Context(grid(2, 3) + shift))
        for shift in (0, np.array([2**17, -(2**16)]))
    )
    np.testing.assert_allclose(far, near, atol=2e-3)


def test_axial_rope_counts_the_patches_of_an_image_by_rows():
    axes, _ = made("rope_axial")
    flat, _ = made("rope_axial(width=3)")
    q, k, v = qkv()
    expected = attention(q, k, v, axes, None, Context(grid(2, 3)))
    np.testing.assert_array_equal(attention(q, k, v, flat), expected)
    with pytest.raises(ValueError, match=r"Pass an array \[L, 2\]"):
        attention(q, k, v, axes)
    with pytest.raises(ValueError, match="multiple of 6 .*got 8"):
        made("rope_axial(axes=3)")
    with pytest.raises(ValueError, match="axes=1, width=3"):
        made("rope_axial(axes=1, width=3)")


# --- tupe -----------------------------------------------------------------------------------------


def test_tupe_resets_what_the_first_token_has_to_do_with_others():
    encoding, params = made("tupe")
    theta = np.float32([[1.0, 2.0], [3.0, 4.0]])
    params["tupe"]["theta"] = theta
    q = np.zeros((2, 6, 2, 8), np.float32)
    found = attention_logits(q, q, encoding, params)
    np.testing.assert_array_equal(found[0, :, 0], np.broadcast_to(theta[0][:, None], (2, 6)))
    np.testing.assert_array_equal(found[0, :, 1:, 0], np.broadcast_to(theta[1][:, None], (2, 5)))
    tied, _ = made("tupe(untied_cls=False)")
    own = {"tupe": {k: v for k, v in params["tupe"].items() if k != "theta"}}
    np.testing.assert_array_equal(
        attention_logits(q, q, tied, own)[..., 1:, 1:], found[..., 1:, 1:]
    )


def test_tupe_scales_the_content_and_has_as_many_positions_as_its_table():
    encoding, params = made("tupe")
    q, k, _ = qkv()
    zeros = jax.tree.map(np.zeros_like, params)
    found = attention_logits(q, k, encoding, zeros)
    np.testing.assert_allclose(found, np.einsum("bqhd,bkhd->bhqk", q, k) / 4, atol=1e-6)
    with pytest.raises(ValueError, match="positions 8 to 13 do not fit .* length 12"):
        attention_logits(q, k, encoding, params, Context(range(8, 14)))
    longer = encoding.resize(params, 20, "interpolate")
    assert longer["tupe"]["table"].shape == (20, 16)
    assert np.isfinite(attention_logits(q, k, encoding, longer, Context(range(8, 14)))).all()


# --- complex_order --------------------------------------------------------------------------------


def test_complex_order_rotates_each_token_by_its_own_frequencies():
    encoding, _ = made("complex_order(vocab_size=3)", hidden_size=2)
    params = {"complex_order": {"frequencies": np.float32([[0.0], [0.5], [2.0]])}}
    x = np.broadcast_to(np.float32([1.0, 0.0]), (1, 3, 2))
    tokens = np.array([[2, 1, 2]])
    at = np.array([[0, 3, 1]])
    found = jax.jit(lambda x: encodings.embed(encoding, params, x, at, tokens=tokens))(x)
    angle = np.array([0.0, 1.5, 2.0])
    np.testing.assert_allclose(found[0], np.stack([np.cos(angle), np.sin(angle)], -1), atol=1e-6)
    with pytest.raises(ValueError, match="tokens=tokens"):
        encodings.embed(encoding, params, x)
    with pytest.raises(ValueError, match="table of length 3"):
        encodings.embed(encoding, params, x, tokens=tokens + 1)


# --- randomised -----------------------------------------------------------------------------------


def seen(name, positions, keys, rng=None):
    """The positions that a randomised part sees, of queries and of keys."""
    (part,) = made(name)[0].parts
    run = lambda rng: moved(part, Context(positions, range(keys), rng=rng), 1)
    here = run(rng) if rng is None else jax.jit(run)(rng)
    return np.asarray(here.positions_q), np.asarray(here.positions_k)


def test_randomised_positions_are_sorted_different_and_the_same_everywhere():
    key = jax.random.key(3)
    last, all_of_them = seen("randomised(pope, longest=30)", range(9, 10), 10, key)
    assert (np.diff(all_of_them) > 0).all() and all_of_them[0] >= 0 and all_of_them[-1] < 30
    assert last == all_of_them[9:]
    (part,) = made("randomised(sinusoidal_absolute, longest=30)")[0].parts
    packed = np.array([[0, 1, 0, 1] + [0] * 6])
    at_input = moved(part, Context(packed, packed, rng=key), 1).positions_q
    np.testing.assert_array_equal(at_input[0, :4], all_of_them[[0, 1, 0, 1]])
    again = seen("randomised(pope, longest=30)", range(10), 10, jax.random.key(4))[0]
    assert (again != all_of_them).any()


def test_randomised_positions_are_spread_evenly_without_a_key():
    np.testing.assert_array_equal(
        seen("randomised(pope, longest=10)", range(4), 4)[0], [0, 3, 6, 9]
    )
    np.testing.assert_array_equal(seen("randomised(pope, longest=4)", range(4), 4)[0], range(4))
    even = seen("randomised(pope, longest=10, real=True)", range(3), 3)[0]
    np.testing.assert_array_equal(even, [0, 4.5, 9])
    real = seen("randomised(pope, longest=2, real=True)", range(9), 9, jax.random.key(0))[0]
    assert (np.diff(real) > 0).all() and real.min() >= 0 and real.max() <= 1


@pytest.mark.parametrize("implementation", ["naive", "auto"])
def test_a_randomised_part_and_a_plain_one_each_see_their_own_positions(implementation):
    name = "randomised({}, longest=40)+sinusoidal_relative(clip=4)"
    both, params = made(name.format("learned_relative(clip=8)"))
    q, k, v = qkv()
    key = jax.random.key(1)
    found = attention(
        q,
        k,
        v,
        both,
        params,
        Context(range(6), rng=key),
        implementation=implementation,
        platform="cpu",
    )
    drawn = seen("randomised(pope, longest=40)", range(6), 6, key)[0]
    table = params["learned_relative"]["table"]
    row = lambda at, clip: np.clip(at[None] - at[:, None], -clip, clip)
    p = table[row(drawn, 8) + 8] + encodings.sinusoid(
        row(np.arange(6), 4), encodings.default_frequencies(8)
    )
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) + np.einsum("bqhd,qkd->bhqk", q, p)
    weights = jax.nn.softmax(logits / np.sqrt(8), axis=-1)
    expected = softmax_of(logits / np.sqrt(8), v) + np.einsum("bhqk,qkd->bqhd", weights, p)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(
        ValueError, match="implementation='fused' needs vectors at integer positions"
    ):
        attention(
            q,
            k,
            v,
            both,
            params,
            Context(range(6), rng=key),
            implementation="fused",
            platform="cpu",
        )


@pytest.mark.parametrize(("real", "outside"), [(False, 30), (True, np.nan)])
def test_traced_positions_outside_of_randomised_are_unlike_all_others(real, outside):
    """Positions below 0 too, which padding on the left may have."""
    (part,) = made(f"randomised(pope, longest=30, real={real})")[0].parts
    at = lambda x: moved(part, Context(x, x), 1).positions_q
    found = np.asarray(jax.jit(at)(np.array([-1, 0, 1, 2, 5])))
    even = np.array([0, 29 / 4, 29 / 2])
    np.testing.assert_allclose(found, [outside, *(even if real else even // 1), outside])


def test_randomised_keeps_the_family_and_says_its_limits():
    both, params = made("randomised(learned_absolute, longest=12)+pope")
    assert set(params) == {"learned_absolute", "pope"} and both.max_length == 12
    q, k, v = qkv(length=13)
    with pytest.raises(ValueError, match=r"13 tokens.* longest=13"):
        encodings.embed(both, params, draw(1, 13, 16))
    with pytest.raises(ValueError, match="12 positions, fewer than longest=20"):
        made("randomised(learned_absolute, longest=20)")
    with pytest.raises(ValueError, match="one axis"):
        made("randomised(rope_axial)")
    wrapped, params = made("randomised(pope)")
    with pytest.raises(ValueError, match="13 keys must count from 0 for randomised, got 5 to 17"):
        attention(q, k, v, wrapped, params, Context(range(5, 18)))
    with pytest.raises(ValueError, match="float"):
        attention(q, k, v, wrapped, params, Context(np.arange(13.0)))
