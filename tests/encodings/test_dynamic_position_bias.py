"""The dynamic position bias by hand, and against x-transformers."""

import numpy as np
import pytest
from helpers.small_encodings import bias_at, made_narrow
from helpers.torch_modules import array, bias_by_name, loud, needs

HEADS, SIZE, LENGTH = 3, 4, 11
CLOSE = {"atol": 1e-5, "rtol": 0}


def test_dynamic_position_bias_of_one_unit_by_hand():
    name = "dynamic_position_bias(width=1, depth=1, activation='relu', bound=4)"
    own = {
        "hidden_0": {"kernel": np.float32([[2.0]]), "bias": np.float32([0.5])},
        "out": {"kernel": np.float32([[1.0, -1.0]]), "bias": np.float32([0.0, 3.0])},
    }
    hidden = np.maximum(2 * np.array([0, np.log(4), -np.log(4)]) + 0.5, 0)
    out = hidden[:, None] * [1, -1] + [0, 3]
    np.testing.assert_allclose(
        bias_at(name, own, [0, 3, -3]), 4 / (1 + np.exp(-out)), rtol=1e-6
    )


def test_dynamic_position_bias_has_a_quarter_of_the_hidden_size():
    _, params = made_narrow("dynamic_position_bias", hidden_size=768, num_heads=12)
    assert {
        name: own["kernel"].shape
        for name, own in params["dynamic_position_bias"].items()
    } == {
        "hidden_0": (1, 192),
        "hidden_1": (192, 192),
        "out": (192, 12),
    }


@needs("torch", "transformers", "x_transformers")
@pytest.mark.parametrize("log_distance", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_dynamic_position_bias(torch, depth, log_distance):
    """Their offsets are i - j: the first kernel changes its sign."""
    from x_transformers.x_transformers import DynamicPositionBias

    module = DynamicPositionBias(5, heads=HEADS, depth=depth, log_distance=log_distance)
    theirs = loud(torch, module, 0.5)
    linear = [m for m in theirs.modules() if isinstance(m, torch.nn.Linear)]
    names = [*(f"hidden_{n}" for n in range(depth)), "out"]
    params = {
        name: {"kernel": array(layer.weight).T, "bias": array(layer.bias)}
        for name, layer in zip(names, linear, strict=True)
    }
    params["hidden_0"]["kernel"] *= -1
    name = f"dynamic_position_bias(width=5, depth={depth}, log_distance={log_distance})"
    ours = bias_by_name(name, {"dynamic_position_bias": params})[0]
    np.testing.assert_allclose(ours, array(theirs(LENGTH, LENGTH)), **CLOSE)
