"""Implementations that need a device raise an error elsewhere, unless they are emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pe_jax.attention.implementations import UnsupportedError, target_platform
from pe_jax.common.shapes import Array

_emulated = False


@contextlib.contextmanager
def emulated_devices() -> Iterator[None]:
    """Run "kernel" in Pallas' interpret mode and "cudnn" as XLA's attention, on any device, in
    programs that are traced inside of a `with` statement. Slow: for tests of their numbers."""
    global _emulated
    before = _emulated
    _emulated = True
    try:
        yield
    finally:
        _emulated = before


def are_emulated() -> bool:
    """Return whether programs that are traced now run on any device."""
    return _emulated


def check_gpu() -> None:
    """Check that programs that are traced now are for a GPU: JAX cannot trace calls of cuDNN
    without one.

    Raises:
      UnsupportedError: for another device.
    """
    platform = target_platform()
    if platform not in ("gpu", "cuda"):
        raise _unsupported("cudnn", "an NVIDIA GPU", platform)


# What a program is lowered for is not known while it is traced: `jax.export` takes any platform. So
# the program contains an identity whose lowering is registered for TPUs alone.
tpu_p = Primitive("on_tpu")


def on_tpu(x: Array) -> jax.Array:
    """Return `x` in a program for TPUs. Lowering it for another device is an UnsupportedError."""
    return tpu_p.bind(x)


def _refuse(context: mlir.LoweringRuleContext, x: Any) -> NoReturn:
    others = [name for name in context.module_context.platforms if name != "tpu"]
    raise _unsupported("kernel", "a TPU", " and ".join(others))


def _unsupported(implementation: str, device: str, platform: str) -> UnsupportedError:
    return UnsupportedError(
        f"implementation={implementation!r} needs {device}, but this program is compiled for "
        f"{platform}. Use 'auto', or 'naive', which runs on every device."
    )


tpu_p.def_impl(jax.jit(tpu_p.bind))
tpu_p.def_abstract_eval(lambda x: x)
ad.deflinear(tpu_p, lambda cotangent: [cotangent])
batching.primitive_batchers[tpu_p] = lambda x, axes: (tpu_p.bind(*x), *axes)
mlir.register_lowering(tpu_p, _refuse)
mlir.register_lowering(tpu_p, lambda context, x: [x], platform="tpu")
