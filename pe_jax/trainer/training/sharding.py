"""Meshes and shardings: data parallel over every device of every host.

Ways to parallelize the same step:

- `jit`: the compiler partitions the step over global arrays and inserts the all-reduces; the state
  is replicated;
- `fsdp`: the same, with parameters and optimizer state sharded (fully sharded data parallel, ZeRO);
  a step gathers the parameters while it uses them. Numbers and dropout masks are those of `jit`;
- `pmap`: gradients are computed per device (`shard_map`, which implements `jax.pmap` today) and
  added over a named axis, each parameter's once a step. Arrays, checkpoints and numbers are those
  of `jit`; only dropout masks differ. `pmap_bfloat16` rounds gradients to bfloat16 to add them;
- `fsdp_bfloat16`: gradients as of `pmap_bfloat16`, state as of `fsdp`. A device gets the sum of its
  own part of the gradients alone, and updates that;
- `auto`: the one that suits the devices, see `chosen`.
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

from pe_jax.trainer.training.pytrees import Batch, HostBatch, Params, PyTree, Sums
from pe_jax.trainer.training.step import Gradients, TrainStep, cache_by_arguments

P = ParamSpec("P")
T = TypeVar("T")

AXIS = "data"
# The names of `config.parallel`.
PARALLEL = ("jit", "fsdp", "pmap", "pmap_bfloat16", "fsdp_bfloat16", "auto")
_SHARDED = ("fsdp", "fsdp_bfloat16")  # Parameters and optimizer state.
_BFLOAT16 = ("pmap_bfloat16", "fsdp_bfloat16")  # Exchanged gradients.

# Chips of a TPU from which on `auto` shards the state: each has few rows of a batch then, and would
# spend more time on the update of all parameters than on gathering them.
_SHARDED_FROM = 32

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


def chosen(parallel: str, mesh: Mesh) -> str:
    """Return the name in `PARALLEL` that `auto` stands for; others stand for themselves.

    On TPUs links limit a step more than on other devices, so it is `pmap_bfloat16` on several
    chips, and `fsdp_bfloat16` from 32 on. Everywhere else it is `jit`.
    """
    if parallel != "auto":
        return parallel
    if mesh.devices.flat[0].platform != "tpu" or mesh.size == 1:
        return "jit"
    return "fsdp_bfloat16" if mesh.size >= _SHARDED_FROM else "pmap_bfloat16"


def state_shardings(mesh: Mesh, parallel: str, state: T) -> T:
    """Return the sharding of each leaf of a state, or of a part of one, arrays or shapes.

    Under `fsdp` and `fsdp_bfloat16` a leaf is sharded along its longest axis that the number of
    devices divides.
    """

    is_sharded = chosen(parallel, mesh) in _SHARDED

    def place(leaf: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        if not is_sharded or leaf.size < _SMALLEST_SPLIT or not axes:
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
    if chosen(parallel, mesh) not in _SHARDED:
        return function

    @functools.wraps(function)
    def gathered(params: Params, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if AXIS in jax.sharding.get_abstract_mesh().manual_axes:
            return function(params, *args, **kwargs)  # `_by_device` has gathered them.
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
    how = chosen(parallel, mesh)
    if how not in ("jit", "fsdp"):
        step = _by_device(step, mesh, how)
    arguments = (shardings, by_rows(mesh), *[None] * constants)
    results = (shardings, replicated(mesh))
    return compiled(step, mesh, arguments, results, donate=(0,))


@cache_by_arguments
def _by_device(step: TrainStep, mesh: Mesh, parallel: str) -> TrainStep:
    """Return the step with gradients that are computed on each device from its own rows.

    The update is not mapped: norms of whole arrays, which optimizers take, are right for sharded
    ones too.
    """

    def map_gradients(gradients: Gradients) -> Gradients:
        def mapped(
            params: Params, batch: Batch, rng: jax.Array, *constants: PyTree
        ) -> tuple[Params, Sums, Sums]:
            placed = state_shardings(mesh, parallel, params)
            specs = jax.tree.map(lambda sharding: sharding.spec, placed)
            on_device = functools.partial(
                _gradients_on_device, gradients, specs, parallel
            )
            whole = PartitionSpec()
            # check_vma=False: with the check, shard_map sums the gradients of replicated parameters
            # over the devices itself. The step's own sum would count every device's again.
            return jax.shard_map(
                on_device,
                mesh=mesh,
                in_specs=(specs, PartitionSpec(AXIS), whole, *[whole] * len(constants)),
                out_specs=(specs, whole, whole),
                check_vma=False,
            )(params, batch, rng, *constants)

        return mapped

    return functools.partial(step, map_gradients=map_gradients)


def _gradients_on_device(
    gradients: Gradients,
    specs: PyTree,
    parallel: str,
    params: Params,
    batch: Batch,
    rng: jax.Array,
    *constants: PyTree,
) -> tuple[Params, Sums, Sums]:
    """Gather the parameters, compute the gradients of this device's rows and add them over devices.

    Args:
      specs: of each parameter, and of its gradient.
    """

    def gather_leaf(leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
        axes = tuple(spec)
        if AXIS not in axes:
            return leaf
        return jax.lax.all_gather(leaf, AXIS, axis=axes.index(AXIS), tiled=True)

    def add_leaf(leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
        exchanged = leaf.astype(jnp.bfloat16) if parallel in _BFLOAT16 else leaf
        axes = tuple(spec)
        if AXIS in axes:
            total = jax.lax.psum_scatter(
                exchanged, AXIS, scatter_dimension=axes.index(AXIS), tiled=True
            )
        else:
            total = jax.lax.psum(exchanged, AXIS)
        return total.astype(leaf.dtype)

    def exchange(grads: Params) -> Params:
        return jax.tree.map(add_leaf, grads, specs)

    whole = jax.tree.map(gather_leaf, params, specs)
    return gradients(whole, batch, rng, *constants, axis=AXIS, exchange=exchange)


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
