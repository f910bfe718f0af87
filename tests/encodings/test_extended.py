"""Offsets of Self-Extend, ReRoPE and dual chunk attention, as their papers' figures have them."""

import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, draw

from pe_jax.encodings import Context


def offsets(name, positions):
    """The angle of each pair at the frequency 1, up to whole turns."""
    length = len(positions)
    q, k = np.zeros((2, 2, length, 2, 2), np.float32)
    q[..., 0] = k[0, ..., 0] = k[1, ..., 1] = 1  # The two rows have cosines and sines.
    logits = attention_logits(
        q, k, build(name, head_size=2), {}, Context(positions_q=positions)
    )
    return -np.arctan2(logits[1, 0], logits[0, 0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "self_extend(window=2, group=2)",
            [[0, 1, 2, 2, 3], [-1, 0, 1, 2, 3], [-2, -1, 0, 1, 2], [-2, -2, -1, 0, 1]],
        ),
        (
            "rerope(window=2)",
            [[0, 1, 2, 2, 2], [-1, 0, 1, 2, 2], [-2, -1, 0, 1, 2], [-2, -2, -1, 0, 1]],
        ),
        (
            "rerope(window=2, factor=2)",
            [
                [0, 1, 2, 2.5, 3],
                [-1, 0, 1, 2, 2.5],
                [-2, -1, 0, 1, 2],
                [-2.5, -2, -1, 0, 1],
            ],
        ),
        (
            "dual_chunk(chunk=2, original_length=4)",
            [[0, 1, 2, 3, 3], [-1, 0, 1, 2, 2], [-2, -1, 0, 1, 2], [-3, -2, -1, 0, 1]],
        ),
    ],
)
def test_offsets_of_the_first_tokens(name, expected):
    np.testing.assert_allclose(offsets(name, range(5))[:4], expected, atol=1e-5)


def test_dual_chunks_forget_how_far_other_chunks_are():
    found = offsets("dual_chunk(chunk=2, original_length=4)", range(7))[6]
    np.testing.assert_allclose(found, [-3, -2, -3, -2, -2, -1, 0], atol=1e-5)


@pytest.mark.parametrize("name", ["self_extend", "rerope", "dual_chunk"])
def test_short_inputs_have_plain_rope(name):
    """The defaults change nothing within the window."""
    q, k = draw(1, 6, 2, 8), draw(1, 6, 2, 8, seed=1)
    expected = attention_logits(q, k, build("rope"), {})
    np.testing.assert_allclose(
        attention_logits(q, k, build(name), {}), expected, atol=1e-6
    )


def test_a_whole_rotation_apart_is_exact_far_out():
    """Leaky offsets come from whole positions: those of 2^20 are as precise as the first."""
    near, far = (
        offsets("rerope(window=2, factor=3)", 2**20 * n + np.arange(6)) for n in (0, 1)
    )
    np.testing.assert_allclose(far, near, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("self_extend(window=0)", "window must be at least 1, got 0"),
        ("self_extend(group=0)", "group must be at least 1, got 0"),
        ("rerope(factor=0.5)", "factor must be at least 1, got 0.5"),
        (
            "dual_chunk(chunk=8, original_length=8)",
            "less than original_length, .* got 8 and 8",
        ),
    ],
)
def test_options_out_of_range(name, match):
    with pytest.raises(ValueError, match=match):
        build(name)
