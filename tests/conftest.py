"""Tests run on the CPU, with four simulated devices and array shapes checked at run time."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

from jaxtyping import install_import_hook

# Every `Float[Array, "B L H d"]` of these rooms is checked on each call.
install_import_hook(
    ["pe_jax.encodings", "pe_jax.attention", "pe_jax.properties"], "beartype.beartype"
)

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def four_devices():
    assert jax.device_count() == 4
