"""SHAPE, CAPE and interpolation: the positions that a part sees."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build, logits_at

from pe_jax import encodings
from pe_jax.encodings.part import HookContext, apply_positions
from pe_jax.testing import CHECKS, Subject


def seen(name, q, k, rng=None, rows=3):
    """What a part sees: positions of queries, of keys, of the input."""
    (part,) = build(name).parts
    here = apply_positions(
        part, HookContext(positions_q=q, positions_k=k, position_rng=rng), rows
    )
    at_input = apply_positions(
        part, HookContext(positions_q=k, positions_k=k, position_rng=rng), rows
    )
    return here.positions_q, here.positions_k, at_input.positions_q


def drawn(*args, **options):
    """What is `seen` with a key, from one program."""
    return [np.asarray(x) for x in jax.jit(lambda: seen(*args, **options))()]


@pytest.mark.parametrize("name", ["shifted(rope)", "cape(rope)"])
def test_without_a_key_positions_stay_and_keep_the_fast_implementations(name):
    assert seen(name, range(2, 5), range(5)) == (range(2, 5), range(5), range(5))


def test_shape_shifts_each_sequence_by_one_number():
    key = jax.random.key(5)
    q, k, at_input = drawn(
        "shifted(rope, max_shift=40)", range(4, 5), range(5), key, rows=50
    )
    shift = k[:, :1]
    np.testing.assert_array_equal(k, np.arange(5) + shift)
    np.testing.assert_array_equal(q, 4 + shift)
    np.testing.assert_array_equal(at_input, k)
    assert shift.min() >= 0 and 35 < shift.max() <= 40 and len(np.unique(shift)) > 20
    on_axes = drawn(
        "shifted(rope_axial)", np.ones((2, 2), int), np.ones((2, 2), int), key
    )[0]
    assert on_axes.shape == (3, 2, 2)


def test_shape_stays_within_a_learned_table():
    at = np.tile(np.arange(9), (50, 1))
    for jit in (lambda f: f, jax.jit):
        run = jit(
            lambda at: seen(
                "shifted(learned_absolute)", at, at, jax.random.key(1), rows=50
            )[1]
        )
        assert set(np.unique(run(at)[:, 0])) == {0, 1, 2, 3}  # The table has 12 rows.


def test_cape_shifts_jitters_and_scales():
    name = "cape(rope, max_global_shift=7, max_local_shift=0.5, max_global_scaling=1.5)"
    key = jax.random.key(2)
    q, k, at_input = drawn(name, range(6, 8), range(8), key, rows=200)
    np.testing.assert_array_equal(at_input, k)
    np.testing.assert_array_equal(
        q, k[:, 6:]
    )  # A cached query is where it was among the keys.
    steps = np.diff(k, axis=1)
    assert steps.min() >= 0  # The order is kept,
    scale = (k[:, -1] - k[:, 0]) / 7
    assert 0.55 < scale.min() < 0.8 and 1.25 < scale.max() < 1.75
    assert steps.std() > 0.3 and 5 < np.abs(k[:, 0]).max() < 7.5 * 1.5
    np.testing.assert_allclose(k.mean(0) - k.mean(), np.arange(8) - 3.5, atol=0.4)
    repeated = np.array([0, 1, 0, 1])
    again = drawn(name, repeated, repeated, key)[0]
    np.testing.assert_array_equal(
        again[:, :2], again[:, 2:]
    )  # One position, one jitter.


def test_cape_centres_what_is_not_padding():
    at = np.array([[0, 1, 2, 3, 0, 0], [7, 8, 9, 10, 11, 12]])
    q, k, _ = drawn("cape(rope, centered=True)", at[:, :1], at, rows=2)
    np.testing.assert_array_equal(k, at - np.array([[1.5], [9.5]]))
    np.testing.assert_array_equal(q, k[:, :1])
    both = drawn(
        "cape(rope_axial, centered=True)", at[0, :, None] * [[1, 2]], np.eye(2)
    )
    np.testing.assert_array_equal(both[0][3], [2.5, 5.5])
    CHECKS["shift"](
        Subject(
            encodings.cape(encodings.sinusoidal_absolute(hidden_size=8), centered=True)
        )
    )


@pytest.mark.parametrize("name", ["shifted(sinusoidal_absolute)", "cape(rope)"])
def test_what_is_drawn_depends_on_the_key_alone(name):
    sizes = dict(hidden_size=8, head_size=4, num_heads=2, max_length=16)
    assert CHECKS["draws"](Subject(encodings.from_name(name, **sizes))) == "ok"


def test_interpolation_of_rope_is_linear_scaling():
    at = np.array([0, 9, 2])
    found = logits_at("interpolated(rope, factor=8)", at)
    np.testing.assert_allclose(found, logits_at("rope_linear(factor=8)", at), atol=1e-5)
    cards = [
        build(f"{name}, factor=8)").parts[0].metadata
        for name in ("interpolated(rope", "rope_linear(base=10000")
    ]
    np.testing.assert_allclose(
        *(metadata.frequencies({}).ravel() for metadata in cards), rtol=1e-6
    )
    vectors = (
        build("interpolated(sinusoidal_absolute, factor=2)").parts[0].metadata.vectors
    )
    np.testing.assert_array_equal(
        vectors({}, np.array([6])),
        encodings.sinusoid(np.array([3]), encodings.default_frequencies(16)),
    )
    nested = seen(
        "interpolated(shifted(rope, max_shift=0), factor=4)", at, at, jax.random.key(0)
    )[0]
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
    with pytest.raises(
        ValueError, match="max_global_scaling must be at least 1, got 0.5"
    ):
        build("cape(rope, max_global_scaling=0.5)")
