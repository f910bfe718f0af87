"""Sweeps: one compiled program over thousands of settings, on all devices, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.stages import Compiled
from jaxtyping import PyTree

from pe_jax.common.errors import former_arguments
from pe_jax.common.shapes import Array

# Bytes per device: on a CPU chunks that fit its caches are twice as fast.
MEMORY = 2**24


@former_arguments(fn="It is function now.")
def sweep(
    function: Callable[[PyTree], PyTree],
    settings: PyTree,
    *,
    memory: int = MEMORY,
    devices: list[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> PyTree:
    """Evaluate `vmap(function)` over many settings, compiled once and run in chunks.

    If sizes differ between settings, pad them and mask, as by the metrics' `length`.

    Args:
      function: a pure function of a setting; a setting and the results are pytrees of arrays.
      settings: the same pytree with a leading axis N on every array (seeds as integers).
      memory: bytes that a chunk may take on a device, by the compiler's memory analysis; a chunk
        has at least one setting per device.
      devices: default all devices of this host; settings are sharded over them.
      progress: called after each chunk with the number of its settings.

    Returns:
      The pytree of results, NumPy arrays with leading axis N.

    Raises:
      ValueError: if the settings' leading axes differ, or there are none.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import properties
      >>> offsets = jnp.arange(64)
      >>> def turn(base):
      ...     frequencies = base ** (-jnp.arange(32) / 32)
      ...     return properties.turning_point(properties.psi(frequencies, offsets))
      >>> properties.sweep(turn, jnp.array([100.0, 10_000.0]))
      array([11,  5], dtype=int32)
    """
    run = compile_sweep(function, settings, memory=memory, devices=devices)
    return run(settings, progress)


@former_arguments(fn="It is function now.")
def compile_sweep(
    function: Callable[[PyTree], PyTree],
    settings: PyTree,
    *,
    memory: int = MEMORY,
    devices: list[jax.Device] | None = None,
) -> Callable[..., PyTree]:
    """Return `run(settings, progress=None) -> results` of `sweep`, compiled for the shapes of
    `settings`.

    For repeated sweeps of one function; arguments are those of `sweep`.

    Raises:
      ValueError: if the settings' leading axes differ, or there are none.
    """
    if devices is None:
        devices = jax.local_devices()
    mesh = jax.make_mesh(
        (len(devices),), ("settings",), devices=devices, axis_types=(AxisType.Auto,)
    )
    sharding = NamedSharding(mesh, PartitionSpec("settings"))

    def compiled(size: int, sharding: NamedSharding | None = None) -> Compiled:
        def shape(x: Array) -> jax.ShapeDtypeStruct:
            dtype = jnp.asarray(x[:0]).dtype
            return jax.ShapeDtypeStruct((size, *np.shape(x)[1:]), dtype)

        mapped = jax.jit(
            jax.vmap(function), in_shardings=sharding, out_shardings=sharding
        )
        return mapped.lower(jax.tree.map(shape, settings)).compile()

    per_device = math.ceil(_count(settings) / len(devices))
    chunks = math.ceil(per_device / _settings_at_once(compiled, memory, per_device))
    # Of equal size, so that none is nearly empty.
    chunk = math.ceil(per_device / chunks) * len(devices)
    program = compiled(chunk, sharding)

    def run(settings: PyTree, progress: Callable[[int], None] | None = None) -> PyTree:
        settings = jax.tree.map(np.asarray, settings)
        count = _count(settings)
        results: list[PyTree] = []

        def fetch(chunk_results: PyTree) -> None:
            size = min(chunk, count - len(results) * chunk)
            results.append(jax.tree.map(lambda x: np.asarray(x)[:size], chunk_results))
            if progress is not None:
                progress(size)

        running = None
        for start in range(0, count, chunk):
            # The last chunk is padded with its first setting, so that all have the compiled shape.
            rows = np.arange(start, start + chunk)
            rows = np.where(rows < count, rows, start)
            part = jax.tree.map(lambda x: x[rows], settings)  # noqa: B023
            previous = running
            running = program(jax.device_put(part, sharding))
            if previous is not None:  # It is fetched while the next chunk runs.
                fetch(previous)
        fetch(running)
        return jax.tree.map(lambda *parts: np.concatenate(parts), *results)

    return run


def _count(settings: PyTree) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(settings)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            "All arrays of the settings must have the same leading axis, one entry per setting; "
            f"got leading axes {sorted(sizes)}."
        )
    return sizes.pop()[0]


def _settings_at_once(
    compiled: Callable[[int], Compiled], memory: int, most: int
) -> int:
    """Return how many settings fit `memory`, by the compiler's analysis of a small program."""
    trial = min(4, most)
    used = compiled(trial).memory_analysis()
    if used is None:  # The backend has no memory analysis.
        return most
    in_bytes = (
        used.temp_size_in_bytes
        + used.argument_size_in_bytes
        + used.output_size_in_bytes
    )
    bytes_per_setting = max(in_bytes / trial, 1)
    return int(np.clip(memory // bytes_per_setting, 1, most))
