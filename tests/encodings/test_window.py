"""Which keys windows and causality leave."""

import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import build, queries_keys

from pe_jax.encodings import AttentionWindow, Context

ALLOWED = {
    "window(max_distance=2)": lambda offset: abs(offset) <= 2,
    "causal": lambda offset: offset <= 0,
    "rope+causal+window(max_distance=3)": lambda offset: (offset <= 0) & (offset >= -3),
}


@pytest.mark.parametrize("positions", [range(9), np.arange(9)])
@pytest.mark.parametrize("name", ALLOWED)
def test_which_keys_a_query_attends_to(name, positions):
    q, k = queries_keys((1, 9, 1, 8))
    v = np.eye(9, dtype=np.float32)[None, :, None]
    out = attention(q, k, v, build(name), {}, Context(positions_q=positions))
    i = np.arange(9)
    np.testing.assert_array_equal(
        np.asarray(out)[0, :, 0] > 0, ALLOWED[name](i - i[:, None])
    )


def test_windows_join():
    assert AttentionWindow(left=5, right=None).within(
        AttentionWindow(left=None, right=0)
    ).within(AttentionWindow(left=3, right=3)) == AttentionWindow(left=3, right=0)
    assert build("window(max_distance=4)+rope").window == AttentionWindow(
        left=4, right=4
    )
    assert build("rope").window == AttentionWindow()
