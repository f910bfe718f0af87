"""The convolution over the last tokens."""

import jax
import numpy as np

from pe_jax.encodings import HookContext
from pe_jax.encodings.content.row_order import short_convolution


def test_a_convolution_starts_again_where_positions_do():
    x = np.array([1.0, 10, 100, 1000, 10000])[None, :, None].astype(np.float32)
    kernel = np.array([[3.0], [2.0], [1.0]], np.float32)

    def run(x, positions, document_ids=None):
        context = HookContext(
            positions_q=positions, positions_k=positions, document_ids=document_ids
        )
        return np.asarray(jax.jit(lambda x: short_convolution(x, kernel, context))(x))[
            0, :, 0
        ]

    np.testing.assert_array_equal(run(x, range(7, 12)), [1, 12, 123, 1230, 12300])
    documents = run(x, np.array([[0, 1, 0, 1, 2]]))
    np.testing.assert_array_equal(documents, [1, 12, 100, 1200, 12300])
    padded = run(x, np.array([0, 0, 0, 1, 2]))
    np.testing.assert_array_equal(padded, [1, 10, 100, 1200, 12300])
    np.testing.assert_array_equal(run(x[:, :1], range(1)), x[0, :1, 0])
    packed = run(x, np.array([[0, 1, 2, 7, 8]]), np.array([[1, 1, 2, 2, 2]]))
    np.testing.assert_array_equal(packed, [1, 12, 100, 1200, 12300])
