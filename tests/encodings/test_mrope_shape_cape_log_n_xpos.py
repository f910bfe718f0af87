"""Positions of several axes, changed ones, indices and features of them; temperatures; xPos."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.attention import document_mask
from pe_jax.encodings import Context
from pe_jax.encodings.part import moved
from pe_jax.testing import CHECKS, Subject
from pe_jax.training.transplant import transplant

SIZES = dict(hidden_size=16, head_size=8, num_heads=2, max_length=12)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def logits(name, at, head_size=8, params=None):
    encoding = build(name, head_size=head_size)
    length = np.shape(at)[-1 if encoding.axes == 1 else -2]
    q, k = draw(1, length, 2, head_size), draw(1, length, 2, head_size, seed=1)
    params = jax.jit(encoding.init)(jax.random.key(0)) if params is None else params
    return attention_logits(q, k, encoding, params, Context(at))


# --- positions of several axes --------------------------------------------------------------------


def test_mixed_rope_starts_with_directions_at_right_angles():
    params = jax.jit(build("rope_mixed(base=16)").init)(jax.random.key(0))
    w = np.asarray(params["rope_mixed"]["frequencies"])
    assert w.shape == (2, 2, 4)  # Two pairs in each of two directions, 16^(-4t/8) long.
    np.testing.assert_allclose(np.hypot(*w), [[1, 0.25, 1, 0.25]] * 2, rtol=1e-6)
    np.testing.assert_allclose((w[..., :2] * w[..., 2:]).sum(0), 0, atol=1e-6)
    assert abs(w[0, 0, 0] - w[0, 1, 0]) > 1e-3  # Each head has its own.
    with pytest.raises(ValueError, match="multiple of 6 .*got 8"):
        build("rope_mixed(axes=3)")


def test_mixed_rope_on_one_axis_each_is_axial():
    """Directions along the axes: half of the pairs go by rows, half by columns."""
    w = encodings.default_frequencies(4, 100.0)
    frequencies = np.stack([np.append(w, 0 * w), np.append(0 * w, w)])[:, None].repeat(2, 1)
    at = np.array([[0, 0], [1, 5], [2, 3]])
    mixed = logits("rope_mixed", at, params={"rope_mixed": {"frequencies": frequencies}})
    np.testing.assert_allclose(mixed, logits("rope_axial", at), atol=1e-5)
    far = logits("rope_mixed", at + np.array([2**17, -(2**16)]))
    np.testing.assert_allclose(far, logits("rope_mixed", at), atol=4e-3)


@pytest.mark.parametrize("name", ["mrope", "mrope(interleaved=True)", "mrope(sections=(4, 0, 12))"])
def test_mrope_is_rope_where_the_axes_agree(name):
    at = np.array([3, 0, 70, 12])
    same = logits(name, np.tile(at[:, None], 3), head_size=32)
    np.testing.assert_allclose(same, logits("rope", at, head_size=32), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "axis_of_pair"),
    [
        ("mrope", [0] * 16 + [1] * 24 + [2] * 24),  # Qwen2-VL.
        ("mrope(interleaved=True)", [0, 1, 2] * 20 + [0] * 4),  # Qwen3-VL.
        ("mrope(sections=(60, 4))", [0] * 60 + [1] * 4),
    ],
)
def test_which_axis_a_pair_goes_by(name, axis_of_pair):
    (part,) = build(name, head_size=128).parts
    x = np.ones((1, part.traits.axes, 1, 128), np.float32)
    at = 1000 * np.eye(part.traits.axes, dtype=int)  # Token a moves on axis a alone.
    rotated = jax.jit(lambda x: part.heads({}, x, x, x, Context(at, at))[0])(x)
    moves = np.abs(np.asarray(rotated)[0, :, 0, :64] - 1) > 1e-6
    np.testing.assert_array_equal(moves.sum(0), 1)
    np.testing.assert_array_equal(moves.argmax(0), axis_of_pair)


def test_sections_of_mrope_are_checked():
    with pytest.raises(ValueError, match=r"up to 4, .* head of size 8; got \(1, 1, 1\), .* 3"):
        build("mrope(sections=(1, 1, 1))")
    with pytest.raises(ValueError, match=r"\(1, 3\) cannot be interleaved"):
        build("mrope(sections=(1, 3), interleaved=True)")


# --- indices, concatenation, features -------------------------------------------------------------


def added(name, length, params=None):
    encoding = build(name)
    params = jax.jit(encoding.init)(jax.random.key(0)) if params is None else params
    x = np.zeros((1, length, 16), np.float32)
    return np.asarray(jax.jit(lambda x: encodings.embed(encoding, params, x, range(length)))(x))


def test_the_index_has_no_bound_and_the_share_depends_on_the_length():
    (u,) = jax.tree.leaves(build("raw_index").init(jax.random.key(0)))
    np.testing.assert_allclose(added("raw_index", 300)[0, 299], 299 * u, rtol=1e-6)
    short, long = (added("normalised_index", n) for n in (5, 9))
    np.testing.assert_allclose(short[0, 4], long[0, 8], rtol=1e-6)  # Both the end of the input,
    np.testing.assert_allclose(long[0, 4], short[0, 4] / 2, rtol=1e-6)  # the same index is not.
    assert np.isfinite(added("normalised_index", 1)).all()


def test_concatenation_leaves_the_word_alone():
    encoding = build("sinusoidal_concatenated(share=0.3, scale=2)")
    x = draw(2, 3, 16)
    found = np.asarray(jax.jit(lambda x: encodings.embed(encoding, {}, x))(x))
    np.testing.assert_array_equal(found[..., :12], x[..., :12])
    own = 2 * encodings.sinusoid(np.arange(3), encodings.default_frequencies(4))
    np.testing.assert_allclose(found[..., 12:], [own, own], rtol=1e-6)
    np.testing.assert_allclose(encoding.parts[0].metadata.vectors({}, np.arange(3))[:, 12:], own)
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\), got 1"):
        build("sinusoidal_concatenated(share=1.0)")


def test_fourier_features_start_near_a_gaussian_kernel():
    encoding = build("fourier_features(features=4096, gamma=10)")
    w = jax.jit(encoding.init)(jax.random.key(1))["fourier_features"]["frequencies"][0]
    kernel = np.cos(np.array([0.0, 5.0, 10.0, 40.0])[:, None] * np.asarray(w)).mean(-1)
    np.testing.assert_allclose(kernel, np.exp([0, -1 / 8, -1 / 2, -8]), atol=0.05)
    with pytest.raises(ValueError, match="features=3"):
        build("fourier_features(features=3)")


# --- positions that are changed -------------------------------------------------------------------


def seen(name, q, k, rng=None, rows=3):
    """What a part sees: positions of queries, of keys, of the input."""
    (part,) = build(name).parts
    here = moved(part, Context(q, k, rng=rng), rows)
    at_input = moved(part, Context(k, k, rng=rng), rows)
    return here.positions_q, here.positions_k, at_input.positions_q


def drawn(*args, **options):
    """What is `seen` with a key, from one program."""
    return [np.asarray(x) for x in jax.jit(lambda: seen(*args, **options))()]


@pytest.mark.parametrize("name", ["shifted(rope)", "cape(rope)"])
def test_without_a_key_positions_stay_and_keep_the_fast_implementations(name):
    assert seen(name, range(2, 5), range(5)) == (range(2, 5), range(5), range(5))


def test_shape_shifts_each_sequence_by_one_number():
    key = jax.random.key(5)
    q, k, at_input = drawn("shifted(rope, max_shift=40)", range(4, 5), range(5), key, rows=50)
    shift = k[:, :1]
    np.testing.assert_array_equal(k, np.arange(5) + shift)
    np.testing.assert_array_equal(q, 4 + shift)
    np.testing.assert_array_equal(at_input, k)
    assert shift.min() >= 0 and 35 < shift.max() <= 40 and len(np.unique(shift)) > 20
    on_axes = drawn("shifted(rope_axial)", np.ones((2, 2), int), np.ones((2, 2), int), key)[0]
    assert on_axes.shape == (3, 2, 2)


def test_shape_stays_within_a_learned_table():
    at = np.tile(np.arange(9), (50, 1))
    for jit in (lambda f: f, jax.jit):
        run = jit(
            lambda at: seen("shifted(learned_absolute)", at, at, jax.random.key(1), rows=50)[1]
        )
        assert set(np.unique(run(at)[:, 0])) == {0, 1, 2, 3}  # The table has 12 rows.


def test_cape_shifts_jitters_and_scales():
    name = "cape(rope, max_global_shift=7, max_local_shift=0.5, max_global_scaling=1.5)"
    key = jax.random.key(2)
    q, k, at_input = drawn(name, range(6, 8), range(8), key, rows=200)
    np.testing.assert_array_equal(at_input, k)
    np.testing.assert_array_equal(q, k[:, 6:])  # A cached query is where it was among the keys.
    steps = np.diff(k, axis=1)
    assert steps.min() >= 0  # The order is kept,
    scale = (k[:, -1] - k[:, 0]) / 7
    assert 0.55 < scale.min() < 0.8 and 1.25 < scale.max() < 1.75
    assert steps.std() > 0.3 and 5 < np.abs(k[:, 0]).max() < 7.5 * 1.5
    np.testing.assert_allclose(k.mean(0) - k.mean(), np.arange(8) - 3.5, atol=0.4)
    repeated = np.array([0, 1, 0, 1])
    again = drawn(name, repeated, repeated, key)[0]
    np.testing.assert_array_equal(again[:, :2], again[:, 2:])  # One position, one jitter.


def test_cape_centres_what_is_not_padding():
    at = np.array([[0, 1, 2, 3, 0, 0], [7, 8, 9, 10, 11, 12]])
    q, k, _ = drawn("cape(rope, centred=True)", at[:, :1], at, rows=2)
    np.testing.assert_array_equal(k, at - np.array([[1.5], [9.5]]))
    np.testing.assert_array_equal(q, k[:, :1])
    both = drawn("cape(rope_axial, centred=True)", at[0, :, None] * [[1, 2]], np.eye(2))
    np.testing.assert_array_equal(both[0][3], [2.5, 5.5])
    CHECKS["shift"](
        Subject(encodings.cape(encodings.sinusoidal_absolute(hidden_size=8), centred=True))
    )


@pytest.mark.parametrize("name", ["shifted(sinusoidal_absolute)", "cape(rope)"])
def test_what_is_drawn_depends_on_the_key_alone(name):
    sizes = dict(hidden_size=8, head_size=4, num_heads=2, max_length=16)
    assert CHECKS["draws"](Subject(encodings.from_name(name, **sizes))) == "ok"


def test_interpolation_of_rope_is_linear_scaling():
    at = np.array([0, 9, 2])
    found = logits("interpolated(rope, factor=8)", at)
    np.testing.assert_allclose(found, logits("rope_linear(factor=8)", at), atol=1e-5)
    cards = [
        build(f"{name}, factor=8)").parts[0].metadata
        for name in ("interpolated(rope", "rope_linear(base=10000")
    ]
    np.testing.assert_allclose(*(metadata.frequencies({}).ravel() for metadata in cards), rtol=1e-6)
    vectors = build("interpolated(sinusoidal_absolute, factor=2)").parts[0].metadata.vectors
    np.testing.assert_array_equal(
        vectors({}, np.array([6])),
        encodings.sinusoid(np.array([3]), encodings.default_frequencies(16)),
    )
    nested = seen("interpolated(shifted(rope, max_shift=0), factor=4)", at, at, jax.random.key(0))[
        0
    ]
    np.testing.assert_array_equal(nested, np.tile(at / 4, (3, 1)))


def test_wrappers_refuse_what_they_cannot_do():
    for name, way_out in {
        "interpolated(learned_absolute, factor=2)": "encoding.resize",
        "cape(learned_absolute)": "take shifted",
    }.items():
        with pytest.raises(ValueError, match=f"12 rows for integers: .*{way_out}"):
            build(name)
    with pytest.raises(ValueError, match="factor must be positive, got -1"):
        build("interpolated(rope, factor=-1)")
    with pytest.raises(ValueError, match="got -1"):
        build("shifted(rope, max_shift=-1)")
    with pytest.raises(ValueError, match="got 5.0, 0.5 and 0.5"):
        build("cape(rope, max_global_scaling=0.5)")


# --- temperatures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ("", lambda n: np.maximum(np.log(n) / np.log(4), 1)),  # Qwen's.
        (", smooth=True", lambda n: np.log(4 + n) / np.log(4)),  # SWAN's.
        (", coefficient=0.412, count='row'", lambda n: np.full(6, 1 + 0.412 * np.log(6 / 4))),
    ],
)
def test_log_n(options, factor):
    n = np.arange(1, 7)
    found, plain = (logits(name, range(6)) for name in (f"log_n(length=4{options})", "none"))
    found = np.asarray(found) / np.asarray(plain)
    np.testing.assert_allclose(found[0, 0], np.tile(factor(n)[:, None], 6), rtol=1e-5)


def test_log_n_of_a_document_ignores_its_neighbours():
    encoding = build("log_n(length=2)")
    q, k, v = (draw(1, 6, 2, 8, seed=seed) for seed in range(3))
    document_ids = np.array([[1, 1, 1, 1, 2, 2]])
    at = np.array([[0, 1, 2, 3, 0, 1]])
    both = attention(
        q, k, v, encoding, {}, Context(at), mask=document_mask(document_ids, document_ids)
    )
    alone = attention(q[:, 4:], k[:, 4:], v[:, 4:], encoding)
    np.testing.assert_allclose(both[:, 4:], alone, atol=1e-6)
    with pytest.raises(ValueError, match="at least 2 keys, got 1"):
        build("log_n(length=1)")


@pytest.mark.parametrize(
    "name",
    [
        "cycle(rope+window(reach=3), rope+window(reach=3), rope+window(reach=3), none)+causal",
        "cycle(log_n(length=8, smooth=True), rope+window(reach=3), rope+window(reach=3))+causal",
    ],
)
def test_interleaved_layers_without_positions(name):
    """RNoPE-SWA, SWAN: what a query at the end attends to."""
    encoding = build(name)
    q = draw(1, 9, 2, 8)
    for layer, one in enumerate(encoding.layers):
        of_layer = encoding.layer(layer)
        values = np.eye(9, dtype=np.float32)[None, :, None].repeat(2, axis=2)
        weights = attention(q, q, values, of_layer)
        kept = 4 if "window" in one.name else 9
        assert (np.asarray(weights)[0, -1, 0] > 0).sum() == kept


def test_dropping_rope_keeps_all_parameters():
    """DroPE starts from what a model with RoPE has learned: nothing is lost or new."""
    params = {"bert": {"token": {"embedding": draw(4, 2)}}}
    kept, changes = transplant(params, params)
    assert kept == params and not changes.dropped and not changes.new
    assert not build("rope+log_n(length=8)").init(jax.random.key(0))


# --- xPos -----------------------------------------------------------------------------------------


def test_xpos_decays_the_fast_pairs_most():
    """One pair at a time, by hand: ζ = (2m/8 + 0.4) / 1.4."""
    encoding = build("xpos(scale_base=2)+causal")
    run = jax.jit(lambda q: attention_logits(q, q, encoding, {}, Context(np.arange(3))))
    for m in range(4):
        q = np.zeros((1, 3, 2, 8), np.float32)
        q[..., 2 * m] = 1.0
        angle = 10_000 ** (-m / 4) * np.arange(3)
        wanted = ((m / 4 + 0.4) / 1.4) ** (np.arange(3) / 2) * np.cos(angle) / 8**0.5
        found = np.asarray(run(q))[0, 0, 2, ::-1]
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_xpos_is_refused_in_an_encoder():
    q = draw(1, 3, 2, 8)
    with pytest.raises(ValueError, match=r"grows without bound to the right.*'xpos\+causal'"):
        attention(q, q, q, build("xpos"), {})
    assert "xpos+causal" in encodings.parser.for_text()


@pytest.mark.parametrize(
    ("dtype", "implementation"), [("float32", "naive"), ("float32", "fused"), ("float16", "naive")]
)
def test_xpos_far_apart(dtype, implementation):
    """Positions 2^17 apart in a row: near pairs are as ever, and nothing overflows."""
    encoding = build("xpos+causal")
    q, k, v = (draw(1, 5, 2, 8, seed=seed).astype(dtype) for seed in range(3))
    at = np.array([0, 1, 2**16, 2**17 - 1, 2**17])

    def run(q):
        out = attention(q, k, v, encoding, {}, Context(at), implementation=implementation)
        first = attention(q[:, :2], k[:, :2], v[:, :2], encoding, implementation=implementation)
        return out.astype(jnp.float32).sum(), (out, first)

    grad, (out, first) = jax.jit(jax.grad(run, has_aux=True))(q)
    assert np.isfinite(out).all() and np.isfinite(grad).all()
    np.testing.assert_allclose(out[:, :2], first, atol=0.01)
