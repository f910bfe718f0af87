"""Learned tables: rows, ends, lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_encodings import build_clipped, embedded

from pe_jax import encodings
from pe_jax.encodings.tables import look_up


def test_a_position_past_a_learned_table():
    encoding = build_clipped("learned_absolute")
    params = encoding.init(jax.random.key(0))
    for positions in (range(17), np.arange(17), jnp.arange(17), np.array([-1])):
        with pytest.raises(ValueError, match=r"length 16 .*sinusoidal.*resize_table"):
            embedded(encoding, params, positions)
    with pytest.raises(
        ValueError, match="must be integers for a learned table, got float64"
    ):
        embedded(encoding, params, np.array([0.5]))
    # Inside jit the values are not known: NaN, never a wrong row.
    out = jax.jit(lambda x: embedded(encoding, params, x))(jnp.array([15, 16]))
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


def test_look_up_by_slice_and_by_row_agree():
    table = jnp.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(look_up(table, np.array([2, 3, 4])), table[2:5])
    np.testing.assert_array_equal(
        look_up(table, np.array([4, 2])), table[jnp.array([4, 2])]
    )
    two_rows = np.array([[0, 1], [3, 2]])
    np.testing.assert_array_equal(look_up(table, two_rows), table[two_rows])


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
