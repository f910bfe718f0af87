"""Devices: the one place that names them. Data parallel over every device of every host.

Two ways to spread one and the same step over the devices:

- `jit`: the compiler partitions the step over global arrays and inserts the all-reduces;
- `pmap`: the step is mapped per device (`shard_map`, which `jax.pmap` is made of today) and reduces
  by name. Arrays, checkpoints and numbers are those of `jit`; only dropout draws differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def data_mesh(devices: list[jax.Device] | None = None) -> Mesh:
    """All devices of all hosts in a row; each host's lie together, as its rows of a batch do."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices, axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(AXIS))


def to_global(batch: Any, mesh: Mesh) -> Any:
    """This host's rows of a batch (NumPy) as part of the global arrays, split over the devices."""
    place = functools.partial(jax.make_array_from_process_local_data, by_rows(mesh))
    return jax.tree.map(place, batch)


def abstract(tree: Any, placed: NamedSharding | Any) -> Any:
    """`tree`, arrays or shapes, as shapes with shardings.

    Args:
      placed: one sharding, or a tree of them that `tree` or its upper part has the structure of.
    """

    def shape(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(shape, tree, jax.tree.broadcast(placed, tree))


def check_rows(rows: int, mesh: Mesh, accumulation: int = 1) -> None:
    """Raises ValueError if a batch of `rows` does not divide among devices and micro-batches."""
    if rows % (mesh.size * accumulation):
        raise ValueError(
            f"A batch of {rows} rows does not divide among {mesh.size} devices times "
            f"{accumulation} micro-batches: use a multiple of {mesh.size * accumulation}."
        )


def _jit(step: Callable, mesh: Mesh) -> Callable:
    whole = replicated(mesh)
    return jax.jit(step, in_shardings=(whole, by_rows(mesh)), out_shardings=whole, donate_argnums=0)


def _pmap(step: Callable, mesh: Mesh) -> Callable:
    # check_vma=False: with it on, shard_map sums the gradients of replicated parameters by itself,
    # and the step's own psum would count every device's gradient once more.
    mapped = jax.shard_map(
        functools.partial(step, axis=AXIS),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0)


PARALLEL: dict[str, Callable[[Callable, Mesh], Callable]] = {"jit": _jit, "pmap": _pmap}


def parallelize(step: Callable, mesh: Mesh, how: str) -> Callable:
    """`step(state, batch, axis=None) -> (state, metrics)`, compiled for the mesh; state is donated.

    Raises:
      ValueError: for a `how` that is neither "jit" nor "pmap".
    """
    if how not in PARALLEL:
        raise ValueError(f"config.parallel is one of {', '.join(PARALLEL)}, got {how!r}.")
    return PARALLEL[how](step, mesh)


def parallelize_eval(step: Callable, mesh: Mesh) -> Callable:
    """`step(params, batch) -> metrics`, compiled for the mesh."""
    whole = replicated(mesh)
    return jax.jit(step, in_shardings=(whole, by_rows(mesh)), out_shardings=whole)


def host() -> tuple[int, int]:
    """This host's number, and how many there are."""
    return jax.process_index(), jax.process_count()
