"""Implementations of attention, chosen by platform, length and encoding or named by the caller.

They give the same numbers, gradients and dropped weights, and differ in time and memory.
docs/measurements.md has the measurements behind the choices.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from pe_jax.encodings.positions import AttentionWindow, check_length
from pe_jax.shapes import Size


class Implementation(NamedTuple):
    """A way of computing attention."""

    naive: bool = False  # As the formula stands, see `naive`; else as `xla` has it, where it can.
    block: int | None = None  # Queries at a time, for memory linear in the length; None takes all.
    kernel: bool = False  # Runs as the TPU kernel where that supports the encoding.
    cudnn: bool = False  # Runs as cuDNN's flash attention where that supports the input.


IMPLEMENTATIONS: dict[str, Implementation] = {
    "naive": Implementation(naive=True),
    "table": Implementation(),
    "fused": Implementation(block=128),
    # Passed as an `Implementation` instead of by name, these two fall back to `"fused"`.
    "kernel": Implementation(block=128, kernel=True),
    "cudnn": Implementation(block=128, cudnn=True),
}

# For each platform, names up to a number of keys. The last one holds for all longer inputs.
_AUTO: dict[str, tuple[tuple[float, str], ...]] = {
    "cpu": ((511, "table"), (float("inf"), "fused")),
    # Below 128 keys the kernel would work on padding.
    "tpu": ((127, "table"), (float("inf"), "kernel")),
    # Has no rotation of rows by different numbers of lanes, which the kernel is built on.
    "tpu v4": ((1024, "table"), (float("inf"), "fused")),
    # "cudnn" is the fastest where it can compute the input, but jax 0.11.2 cannot vmap it, as seeds
    # are.
    "gpu": ((1024, "table"), (float("inf"), "fused")),
}
# With vectors of the offset at ranges, "naive" up to so many keys.
_NAIVE = {"cpu": 64, "tpu": 127, "tpu v4": 256, "gpu": 256}
# A window is run in blocks, which skip what it does not reach, from so many times its keys on.
_WINDOWS = {"cpu": 1, "tpu": 3, "tpu v4": 3, "gpu": 3}

PLATFORMS = tuple(_AUTO)


def choose(
    implementation: str | Implementation,
    keys: Size,
    platform: str | None = None,
    window: AttentionWindow | None = None,
    vectors: bool = False,
) -> Implementation:
    """Return an implementation by name, the best one here for `"auto"`; or the one given.

    Args:
      keys: their number. `"auto"` takes `"table"` for a symbolic one.
      platform: what the program is compiled for, `"cpu"`, `"gpu"`, `"tpu"` or a generation such as
        `"tpu v4"`; default: where this process runs.
      window: how far queries attend, where there is a limit.
      vectors: vectors of the offset are added, at positions that are ranges.

    Raises:
      ValueError: for an unknown implementation, or one in blocks with a symbolic number of keys.
    """
    if isinstance(implementation, Implementation):
        return implementation
    if implementation == "auto":
        if not isinstance(keys, int):
            return IMPLEMENTATIONS["table"]
        if not platform:
            kind = jax.devices()[0].device_kind.lower()
            platform = kind if kind in _AUTO else jax.default_backend()
        if platform not in _AUTO:
            platform = "tpu" if platform.startswith("tpu") else "gpu"
        if vectors and keys <= _NAIVE[platform]:
            return IMPLEMENTATIONS["naive"]
        chosen = next(name for longest, name in _AUTO[platform] if keys <= longest)
        block = IMPLEMENTATIONS["fused"].block
        span = None if window is None else window.span
        if span is not None and block and keys >= _WINDOWS[platform] * (block + span):
            return IMPLEMENTATIONS[chosen]._replace(block=block)
        return IMPLEMENTATIONS[chosen]
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be one of auto, {', '.join(IMPLEMENTATIONS)}; "
            f"got {implementation!r}."
        )
    if IMPLEMENTATIONS[implementation].block:
        check_length(keys, f"implementation={implementation!r}")
    return IMPLEMENTATIONS[implementation]
