"""Position vectors, names, parameters, composition: against values a reader can check by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import encodings
from pe_jax.attention import attention_logits

SIZES = dict(hidden_size=8, head_size=4, num_heads=2, max_length=16)


def build(name):
    return encodings.from_name(paper_attention.clipped(name, 3), **SIZES)


def embedded(encoding, params, positions):
    """What `encoding` adds to an input of zeros."""
    return encodings.embed(encoding, params, jnp.zeros((1, len(positions), 8)), positions)[0]


def view(encoding):
    """How the one part of `encoding` is measured."""
    (part,) = encoding.parts
    return part.metadata


# --- the sinusoid ---------------------------------------------------------------------------------


def test_sinusoid_by_hand():
    # D = 4: frequencies 1 and 1/100; sine and cosine interleaved.
    assert encodings.default_frequencies(4) == pytest.approx([1.0, 0.01])
    p = encodings.sinusoid(jnp.array([0, 2]), encodings.default_frequencies(4))
    expected = [
        [0, 1, 0, 1],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    np.testing.assert_allclose(p, expected, atol=1e-6)


def test_sinusoid_of_negative_offsets_flips_sines_only():
    w = encodings.default_frequencies(6)
    right, left = encodings.sinusoid(jnp.array([5, -5]), w)
    np.testing.assert_allclose(left, right * jnp.tile(jnp.array([-1.0, 1.0]), 3), atol=1e-6)


@pytest.mark.parametrize("dim", [3, 0, -2])
def test_sinusoid_needs_an_even_dimension(dim):
    with pytest.raises(ValueError, match=f"must be even and positive, got {dim}"):
        encodings.default_frequencies(dim)


@settings(deadline=None, max_examples=25)
@given(i=st.integers(0, 600), j=st.integers(0, 600), seed=st.integers(0, 2**16))
def test_rotation_identity(i, j, seed):
    """q · P(j - i) = rotate(q, i) · P(j): exact, at any distance, for any frequencies."""
    rng = np.random.default_rng(seed)
    w = jnp.asarray(rng.uniform(0, 2, 4), jnp.float32)
    q = jnp.asarray(rng.normal(size=8), jnp.float32)
    left = q @ encodings.sinusoid(jnp.array(j - i), w)
    right = encodings.rotate_pairs(q, jnp.array(i), w) @ encodings.sinusoid(jnp.array(j), w)
    assert float(left) == pytest.approx(float(right), abs=3e-3)  # Angles to 1,200 in float32.


def test_angles_are_float32_under_bfloat16():
    w = jnp.asarray(encodings.default_frequencies(8), jnp.bfloat16)
    assert encodings.sinusoid(jnp.array([300]), w).dtype == jnp.float32
    x = jnp.ones((1, 8), jnp.bfloat16)
    assert encodings.rotate_pairs(x, jnp.array([300]), w).dtype == jnp.float32


def test_scale_of_absolute_sinusoids():
    for make in (encodings.sinusoidal_absolute, encodings.learnable_sinusoidal_absolute):
        small, full = make(hidden_size=8, scale=0.5), make(hidden_size=8)
        params = full.init(jax.random.key(0))
        x = range(5)
        half = embedded(full, params, x) / 2
        np.testing.assert_allclose(embedded(small, params, x), half, rtol=1e-6)
        seen = view(small).vectors(params.get(small.parts[0].key, {}), np.arange(5))
        np.testing.assert_array_equal(seen, embedded(small, params, x))
    named = encodings.from_name("sinusoidal_absolute(scale=0.5)", **SIZES)
    expected = embedded(encodings.sinusoidal_absolute(hidden_size=8, scale=0.5), {}, x)
    np.testing.assert_array_equal(embedded(named, {}, x), expected)


@pytest.mark.parametrize("w", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize("shift", [2**17, 2**24 - 3, 2**30 - 8, -(2**30)])
def test_angles_far_out(w, shift):
    """A shift rotates by the same angle for every position: differences stay."""
    w, angles = np.float32([w]), jax.jit(encodings.angles)
    near, far = (angles(np.arange(8) + by, w)[:, 0] for by in (0, shift))
    turn = np.exp(1j * np.asarray(far)) / np.exp(1j * np.asarray(near))
    np.testing.assert_allclose(turn, turn[0], atol=1e-5 if shift == 2**17 else 5e-4)
    summed = lambda w: encodings.angles(np.array([5, 2**17 + 3]), w).sum()
    slope = jax.jit(jax.grad(summed))(w)
    assert float(slope[0]) == pytest.approx(5 + 2**17 + 3)


# --- names, parameters ----------------------------------------------------------------------------

L, D, d, CLIP = 16, 8, 4, 3
COUNTS = {
    "none": 0,
    "learned_absolute": L * D,
    "sinusoidal_absolute": 0,
    "learnable_sinusoidal_absolute": D // 2,
    "learned_relative": (2 * CLIP + 1) * d,
    "sinusoidal_relative": 0,
    "learnable_sinusoidal_relative": d // 2,
}


def test_the_paper_has_13():
    assert len(encodings.PAPER) == len(set(encodings.PAPER)) == 13


@pytest.mark.parametrize("name", encodings.PAPER)
def test_parameter_counts(name):
    encoding = build(name)
    assert encoding.name == paper_attention.clipped(name, 3)
    expected = sum(COUNTS[part] for part in name.split("+"))
    params = encoding.init(jax.random.key(0))
    assert encodings.parameter_count(encoding) == expected
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


def test_parameter_counts_at_bert_base():
    sizes = dict(hidden_size=768, head_size=64, num_heads=12, max_length=512)
    counts = {
        name: encodings.parameter_count(encodings.from_name(name, **sizes))
        for name in ("learned_absolute", "learnable_sinusoidal_absolute", "learned_relative")
    }
    assert list(counts.values()) == [512 * 768, 384, 129 * 64]


def test_learnable_sinusoids_start_at_the_fixed_ones():
    for kind in ("absolute", "relative"):
        fixed, learnable = build(f"sinusoidal_{kind}"), build(f"learnable_sinusoidal_{kind}")
        x = jnp.arange(-2, 3)
        (start,) = learnable.init(jax.random.key(0)).values()
        np.testing.assert_array_equal(view(fixed).vectors({}, x), view(learnable).vectors(start, x))


def test_separate_tables_for_keys_and_values():
    encoding = encodings.learned_relative(head_size=4, clip=3, separate=True)
    params = encoding.init(jax.random.key(0))
    assert encodings.parameter_count(encoding) == 2 * 7 * 4
    own = params["learned_relative"]
    assert not np.allclose(own["key"]["table"], own["value"]["table"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learned_absolut", "Did you mean learned_absolute"),
        ("learned_absolute+relative", "'relative' is unknown.*in 'learned_absolute\\+relative'"),
        ("", "Cannot read the position encoding ''"),
        ("+".join(["rope"] * 1_000), r"has 999 '\+' and '\(', but at most 100"),
        ("per_layer(" * 1_000 + ")" * 1_000, r"has 1,000 '\+' and '\('"),
        ("-" * 100_000 + "rope", "Cannot read the position encoding '----"),
        ("rope" + ".a" * 100_000, "Cannot read the position encoding 'rope.a"),
        ("rope(base=" + "9" * 5_000 + ")", "Cannot read the position encoding"),
        ("rope\ud83d", "Cannot read the position encoding"),
        ("rope\0", "Cannot read the position encoding"),
        ("learned_absolute+", "Cannot read the position encoding"),
        ("learned_relative+learned_relative", "Use each family once"),
        ("learned_relative(clip=4)+learned_relative(clip=8)", "Use each family once"),
        ("learned_relative(clp=3)", "has no option 'clp'. Did you mean clip"),
        ("learned_relative(clip=3, clip=4)", "given twice"),
        ("learned_relative(clip='three')", "'clip' takes int, got 'three'"),
        ("learned_relative(clip=2.5)", "'clip' takes int, got 2.5"),
        ("learned_relative(clip=True)", "'clip' takes int, got True"),
        ("learned_relative(clip=0)", "must be >= 1, got 0"),
        ("sinusoidal_relative(base=0)", "base must be positive, got 0"),
        ("learned_relative(3)", "must be written NAME=VALUE"),
        ("learned_relative(clip=1 + 2)", "is not a number, a word or a tuple"),
        ("1+none", "'1' is not an encoding"),
        ("none.x", "'none.x' is not an encoding"),
        ("__import__('os')", "'__import__' is unknown"),
    ],
)
def test_names_that_mean_nothing(name, message):
    with pytest.raises(ValueError, match=message):
        encodings.from_name(name, **SIZES)


@pytest.mark.parametrize(
    "name",
    [
        "learned_relative(clip=16)",
        "learned_relative(clip=16, separate=True)",
        "sinusoidal_absolute(base=500, scale=0.03)",
        "sinusoidal_relative(clip=None)+learned_absolute",
    ],
)
def test_names_parse_back(name):
    assert encodings.from_name(name, **SIZES).name == name


def test_a_default_that_is_written_out_is_left_out():
    assert encodings.from_name("sinusoidal_relative( clip = 64 )", **SIZES).name == (
        "sinusoidal_relative"
    )


def test_lists_of_names_are_cut_outside_parentheses():
    text = "none, learned_relative(clip=4, separate=True),cycle(none, none)"
    assert encodings.split_names(text) == [
        "none", "learned_relative(clip=4, separate=True)", "cycle(none, none)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("none", "none"),
        ("rope(base=500) + alibi", "rope+alibi"),
        ("none+learned_absolute+rope(base=5)", "none+learned_absolute+rope"),
        ("interpolated(rope(base=500), factor=2)", "interpolated(rope)"),
        ("cycle(rope(base=500), none)", "cycle(rope, none)"),
    ],
)
def test_names_without_options(name, bare):
    assert encodings.without_options(name) == bare


def test_a_name_that_cannot_be_read_has_none_without_options():
    with pytest.raises(ValueError, match="Cannot read the position encoding 'learned kept'"):
        encodings.without_options("learned kept")


def test_any_other_combination():
    encoding = build("sinusoidal_absolute+learned_absolute+learned_relative")
    params = encoding.init(jax.random.key(0))
    assert set(params) == {"learned_absolute", "learned_relative"}
    total = embedded(encoding, params, range(5))
    alone = [embedded(encodings.PositionEncoding((p,)), params, range(5)) for p in encoding.parts]
    np.testing.assert_allclose(total, sum(alone), rtol=1e-6)


def test_missing_parameters_are_named():
    encoding = build("learned_absolute+learned_relative")
    for params, message in (
        ({"learned_absolute": {"table": 0}}, "of learned_relative; got learned_absolute"),
        ({"learned_absolute": {}}, "learned_absolute/table, learned_relative"),
        ({"table": 0}, "of learned_absolute, learned_relative; got table"),
    ):
        with pytest.raises(ValueError, match=message):
            encoding.split(params)
    assert build("none").split(None) == []


def test_positions_that_do_not_fit():
    encoding = build("sinusoidal_absolute")
    x = jnp.zeros((1, 5, 8))
    for positions, message in (
        (range(4), "each of 5 tokens .*got 4"),
        (np.zeros((2, 3)), "each of 5 tokens .*got 3"),
        (range(0, 10, 2), "consecutive"),
        (np.zeros((1, 1, 5)), r"positions must be \[L\] or \[B, L\], got \[1, 1, 5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            encodings.embed(encoding, {}, x, positions)


# --- encodings by layer ---------------------------------------------------------------------------

BY_LAYER = {
    "learned_absolute": {"learned_absolute/table": (16, 8)},
    "cycle(learned_relative(clip=2), none)": {"cycle_0/learned_relative/table": (5, 4)},
    "learned_absolute+cycle(learned_relative(clip=2), none, learned_relative(clip=2))": {
        "cycle_0/learned_relative/table": (5, 4),
        "learned_absolute/table": (16, 8),
    },
    "per_layer(learnable_sinusoidal_relative, none)": {
        "layer_0/learnable_sinusoidal_relative/frequencies": (2,),
        "layer_2/learnable_sinusoidal_relative/frequencies": (2,),
    },
}


@pytest.mark.parametrize("name", BY_LAYER)
def test_parameters_by_layer(name):
    encoding = build(name)
    assert encoding.name == name
    params = encoding.init(jax.random.key(0), 4)
    shapes = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    assert shapes == BY_LAYER[name]
    assert encodings.parameter_count(encoding, 4) == sum(map(math.prod, shapes.values()))
    bound = encoding.bind(params)
    assert {place for place, (_, values) in bound.items() if values} == {
        path.rpartition("/")[0] for path in shapes
    }
    for layer in range(4):
        encoding.layer(layer).split(encoding.layer_params(params, layer))  # None is missing.
    marks = jax.tree_util.tree_leaves_with_path(encoding.frequency_mask(params))
    assert all(mark == (path[-1].key == "frequencies") for path, mark in marks)


def test_encodings_by_layer_in_python():
    far, none = encodings.tisa(num_heads=2), encodings.none()
    near = far + encodings.window(reach=2)
    name = "tisa+window(reach=2)"
    assert encodings.cycle(far, near, near) == build(f"cycle(tisa, {name}, {name})")
    bias = encodings.alibi(num_heads=2)
    both = bias + encodings.per_layer(far, none)
    assert both.name == "alibi+per_layer(tisa, none)" and both == build(both.name)
    assert both.layer(2) == bias + far and both.layer(1) == bias
    assert far.layer(5) is far and far == encodings.tisa(num_heads=2)
    with pytest.raises(ValueError, match=r"layers of alibi\+per_layer\(.*\) differ"):
        both.init(jax.random.key(0))
    with pytest.raises(ValueError, match="cannot contain each other"):
        encodings.cycle(both)
    with pytest.raises(ValueError, match="more than one"):
        both + both


def test_layers_that_cannot_be():
    for name, message in {
        "cycle(none)+per_layer(none)": "more than one",
        "cycle(cycle(none))": "inside another encoding",
        "cycle()": "one or more",
        "learned_relative+cycle(learned_relative)": "Use each family once",
    }.items():
        with pytest.raises(ValueError, match=message):
            build(name)


# --- learned tables -------------------------------------------------------------------------------


def test_a_position_past_a_learned_table():
    encoding = build("learned_absolute")
    params = encoding.init(jax.random.key(0))
    for positions in (range(17), np.arange(17), jnp.arange(17), np.array([-1])):
        with pytest.raises(ValueError, match=r"length 16 .*sinusoidal.*resize_table"):
            embedded(encoding, params, positions)
    with pytest.raises(ValueError, match="must be integers for a learned table, got float64"):
        embedded(encoding, params, np.array([0.5]))
    # Inside jit the values are not known: NaN, never a wrong row.
    out = jax.jit(lambda x: embedded(encoding, params, x))(jnp.array([15, 16]))
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


def test_look_up_by_slice_and_by_row_agree():
    table = jnp.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(encodings.look_up(table, np.array([2, 3, 4])), table[2:5])
    np.testing.assert_array_equal(
        encodings.look_up(table, np.array([4, 2])), table[jnp.array([4, 2])]
    )
    two_rows = np.array([[0, 1], [3, 2]])
    np.testing.assert_array_equal(encodings.look_up(table, two_rows), table[two_rows])


def test_resize_table_by_hand():
    table = jnp.array([[0.0], [2.0], [6.0]])
    resize = lambda n, how: encodings.resize_table(table, n, how)[:, 0].tolist()
    assert resize(2, "truncate") == [0, 2]
    assert resize(7, "repeat") == [0, 2, 6, 0, 2, 6, 0]
    assert resize(5, "interpolate") == [0, 1, 2, 4, 6]
    assert resize(3, "interpolate") == [0, 2, 6]
    with pytest.raises(ValueError, match="cannot lengthen a table of 3 rows to 4"):
        resize(4, "truncate")
    with pytest.raises(ValueError, match="method must be one of .*got 'stretch'"):
        resize(4, "stretch")
    with pytest.raises(ValueError, match="got 0"):
        resize(0, "repeat")


# --- relative offsets -----------------------------------------------------------------------------


def test_the_sign_of_offsets():
    """Positive to the right: query 0 sees key 2 at offset +2."""
    expected = [[0, 1, 2], [-1, 0, 1]]
    assert encodings.offsets(np.arange(2), np.arange(3)).tolist() == expected

    encoding = build("learned_relative")
    table = jnp.arange(7.0)[:, None] * jnp.ones((1, 4))  # Row r holds r; offset m is row m + 3.
    params = {"learned_relative": {"table": table}}
    q, k = jnp.ones((1, 2, 1, 4)), jnp.zeros((1, 5, 1, 4))
    context = encodings.Context(range(2), range(5))
    got = attention_logits(q, k, encoding, params, context)[0, 0] * 4**0.5 / 4
    assert got.tolist() == [[3, 4, 5, 6, 6], [2, 3, 4, 5, 6]]  # Clipped at +3.


@pytest.mark.parametrize("name", [n for n in encodings.PAPER if "relative" in n])
def test_relative_terms_ignore_a_common_shift(name):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    q = jax.random.normal(jax.random.key(1), (2, 9, 2, 4))
    logits = lambda at: attention_logits(q, q, encoding, params, encodings.Context(at))
    np.testing.assert_allclose(logits(range(9)), logits(range(100, 109)), atol=1e-4)


def test_no_flax_in_encodings_and_attention():
    import subprocess
    import sys

    code = "import sys, pe_jax.encodings, pe_jax.attention; assert 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
