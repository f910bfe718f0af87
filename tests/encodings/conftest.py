"""PyTorch and transformers 4, for the tests that compare with them."""

import pytest


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


@pytest.fixture
def transformers():
    """Version 4: version 5 has neither the relative types of BERT nor NEZHA."""
    module = pytest.importorskip("transformers")
    if int(module.__version__.partition(".")[0]) > 4:
        pytest.skip(
            "transformers 5 has neither BERT's relative_key nor NEZHA; needs version 4"
        )
    return module
