"""A sink takes a share of the weights."""

import numpy as np
from helpers.compiled import attention
from helpers.small_encodings import build


def test_a_sink_takes_a_share_of_the_weights():
    """exp(log 3) beside three keys of logit 0, in the first head; exp(0) in the second."""
    q, v = np.zeros((1, 3, 2, 8), np.float32), np.ones((1, 3, 2, 8), np.float32)
    params = {"sink": {"logit": np.array([np.log(3.0), 0.0], np.float32)}}
    out = attention(q, q, v, build("sink"), params)
    np.testing.assert_allclose(out[0, :, 0], 0.5, rtol=1e-6)
    np.testing.assert_allclose(out[0, :, 1], 0.75, rtol=1e-6)
    out = attention(q, q, v, build("sink(learnable=False)"))
    np.testing.assert_allclose(out, 0.75, rtol=1e-6)
