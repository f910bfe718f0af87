"""Rotary encodings and windows: values checked by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits, value_and_pullback

from pe_jax import encodings
from pe_jax.encodings import AttentionWindow, Context, Part, PositionEncoding, Traits, rotate_heads
from pe_jax.encodings.rotary import rotation
from pe_jax.encodings.rotary.rope_scaling import yarn_scale
from pe_jax.encodings.sinusoid import default_frequencies

SIZES = dict(hidden_size=16, head_size=8, num_heads=2, max_length=16)


def build(name, **changes):
    return encodings.from_name(name, **{**SIZES, **changes})


def shown(encoding):
    """The frequencies that reports see."""
    (part,) = encoding.parts
    return np.asarray(part.metadata.frequencies(part.init(jax.random.key(0)))).ravel()


def draw(shape=(2, 6, 2, 8), dtype=jnp.float32, seed=0):
    q, k = np.random.default_rng(seed).normal(size=(2, *shape))
    return q.astype(dtype), k.astype(dtype)


def rotated(part, x, *positions):
    """What a part makes of queries and keys that are both `x`."""
    q, k, _ = jax.jit(lambda x: part.heads({}, x, x, x, Context(*positions)))(x)
    return q, k


# --- the rotation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("half", [math.cos(3), math.cos(0.03), math.sin(3), math.sin(0.03)]),
        ("interleaved", [math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)]),
    ],
)
def test_rotation_by_hand(layout, expected):
    # d = 4: frequencies 1 and 1/100; vectors along the first dimension of each pair.
    x = np.array([1, 1, 0, 0] if layout == "half" else [1, 0, 1, 0], np.float32)[None, None, None]
    w = np.array([[1, 0.01]], np.float32)
    found = jax.jit(lambda x: rotate_heads(x, np.array([3]), w, layout))(x)
    np.testing.assert_allclose(found[0, 0, 0], expected, 1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_rotates_as_halves_do(layout, dtype):
    """The form of a TPU against that of all others, gradients included; a part stays as it is."""
    x = draw(dtype=dtype)[0]
    rng = np.random.default_rng(1)
    angle = rng.normal(size=(x.shape[1], x.shape[2], 3)).astype(np.float32)
    inputs, weights = (x, 2 * np.cos(angle), 2 * np.sin(angle)), rng.normal(size=x.shape)
    got, want = (
        value_and_pullback(functools.partial(rotate, layout), inputs, weights.astype(dtype))
        for rotate in (rotation._by_product, rotation._by_halves)
    )
    assert got[0].dtype == want[0].dtype == dtype
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, atol=2e-6 if dtype == jnp.float32 else 0.05)


def test_a_fraction_rotates_the_first_dimensions_and_proportional_the_fastest():
    x = draw()[0]
    q = np.asarray(rotated(build("rope(fraction=0.5)").parts[0], x, range(6), range(6))[0])
    np.testing.assert_array_equal(q[..., 4:], x[..., 4:])
    assert np.abs(q - x)[:, 1:, :, :4].min() > 0
    np.testing.assert_allclose(shown(build("rope(fraction=0.5)")), [1, 0.01], rtol=1e-6)
    np.testing.assert_allclose(shown(build("rope(proportional=0.5)")), [1, 0.1, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["rope", "rope(learnable=True, per_head=True)"])
def test_logits_stay_when_all_positions_shift(name, dtype):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    q, k = draw(dtype=dtype)
    logits = jax.jit(lambda at: attention_logits(q, k, encoding, params, Context(at)))
    near, far = logits(np.arange(6)), logits(np.arange(6) + 2**17)
    np.testing.assert_allclose(near, far, atol=2e-5 if dtype == jnp.float32 else 0.05)


def test_rotated_heads_keep_their_dtype():
    for dtype in (jnp.float16, jnp.bfloat16):
        q, k = draw(dtype=dtype)
        mapped = build("rope").parts[0].heads({}, q, k, k, Context(range(6), range(6)))
        assert [x.dtype for x in mapped] == [dtype] * 3


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_converted_weights_give_the_same_logits(fraction):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 16)).astype(np.float32)
    kernels = [rng.normal(size=(16, 2, 8)).astype(np.float32) for _ in "qk"]

    def logits(layout, kernels):
        q, k = (np.einsum("blD,Dhd->blhd", x, kernel) for kernel in kernels)
        return attention_logits(
            q, k, encodings.rope(head_size=8, layout=layout, fraction=fraction), {}
        )

    there = [encodings.convert_layout(one, "interleaved", fraction=fraction) for one in kernels]
    back = [encodings.convert_layout(one, "half", fraction=fraction) for one in there]
    np.testing.assert_allclose(
        logits("half", kernels), logits("interleaved", there), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(kernels, back)
    assert not np.array_equal(kernels, there)


def test_learnable_frequencies_are_parameters():
    for name, shape in (("", (4,)), (", per_head=True", (2, 4))):
        encoding = build(f"rope(learnable=True{name})")
        params = encoding.init(jax.random.key(0))
        w = params["rope"]["frequencies"]
        assert w.shape == shape and encodings.parameter_count(encoding) == w.size
        np.testing.assert_allclose(np.atleast_2d(w)[-1], [1, 0.1, 0.01, 0.001], rtol=1e-6)
        assert encoding.parts[0].traits.frequency_params == ("frequencies",)


# --- stretched frequencies ------------------------------------------------------------------------


def test_frequencies_by_hand():
    # d = 8: 1, 1/10, 1/100, 1/1000.
    def check(name, expected):
        np.testing.assert_allclose(shown(build(name)), expected, rtol=1e-6)

    check("rope", [1, 0.1, 0.01, 0.001])
    check("rope_linear(factor=4)", [0.25, 0.025, 0.0025, 0.00025])
    check("rope_ntk(factor=8)", [1, 0.05, 0.0025, 0.000125])  # Divided by 8^(m/3).
    # Rotations within 2,000π positions: 1000, 100, 10, 1. Between 4 and 16: (10 - 4) / 12 = 1/2.
    llama = "rope_llama3(factor=2, original_length=%d, low_frequency_factor=%g, %s=%g)"
    check(
        llama % (6283, 4, "high_frequency_factor", 16),
        [1, 0.1, 0.01 * (0.5 + 0.25) + 0.01 * 0.25 * (6283 / 200 / math.pi - 10) / 6, 0.0005],
    )
    # One rotation at m = log10(L / 2π) = 3, a thousand at m = 0: the ramp is m / 3, and
    # frequencies are multiplied by 1 - 3/4 · m/3.
    check(
        "rope_yarn(factor=4, original_length=6283, beta_fast=1000, beta_slow=1)",
        [1, 0.1 * 0.75, 0.01 * 0.5, 0.001 * 0.25],
    )


def test_attention_factors():
    """Golden values: 0.1 ln 32 + 1 of gpt-oss, 1 of DeepSeek-V3, sqrt(1 + ln 32 / ln 4096) of Phi-3
    mini; an explicit factor wins; logits have its square."""
    assert yarn_scale(32.0) == pytest.approx(1.3465735902799727)
    assert yarn_scale(40.0, 1.0, 1.0) == 1
    assert yarn_scale(40.0, 0.707, 1.4) == pytest.approx(1.2608037774 / 1.5164431236)
    q, k = draw()
    plain = np.asarray(attention_logits(q, k, encodings.none(), {}))

    def scale(name, length=1):
        at = Context(np.full(6, length - 1))  # No rotation between equal positions.
        return math.sqrt(np.median(attention_logits(q, k, build(name), {}, at) / plain))

    yarn = "rope_yarn(factor=32, original_length=4096%s)"
    assert scale(yarn % "") == pytest.approx(1.3465735902799727, rel=1e-5)
    assert scale(yarn % ", attention_factor=1") == pytest.approx(1, rel=1e-5)
    assert scale(yarn % ", attention_factor=0.5, mscale=1, mscale_all_dim=2") == pytest.approx(0.5)
    longrope = (
        "rope_longrope(short=(1, 1, 1, 1), long=(1, 1, 1, 2), factor=32, original_length=4096)"
    )
    for length in (1, 5000):
        assert scale(longrope, length) == pytest.approx(1.1902380714238083, rel=1e-5)


def test_length_is_the_largest_position_of_each_row():
    w = np.array([[1, 0.1, 0.01, 0.001]], np.float32)
    x = draw((2, 4, 2, 8))[0]
    rows = np.array([[0, 1, 0, 1], [0, 1, 2, 3]])  # Lengths 2 and 4.

    rotate = jax.jit(rotate_heads)
    name = "rope_dynamic_ntk(factor=3, original_length=2)"
    dynamic, _ = rotated(build(name).parts[0], x, rows, rows)
    # Rows do not change one another: the first is as long as the original length, for the second
    # the factor is 3 · 4/2 - 2 = 4.
    np.testing.assert_allclose(dynamic[0], rotate(x, rows, w)[0], atol=1e-6)
    by_4 = shown(build("rope_ntk(factor=4)"))[None]
    np.testing.assert_allclose(dynamic[1], rotate(x, rows, by_4)[1], atol=1e-6)
    # Queries far from few keys: what counts is the position, not how many keys there are.
    part = build(
        "rope_longrope(short=(1, 1, 1, 1), long=(2, 2, 2, 2), factor=1, original_length=8)"
    )
    for last, divisor in ((7, 1), (8, 2)):
        at = np.array([0, 1, 2, last])
        q, k = rotated(part.parts[0], x, at, range(4))
        np.testing.assert_allclose(k, rotate(x, np.arange(4), w / divisor), atol=1e-6)
        np.testing.assert_allclose(q, rotate(x, at, w / divisor), atol=1e-6)
        traced = jax.jit(lambda p: part.parts[0].heads({}, x, x, x, Context(p, range(4)))[0])
        np.testing.assert_allclose(traced(at), q, atol=1e-6)


def test_what_depends_on_the_length_says_so():
    for name in ("rope_dynamic_ntk(factor=2, original_length=4)", "rope", "rope_linear(factor=2)"):
        (part,) = build(name).parts
        assert part.traits.cacheable == part.metadata.invariant == ("dynamic" not in name)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rope(fraction=1.5)", r"fraction must be a share .* \(0, 1\], got 1.5"),
        ("rope(proportional=0)", "proportional must be a share"),
        ("rope(fraction=0.4)", "even number of dimensions, got 3 .* Use fraction=0.25"),
        ("rope(per_head=True)", "needs learnable=True"),
        ("rope(base=-1)", "base must be positive"),
        ("rope(layout='llama')", "takes"),
        ("rope_linear", "needs the option 'factor'"),
        ("rope_linear(factor=0.5)", "factor must be at least 1, got 0.5"),
        ("rope_yarn(factor=2, original_length=8, beta_fast=0.5)", "beta_fast >= beta_slow > 0"),
        (
            "rope_yarn(factor=2, original_length=8, scale_logits=True)",
            "needs a positive mscale_all_dim",
        ),
        (
            "rope_llama3(factor=2, original_length=8, low_frequency_factor=5)",
            "> 0 must hold",
        ),
        (
            "rope_longrope(short=(1,), long=(1, 1, 1, 1), factor=2, original_length=8)",
            "short must have a positive divisor for each of 4 frequencies, got 1",
        ),
        ("rope+rope_linear(factor=2)", "encodings of the same family"),
        ("window", "needs the option 'reach'"),
        ("window(reach=0)", "at least 1.*got 0"),
    ],
)
def test_options_out_of_range(name, match):
    with pytest.raises(ValueError, match=match):
        build(name)


def test_names_read_back():
    for name in (
        "rope(base=500, layout='interleaved', fraction=0.5)+window(reach=3)",
        "rope_yarn(factor=32, original_length=4096, truncate=False, base=150000)",
        "rope_longrope(short=(1, 1, 1, 1), long=(1, 1.5, 2, 4), factor=2, original_length=8)",
    ):
        assert build(name).name == name
    modern = "cycle(rope(base=160000), rope+window(reach=64), rope+window(reach=64))"
    assert build(modern).name == modern


# --- windows and causality ------------------------------------------------------------------------

ALLOWED = {
    "window(reach=2)": lambda offset: abs(offset) <= 2,
    "causal": lambda offset: offset <= 0,
    "rope+causal+window(reach=3)": lambda offset: (offset <= 0) & (offset >= -3),
}


@pytest.mark.parametrize("positions", [range(9), np.arange(9)])
@pytest.mark.parametrize("name", ALLOWED)
def test_which_keys_a_query_attends_to(name, positions):
    q, k = draw((1, 9, 1, 8))
    v = np.eye(9, dtype=np.float32)[None, :, None]
    out = attention(q, k, v, build(name), {}, Context(positions))
    i = np.arange(9)
    np.testing.assert_array_equal(np.asarray(out)[0, :, 0] > 0, ALLOWED[name](i - i[:, None]))


def test_reaches_join():
    assert AttentionWindow(5, None).within(AttentionWindow(None, 0)).within(
        AttentionWindow(3, 3)
    ) == AttentionWindow(3, 0)
    assert build("window(reach=4)+rope").reach == AttentionWindow(4, 4)
    assert build("rope").reach == AttentionWindow()


def test_what_is_for_causal_attention_is_refused_elsewhere():
    part = Part(name="past", traits=Traits(causal_only="it sees the past"))
    q, k = draw((1, 9, 1, 8))
    past = PositionEncoding((part,))
    with pytest.raises(ValueError, match=r"it sees the past.*'past\+causal'"):
        attention(q, k, k, past)
    np.testing.assert_array_equal(
        attention(q, k, k, past + encodings.causal()), attention(q, k, k, encodings.causal())
    )


def test_many_bases_at_once():
    """Parameters are mapped over where options cannot be."""
    bases, q = [100.0, 10_000.0], draw((1, 5, 2, 4), np.float32)[0]
    learnable = encodings.rope(head_size=4, learnable=True)
    w = np.array([default_frequencies(4, base) for base in bases])

    @jax.jit
    def apply(q, w):
        many = jax.vmap(lambda w: attention(q, q, q, learnable, {"rope": {"frequencies": w}}))(w)
        each = [attention(q, q, q, encodings.rope(head_size=4, base=base)) for base in bases]
        return many, jnp.stack(each)

    np.testing.assert_allclose(*apply(q, w), atol=1e-6)
