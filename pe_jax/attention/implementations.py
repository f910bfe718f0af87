"""Names of the implementations of attention, and the one that `"auto"` takes.

They give the same numbers, gradients and dropped weights, and differ in time and memory.
docs/measurements.md has the measurements behind the choices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from pe_jax.common.shapes import Size
from pe_jax.encodings.positions import AttentionWindow

NAMES = ("naive", "table", "fused", "kernel", "cudnn")
RENAMED = {"buckets": "table"}  # Names that an implementation had before.
KNOWN_LENGTHS = ("fused", "kernel", "cudnn")  # Do not take symbolic lengths.

# Queries of a block of "fused".
block_size = 128

# `"auto"` takes "table" up to so many keys, and "fused" for more.
_TABLE = {"cpu": 511, "accelerator": 1024}
# With vectors of the offset at ranges, "naive" up to so many keys.
_NAIVE = {"cpu": 64, "accelerator": 256}
# A window is run in blocks, which skip what it does not reach, from so many times its keys on.
_WINDOWS = {"cpu": 1, "accelerator": 3}
# With fewer keys the kernel would work on padding.
_KERNEL_KEYS = 128

_kernel_allowed = False


class UnsupportedError(ValueError):
    """An implementation that was given by name does not support the inputs."""


def check_name(implementation: object) -> None:
    """Check a name that a caller gave.

    Raises:
      ValueError: if this is not the name of an implementation, nor `"auto"`.
    """
    names = ("auto", *NAMES)
    if isinstance(implementation, str) and implementation in names:
        return
    hint = ""
    if isinstance(implementation, str) and implementation in RENAMED:
        hint = f" It is now called {RENAMED[implementation]!r}."
    raise ValueError(
        f"implementation must be one of {', '.join(names)}; got {implementation!r}.{hint}"
    )


def target_platform() -> str:
    """Return the platform that JAX traces for: of the mesh that is set, else of the default device.
    A program that is lowered for another one, as by `jax.export`, does not know it yet."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None:
        return device.platform
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    if default is None:
        return jax.default_backend()
    return default if isinstance(default, str) else default.platform


def choose(
    keys: Size, window: AttentionWindow | None = None, vectors: bool = False
) -> str:
    """Return what `"auto"` takes of "naive", "table" and "fused".

    Args:
      keys: their number. A symbolic one is computed by "table".
      window: how far queries attend, where there is a limit.
      vectors: vectors of the offset are added, at positions that are ranges.
    """
    if not isinstance(keys, int):
        return "table"  # Blocks need known lengths.
    kind = "cpu" if target_platform() == "cpu" else "accelerator"
    if vectors and keys <= _NAIVE[kind]:
        return "naive"  # Vectors of so few pairs take less time than their table.
    span = None if window is None else window.span
    if span is not None and keys >= _WINDOWS[kind] * (block_size + span):
        return "fused"  # Blocks skip the keys beyond the window.
    if keys <= _TABLE[kind]:
        return (
            "table"  # To save the weights takes less time than to compute them again.
        )
    return "fused"  # Its memory is linear in the length.


def auto_tries_kernel(keys: Size) -> bool:
    """Return whether `"auto"` takes the TPU kernel for inputs that it supports."""
    if not _kernel_allowed or target_platform() != "tpu":
        return False
    return isinstance(keys, int) and keys >= _KERNEL_KEYS


@contextlib.contextmanager
def kernel_in_auto() -> Iterator[None]:
    """Let `"auto"` take the TPU kernel in programs that are traced inside of a `with` statement.

    No TPU has run the kernel yet, so `check_kernel` has to pass first.
    """
    global _kernel_allowed
    before = _kernel_allowed
    _kernel_allowed = True
    try:
        yield
    finally:
        _kernel_allowed = before


@contextlib.contextmanager
def queries_per_block(size: int) -> Iterator[None]:
    """Set the queries of a block of "fused": a test has several blocks of a few queries each."""
    global block_size
    before = block_size
    block_size = size
    try:
        yield
    finally:
        block_size = before
