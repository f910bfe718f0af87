"""The index, the share of the length and concatenation."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build, draw

from pe_jax import encodings


def added(name, length, params=None):
    encoding = build(name)
    params = jax.jit(encoding.init)(jax.random.key(0)) if params is None else params
    x = np.zeros((1, length, 16), np.float32)
    return np.asarray(
        jax.jit(
            lambda x: encodings.embed(
                x, encoding, params, encodings.Context(positions_q=range(length))
            )
        )(x)
    )


def test_the_index_has_no_bound_and_the_share_depends_on_the_length():
    (u,) = jax.tree.leaves(build("raw_index").init(jax.random.key(0)))
    np.testing.assert_allclose(added("raw_index", 300)[0, 299], 299 * u, rtol=1e-6)
    short, long = (added("normalized_index", n) for n in (5, 9))
    np.testing.assert_allclose(
        short[0, 4], long[0, 8], rtol=1e-6
    )  # Both the end of the input,
    np.testing.assert_allclose(
        long[0, 4], short[0, 4] / 2, rtol=1e-6
    )  # the same index is not.
    assert np.isfinite(added("normalized_index", 1)).all()


def test_concatenation_leaves_the_word_alone():
    encoding = build("sinusoidal_concatenated(share=0.3, scale=2)")
    x = draw(2, 3, 16)
    found = np.asarray(jax.jit(lambda x: encodings.embed(x, encoding, {}))(x))
    np.testing.assert_array_equal(found[..., :12], x[..., :12])
    own = 2 * encodings.sinusoid(np.arange(3), encodings.default_frequencies(4))
    np.testing.assert_allclose(found[..., 12:], [own, own], rtol=1e-6)
    np.testing.assert_allclose(
        encoding.parts[0].metadata.vectors({}, np.arange(3))[:, 12:], own
    )
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\), got 1"):
        build("sinusoidal_concatenated(share=1.0)")
