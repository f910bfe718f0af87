"""Position vectors, names, parameters, composition: against values a reader can check by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import encodings

SIZES = dict(hidden_size=8, head_size=4, num_heads=2, max_length=16, clip=3)


def build(name, **changes):
    return encodings.from_name(name, **{**SIZES, **changes})


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
    with pytest.raises(ValueError, match=f"even, positive dimension, got {dim}"):
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
        small, full = make(8, scale=0.5), make(8)
        params = full.init(jax.random.key(0))
        x = np.arange(5)
        np.testing.assert_allclose(small.embed(params, x), full.embed(params, x) / 2, rtol=1e-6)
        np.testing.assert_array_equal(small.vectors(params, x), small.embed(params, x))
    named = build("sinusoidal_absolute", sinusoid_scale=0.5)
    np.testing.assert_array_equal(
        named.embed({}, x), encodings.sinusoidal_absolute(8, scale=0.5).embed({}, x)
    )


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
    assert encoding.name == name
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
        start = learnable.init(jax.random.key(0))
        np.testing.assert_array_equal(fixed.vectors({}, x), learnable.vectors(start, x))


def test_separate_tables_for_keys_and_values():
    encoding = encodings.learned_relative(4, clip=3, separate=True)
    params = encoding.init(jax.random.key(0))
    assert encodings.parameter_count(encoding) == 2 * 7 * 4
    assert not np.allclose(params["key"]["table"], params["value"]["table"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learned_absolut", "Did you mean learned_absolute"),
        ("learned_absolute+relative", "'relative' in 'learned_absolute\\+relative'"),
        ("", "Unknown position encoding ''"),
        ("learned_relative+learned_relative", "may occur once"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        build(name)


def test_any_other_combination():
    encoding = build("sinusoidal_absolute+learned_absolute+learned_relative")
    params = encoding.init(jax.random.key(0))
    assert set(params) == {"learned_absolute", "learned_relative"}
    total = encoding.embed(params, np.arange(5))
    parts = [p.embed(q, np.arange(5)) for p, q in encodings.split(encoding, params) if p.embed]
    np.testing.assert_allclose(total, parts[0] + parts[1], rtol=1e-6)


def test_clip_must_tell_something_apart():
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        build("learned_relative", clip=0)


# --- learned tables -------------------------------------------------------------------------------


def test_a_position_past_a_learned_table():
    encoding = build("learned_absolute")
    params = encoding.init(jax.random.key(0))
    for positions in (np.arange(17), jnp.arange(17), np.array([-1])):
        with pytest.raises(ValueError, match=r"length 16 .*sinusoidal.*resize_table"):
            encoding.embed(params, positions)
    # Inside jit the values are not known: NaN, never a wrong row.
    out = jax.jit(encoding.embed)(params, jnp.array([15, 16]))
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
    with pytest.raises(ValueError, match="Cannot truncate a table of 3 rows to 4"):
        resize(4, "truncate")
    with pytest.raises(ValueError, match="Unknown resize method 'stretch'"):
        resize(4, "stretch")
    with pytest.raises(ValueError, match="length=0"):
        resize(0, "repeat")


# --- relative offsets -----------------------------------------------------------------------------


def test_the_sign_of_offsets():
    """Positive to the right: query 0 sees key 2 at offset +2."""
    expected = [[0, 1, 2], [-1, 0, 1]]
    assert encodings.offsets(np.arange(2), np.arange(3)).tolist() == expected

    encoding = build("learned_relative")
    table = jnp.arange(7.0)[:, None] * jnp.ones((1, 4))  # Row r holds r; offset m is row m + 3.
    q = jnp.ones((1, 2, 1, 4))
    got = encoding.logits({"table": table}, q, q, np.arange(2), np.arange(5))[0, 0] / 4
    assert got.tolist() == [[3, 4, 5, 6, 6], [2, 3, 4, 5, 6]]  # Clipped at +3.


@pytest.mark.parametrize("name", [n for n in encodings.PAPER if "relative" in n])
def test_relative_terms_ignore_a_common_shift(name):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    q = jax.random.normal(jax.random.key(1), (2, 9, 2, 4))
    here = encoding.logits(params, q, q, np.arange(9), np.arange(9))
    there = encoding.logits(params, q, q, np.arange(9) + 100, np.arange(9) + 100)
    np.testing.assert_allclose(here, there, atol=1e-4)


def test_no_flax_in_encodings_and_attention():
    import subprocess
    import sys

    code = "import sys, pe_jax.encodings, pe_jax.attention; assert 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
