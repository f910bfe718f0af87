"""Sweeps: one compiled program over thousands of settings, on all devices, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pe_jax.console.terminal import Progress

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
      settings: the same pytree with a leading axis N on every array (seeds as integers).
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
      array([11,  5], dtype=int32)
    """
    return compile_sweep(fn, settings, memory=memory, devices=devices)(settings, progress)


def compile_sweep(
    fn: Callable[[Any], Any],
    settings: Any,
    *,
    memory: int = MEMORY,
    devices: list[jax.Device] | None = None,
) -> Callable[..., Any]:
    """`run(settings, progress=False) -> results` of `sweep`, compiled for settings like these.

    For sweeping with one function again and again; arguments and errors are those of `sweep`.
    """
    settings = jax.tree.map(np.asarray, settings)
    count = _count(settings)
    devices = jax.local_devices() if devices is None else devices
    mesh = jax.make_mesh(
        (len(devices),), ("settings",), devices=devices, axis_types=(AxisType.Auto,)
    )
    split = NamedSharding(mesh, PartitionSpec("settings"))
    each_device = -(-count // len(devices))
    fitting = _settings_at_once(fn, settings, memory, most=each_device)
    chunks = -(-each_device // fitting)
    chunk = -(-each_device // chunks) * len(devices)  # All chunks alike, none nearly empty.
    program = _compile(fn, settings, chunk, split)

    def run(settings: Any, progress: bool = False) -> Any:
        settings = jax.tree.map(np.asarray, settings)
        count = _count(settings)
        bar = Progress(count, unit="settings", lines=0.0) if progress else None
        running, done = [], []
        for start in range(0, count, chunk):
            # The last chunk is filled up with its first setting, so that one program serves all.
            at = np.arange(start, start + chunk)
            at = np.where(at < count, at, start)
            some = jax.device_put(jax.tree.map(lambda x: x[at], settings), split)  # noqa: B023
            running.append((min(chunk, count - start), program(some)))
            if len(running) > 1:  # One is always dispatched ahead of the one that is fetched.
                done.append(_fetch(*running.pop(0), bar))
        done += [_fetch(size, results, bar) for size, results in running]
        if bar:
            bar.close()
        return jax.tree.map(lambda *parts: np.concatenate(parts), *done)

    return run


def _fetch(size: int, results: Any, bar: Progress | None) -> Any:
    fetched = jax.tree.map(lambda x: np.asarray(x)[:size], results)
    if bar:
        bar.advance(size)
    return fetched


def _count(settings: Any) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(settings)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            "Every array of the settings has one and the same leading axis, one entry a setting; "
            f"got leading axes {sorted(sizes)}."
        )
    return sizes.pop()[0]


def _compile(fn: Callable, settings: Any, chunk: int, split: NamedSharding | None = None) -> Any:
    """`fn` mapped over `chunk` settings, split over devices or on one."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), jnp.asarray(x[:0]).dtype), settings
    )
    return jax.jit(jax.vmap(fn), in_shardings=split, out_shardings=split).lower(shapes).compile()


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
