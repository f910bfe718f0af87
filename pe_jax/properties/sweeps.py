"""Sweeps: one compiled program over thousands of settings, on all devices, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.stages import Compiled
from jaxtyping import PyTree

from pe_jax.common.errors import former_arguments

MEMORY = (
    2**24
)  # Bytes per device: on a CPU chunks that fit its caches are twice as fast.


@former_arguments(fn="It is function now.")
def sweep(
    function: Callable[[PyTree], PyTree],
    settings: PyTree,
    *,
    memory: int = MEMORY,
    devices: list[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> PyTree:
    """`vmap(function)` over many settings, compiled once and run in chunks.

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
    return compile_sweep(function, settings, memory=memory, devices=devices)(
        settings, progress
    )


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

    For repeated sweeps of one function; arguments and errors are those of `sweep`.
    """
    count = _count(settings)
    devices = jax.local_devices() if devices is None else devices
    mesh = jax.make_mesh(
        (len(devices),), ("settings",), devices=devices, axis_types=(AxisType.Auto,)
    )
    sharding = NamedSharding(mesh, PartitionSpec("settings"))

    def compiled(size: int, sharding: NamedSharding | None = None) -> Compiled:
        shape = lambda x: jax.ShapeDtypeStruct(
            (size, *np.shape(x)[1:]), jnp.asarray(x[:0]).dtype
        )
        shapes = jax.tree.map(shape, settings)
        mapped = jax.jit(
            jax.vmap(function), in_shardings=sharding, out_shardings=sharding
        )
        return mapped.lower(shapes).compile()

    per_device = -(-count // len(devices))
    chunks = -(-per_device // _settings_at_once(compiled, memory, most=per_device))
    chunk = -(-per_device // chunks) * len(
        devices
    )  # Of equal size, so that none is nearly empty.
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

        running = []
        for start in range(0, count, chunk):
            # The last chunk is padded with its first setting, so that all have the compiled shape.
            rows = np.arange(start, start + chunk)
            rows = np.where(rows < count, rows, start)
            part = jax.tree.map(lambda x: x[rows], settings)  # noqa: B023
            running.append(program(jax.device_put(part, sharding)))
            if (
                len(running) > 1
            ):  # One chunk is always dispatched before the previous is fetched.
                fetch(running.pop(0))
        fetch(running.pop())
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
    compiled: Callable[[int], Compiled], memory: int, *, most: int
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
    return int(min(most, max(1, memory // max(in_bytes / trial, 1))))
