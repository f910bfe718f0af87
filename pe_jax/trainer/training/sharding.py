"""Meshes and shardings: data parallel over every device of every host.

Three ways to parallelize the same step:

- `jit`: the compiler partitions the step over global arrays and inserts the all-reduces; the state
  is replicated;
- `fsdp`: the same, with parameters and optimizer state sharded (fully sharded data parallel, ZeRO);
  a step gathers the parameters while it uses them. Numbers and dropout masks are those of `jit`;
- `pmap`: the step is mapped per device (`shard_map`, which implements `jax.pmap` today) and reduces
  over a named axis. Arrays, checkpoints and numbers are those of `jit`; only dropout masks differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from pe_jax.trainer.training.pytrees import Batch, HostBatch, Params, PyTree
from pe_jax.trainer.training.step import TrainStep, cache_by_arguments

P = ParamSpec("P")
T = TypeVar("T")

AXIS = "data"
PARALLEL = ("jit", "fsdp", "pmap", "pmap_bfloat16")  # The names of `config.parallel`.

# Smaller leaves stay replicated under `fsdp`: two thirds of the leaves of BERT-base (biases,
# LayerNorm), each of which would cost a gather and a scatter, and 0.14 % of its parameters.
_SMALLEST_SPLIT = 2**16  # Elements.


def data_mesh(devices: list[jax.Device] | None = None) -> Mesh:
    """Return all devices of all hosts along one axis, contiguous by host as rows of a batch are.

    The order is that of the processes, which JAX numbers slice by slice. `jax.make_mesh` walks
    along the links of a TPU slice instead, so that the chips of a host are not next to one another,
    and refuses several slices.
    """
    devices = jax.devices() if devices is None else devices
    by_process = sorted(devices, key=lambda device: device.process_index)
    return Mesh(np.array(by_process), (AXIS,), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(AXIS))


def to_global(batch: HostBatch, sharding: NamedSharding) -> Batch:
    """Return global arrays of `sharding` from this host's rows of them."""
    return {
        name: jax.make_array_from_process_local_data(sharding, rows)
        for name, rows in batch.items()
    }


def abstract(tree: PyTree, shardings: PyTree) -> PyTree:
    """Return `tree`, arrays or shapes, as shapes with shardings: one for all, or a tree of them."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree,
        jax.tree.broadcast(shardings, tree),
    )


def check_rows(name: str, rows: int, mesh: Mesh, accumulation: int = 1) -> None:
    """Check that the rows of a batch divide among devices and micro-batches.

    Args:
      name: the key of the config that gives `rows`, for the message.

    Raises:
      ValueError: if they do not; the message has the nearest numbers that do.
    """
    devices = mesh.shape[AXIS]
    unit = devices * accumulation
    if rows % unit == 0:
        return
    below = rows // unit * unit
    nearest = [below, below + unit] if below else [unit]
    raise ValueError(
        f"{name}={rows} is not divisible by {devices} devices times {accumulation} "
        f"micro-batches. The nearest that is: {' or '.join(f'{n:,}' for n in nearest)}."
    )


def state_shardings(mesh: Mesh, parallel: str, state: T) -> T:
    """Return the sharding of each leaf of a state, or of a part of one, arrays or shapes.

    Under `fsdp` a leaf is sharded along its longest axis that the number of devices divides.
    """

    def place(leaf: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        if parallel != "fsdp" or leaf.size < _SMALLEST_SPLIT or not axes:
            return replicated(mesh)
        longest = max(axes, key=lambda axis: leaf.shape[axis])
        spec = (AXIS if axis == longest else None for axis in range(leaf.ndim))
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(place, state)


@cache_by_arguments
def gather(
    function: Callable[Concatenate[Params, P], T], mesh: Mesh, parallel: str
) -> Callable[Concatenate[Params, P], T]:
    """Return `function(params, ...)` for parameters with the shardings of `state_shardings`.

    Sharded parameters are gathered on every device before `function` uses them; otherwise the
    compiler would shard the activations by features instead of rows. Gradients take the opposite
    way: an all-reduce, then each device keeps its slice. These are two constraints, which XLA may
    fuse to one reduce-scatter. With one it shards the matmuls instead, which takes more memory.
    """
    if parallel != "fsdp":
        return function

    @functools.wraps(function)
    def gathered(params: Params, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # A constraint of a value in the forward pass constrains its gradient in the backward pass.
        split = jax.lax.with_sharding_constraint(
            params, state_shardings(mesh, parallel, params)
        )
        whole = jax.lax.with_sharding_constraint(split, replicated(mesh))
        return function(whole, *args, **kwargs)

    return gathered


def parallelize(
    step: TrainStep, mesh: Mesh, parallel: str, shardings: PyTree, constants: int = 0
) -> Wrapped:
    """Return `step(state, batch, *constants) -> (state, metrics)`, compiled; it donates the state.

    Args:
      parallel: a name in `PARALLEL`.
      shardings: of the state, see `state_shardings`.
      constants: how many the step takes; each keeps the sharding that it comes with.
    """
    if parallel in ("jit", "fsdp"):
        arguments = (shardings, by_rows(mesh), *[None] * constants)
        results = (shardings, replicated(mesh))
        return compiled(step, mesh, arguments, results, donate=(0,))
    dtype = jnp.dtype(jnp.bfloat16) if parallel == "pmap_bfloat16" else None
    return jax.jit(_by_device(step, mesh, dtype, constants), donate_argnums=0)


@cache_by_arguments
def _by_device(
    step: TrainStep, mesh: Mesh, exchanged: jnp.dtype | None, constants: int
) -> TrainStep:
    # check_vma=False: with the check, shard_map sums the gradients of replicated parameters over
    # the devices itself. The step's own psum would then count every device's gradient again.
    return jax.shard_map(
        functools.partial(step, axis=AXIS, exchanged=exchanged),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS), *[PartitionSpec()] * constants),
        out_specs=PartitionSpec(),
        check_vma=False,
    )


def compiled(
    function: Callable[P, T],
    mesh: Mesh,
    in_shardings: PyTree,
    out_shardings: PyTree = None,
    donate: tuple[int, ...] = (),
) -> Wrapped:
    """Return `function` jitted, and traced under the mesh.

    Args:
      in_shardings: of the arguments; None keeps the sharding that an array comes with.
      out_shardings: default: replicated.
      donate: indices of arguments whose memory the results may take.
    """
    if out_shardings is None:
        out_shardings = replicated(mesh)
    return jax.jit(
        _with_mesh(function, mesh),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        donate_argnums=donate,
    )


@cache_by_arguments
def _with_mesh(function: Callable[P, T], mesh: Mesh) -> Callable[P, T]:
    """Return `function` traced under the mesh, so that a kernel, which the compiler cannot
    partition, runs on each device's own rows."""

    @functools.wraps(function)
    def traced(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args, **kwargs)

    return traced


def to_numpy(tree: PyTree) -> PyTree:
    """Return global arrays of any sharding as NumPy arrays, whole on every host."""
    return multihost_utils.process_allgather(tree, tiled=True)
