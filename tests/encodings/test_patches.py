"""Vectors of the patches of an image."""

import jax
import numpy as np
import pytest
from helpers.small_encodings import build, grid

from pe_jax import encodings


def test_sinusoids_of_an_image_count_columns_first():
    encoding = build("sinusoidal_2d(width=3, cls=True)")
    (part,) = encoding.parts
    found = np.asarray(part.metadata.vectors({}, np.arange(7)))
    assert found.shape == (7, 16) and not found[0].any()
    w = np.array([1, 0.1, 0.01, 0.001])
    column, row = 2, 1  # Patch 5 of three columns is the sixth token after [CLS].
    expected = [
        np.sin(w * column),
        np.cos(w * column),
        np.sin(w * row),
        np.cos(w * row),
    ]
    np.testing.assert_allclose(found[6], np.concatenate(expected), atol=1e-6)
    pairs = build("sinusoidal_2d(cls=True)").parts[0].metadata.vectors
    with_cls = np.concatenate([[[-1, -1]], grid(2, 3)])
    np.testing.assert_allclose(pairs({}, with_cls), found, atol=1e-6)
    end = (
        build("sinusoidal_2d(width=3, end=True)")
        .parts[0]
        .metadata.vectors({}, np.arange(3))
    )
    w = 10_000.0 ** (-np.arange(4) / 3)
    np.testing.assert_allclose(end[1, :4], np.sin(w), atol=1e-6)
    with pytest.raises(ValueError, match="multiple of 4 .* got 18"):
        build("sinusoidal_2d", hidden_size=18)
    with pytest.raises(ValueError, match="at least 1.*got 0"):
        build("sinusoidal_2d(width=0)")


def test_learned_tables_of_an_image():
    encoding = build("learned_2d(height=2, width=3, cls=True)")
    params = jax.jit(encoding.init)(jax.random.key(0))["learned_2d"]
    params = jax.tree.map(np.asarray, params)
    assert params["table"].shape == (2, 3, 16) and encoding.max_length == 7
    vectors = encoding.parts[0].metadata.vectors
    np.testing.assert_array_equal(vectors(params, np.array([0, 6])),
                                  [params["cls"], params["table"][1, 2]])  # fmt: skip
    with pytest.raises(ValueError, match="table of length 7"):
        encodings.embed(
            np.zeros((1, 8, 16), np.float32), encoding, {"learned_2d": params}
        )
    # Of another size: what the docstring says.
    larger = build("learned_2d(height=4, width=6, cls=True)")
    resized = {
        **params,
        "table": jax.image.resize(params["table"], (4, 6, 16), "bilinear"),
    }
    x = encodings.embed(
        np.zeros((1, 25, 16), np.float32), larger, {"learned_2d": resized}
    )
    np.testing.assert_array_equal(x[0, 0], params["cls"])


def test_factorized_tables_of_an_image():
    encoding = build("learned_2d(height=2, width=3, factorized=True)")
    params = jax.jit(encoding.init)(jax.random.key(0))["learned_2d"]
    params = jax.tree.map(np.asarray, params)
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "columns": (3, 8),
        "rows": (2, 8),
    }
    found = np.asarray(
        encoding.parts[0].metadata.vectors(params, np.arange(6))
    ).reshape(2, 3, 16)
    for row in range(2):
        for column in range(3):
            expected = np.append(params["columns"][column], params["rows"][row])
            np.testing.assert_array_equal(found[row, column], expected)
    with pytest.raises(
        ValueError, match="hidden_size must be even with factorized=True, got 15"
    ):
        build("learned_2d(height=2, width=3, factorized=True)", hidden_size=15)
