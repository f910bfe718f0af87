"""Sweeps: one compiled program over thousands of settings, on all devices, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pe_jax.terminal import Progress

MEMORY = 2**26  # Bytes a device. On a CPU fewer settings at once are faster: they fit its caches.


def sweep(
    fn: Callable[[Any], Any],
    settings: Any,
    *,
    memory: int = MEMORY,
    devices: list[jax.Device] | None = None,
    progress: bool = True,
) -> Any:
    """`fn` of each setting, mapped, compiled once and run chunk by chunk.

    Sizes differ between settings? Pad them and say how much counts: frequencies of several
    dimensions as zeros with weights 0, lengths by the metrics' `length`.

    Args:
      fn: `fn(setting) -> results`, pure; a setting and its results are pytrees of arrays.
      settings: the same pytree with a leading axis N on every array.
      memory: bytes that a chunk may take on a device, by the compiler's own account of one setting;
        at least one setting a device is run at a time.
      devices: default all devices of this host; settings are split among them.
      progress: show a progress bar (plain lines where there is no terminal).

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
      >>> properties.sweep(turn, jnp.array([100.0, 10_000.0]), progress=False)
      array([7, 5], dtype=int32)
    """
    settings = jax.tree.map(np.asarray, settings)
    count = _count(settings)
    devices = jax.local_devices() if devices is None else devices
    mesh = jax.make_mesh(
        (len(devices),), ("settings",), devices=devices, axis_types=(AxisType.Auto,)
    )
    per_device = _settings_at_once(fn, settings, memory, most=-(-count // len(devices)))
    chunk = per_device * len(devices)
    program = _compile(fn, settings, chunk, mesh)
    split = NamedSharding(mesh, PartitionSpec("settings"))

    bar = Progress(count, unit="settings", lines=True) if progress else None
    done: list[Any] = []
    running: tuple[int, Any] | None = None

    def collect() -> None:
        if running is not None:
            size, results = running
            done.append(jax.tree.map(lambda x: np.asarray(x)[:size], results))
            if bar:
                bar.advance(size)

    for start in range(0, count, chunk):
        # The last chunk is filled up with its first setting, so that one program serves all.
        at = np.arange(start, start + chunk)
        at = np.where(at < count, at, start)
        some = jax.device_put(jax.tree.map(lambda x: x[at], settings), split)  # noqa: B023
        results = program(some)  # Dispatched, not awaited: the one before is fetched meanwhile.
        collect()
        running = (min(chunk, count - start), results)
    collect()
    if bar:
        bar.close()
    return jax.tree.map(lambda *parts: np.concatenate(parts), *done)


def _count(settings: Any) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(settings)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            "Every array of the settings has one and the same leading axis, one entry a setting; "
            f"got leading axes {sorted(sizes)}."
        )
    return sizes.pop()[0]


def _compile(fn: Callable, settings: Any, chunk: int, mesh: Mesh | None = None) -> Any:
    """`fn` mapped over `chunk` settings, for the devices of `mesh` (default: one)."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), jnp.asarray(x[:0]).dtype), settings
    )
    mapped = jax.vmap(fn)
    if mesh is None:
        return jax.jit(mapped).lower(shapes).compile()
    split = NamedSharding(mesh, PartitionSpec("settings"))
    return jax.jit(mapped, in_shardings=split, out_shardings=split).lower(shapes).compile()


def _settings_at_once(fn: Callable, settings: Any, memory: int, *, most: int) -> int:
    """How many settings fit `memory`, by the compiler's analysis of a program for few."""
    trial = min(4, most)
    used = _compile(fn, settings, trial).memory_analysis()
    if used is None:  # A backend that does not say.
        return most
    each = (
        used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes
    ) / trial
    return int(min(most, max(1, memory // max(each, 1))))
