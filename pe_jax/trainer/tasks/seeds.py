"""Several seeds trained as one program: the state has a leading axis of seeds, but for its step.

The devices of a host are split by seeds as far as their number allows, which takes no
communication, and then by rows. Hosts are split by rows: each has all seeds, and its own rows of
their batches.

Shapes: S seeds, B rows of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.custom_batching import sequential_vmap
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import Batch, HostBatch, Metrics, Params, PyTree
from pe_jax.trainer.training.step import (
    Task,
    TrainState,
    TrainStep,
    cache_by_arguments,
    init_state,
    make_train_step,
)

SEEDS = "seeds"
_EACH: Any = 0
SEED_AXES = TrainState(step=None, params=_EACH, opt_state=_EACH, rng=_EACH)  # type: ignore[arg-type]


def seed_mesh(seeds: int, devices: list[jax.Device] | None = None) -> Mesh:
    """All devices, by seeds and rows."""
    if devices is None:
        devices = jax.devices()
    devices = sorted(devices, key=lambda device: device.process_index)
    hosts = len({device.process_index for device in devices})
    split = math.gcd(seeds, len(devices) // hosts)
    by_host = np.array(devices).reshape(hosts, split, -1)
    grid = by_host.swapaxes(0, 1).reshape(split, -1)
    auto = (AxisType.Auto, AxisType.Auto)
    return Mesh(grid, (SEEDS, sharding.AXIS), axis_types=auto)


def in_turn(mesh: Mesh) -> bool:
    """True if a device takes its seeds one after another: a CPU's caches hold what one of them
    works on, but not all."""
    return mesh.devices.flat[0].platform == "cpu"


@dataclasses.dataclass(frozen=True)
class SeedsProgram(Program):
    """Programs of the devices for a run of several seeds, on a `seed_mesh`."""

    parallel: str = "jit"

    @functools.cached_property
    def shardings(self) -> TrainState:
        seeds = NamedSharding(self.mesh, PartitionSpec(SEEDS))
        return TrainState(sharding.replicated(self.mesh), seeds, seeds, seeds)  # type: ignore[arg-type]

    @property
    def state_shapes(self) -> TrainState:
        init = functools.partial(_init_seeds, self.task, self.optimizer)
        return jax.eval_shape(init, self._rngs())

    def _rngs(self) -> jax.Array:
        return jax.vmap(jax.random.key)(np.array(self.seeds))

    def shardings_of(self, tree: PyTree) -> PyTree:
        return self.shardings.params  # The same of every leaf.

    @property
    def batch_sharding(self) -> NamedSharding:
        """The sharding of global batches `[S, B, ...]`."""
        return NamedSharding(self.mesh, PartitionSpec(SEEDS, sharding.AXIS))

    def init(self) -> TrainState:
        init = jax.jit(_init_seeds, static_argnums=(0, 1), out_shardings=self.shardings)
        return init(self.task, self.optimizer, self._rngs())

    def train_step(self, accumulation: int = 1) -> Wrapped:
        """Return the jitted step: `(state, global batch) -> (state, metrics)`, of all seeds."""
        step = make_train_step(self.task, self.optimizer, accumulation=accumulation)
        step = _step_by_seed(step, self.mesh, in_turn(self.mesh))
        arguments = (self.shardings, self.batch_sharding)
        results = (self.shardings, sharding.replicated(self.mesh))
        return sharding.compiled(step, self.mesh, arguments, results, donate=(0,))

    def outputs(
        self, function: Callable[[Params, Batch], PyTree]
    ) -> Callable[[Params, HostBatch], PyTree]:
        """Return `function(params, batch)` jitted for the parameters of all seeds and one batch,
        that every host has all rows of: leaves `[S, B, ...]`, replicated."""
        mapped = _outputs_by_seed(function, self.mesh, in_turn(self.mesh))
        by_rows = sharding.by_rows(self.mesh)
        arguments = (self.shardings.params, by_rows)
        compiled = sharding.compiled(mapped, self.mesh, arguments)

        def to_global(x: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(x.shape, by_rows, x.__getitem__)

        def outputs(params: Params, batch: HostBatch) -> PyTree:
            return compiled(params, jax.tree.map(to_global, batch))

        return outputs


def _init_seeds(
    task: Task, optimizer: optax.GradientTransformation, rngs: jax.Array
) -> TrainState:
    init = functools.partial(init_state, task, optimizer)
    return jax.vmap(init, out_axes=SEED_AXES)(rngs)


@cache_by_arguments
def _step_by_seed(train_step: TrainStep, mesh: Mesh, in_turn: bool) -> TrainStep:
    def seed_step(
        state: TrainState, batch: Batch
    ) -> tuple[tuple[PyTree, ...], Metrics]:
        new, metrics = train_step(state, batch)
        return new[1:], metrics  # The number of steps has no axis of seeds.

    if in_turn:
        seed_step = sequential_vmap(seed_step)
    step_of_seeds = jax.vmap(seed_step, (SEED_AXES, 0))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        seed_states, metrics = step_of_seeds(state, batch)
        return TrainState(state.step + 1, *seed_states), metrics

    seeds = PartitionSpec(SEEDS)
    specs = (TrainState(PartitionSpec(), seeds, seeds, seeds), seeds)  # type: ignore[arg-type]
    return _by_seed(step, mesh, specs, specs)


@cache_by_arguments
def _outputs_by_seed(
    outputs: Callable[[Params, Batch], PyTree], mesh: Mesh, in_turn: bool
) -> Callable[[Params, Batch], PyTree]:
    if in_turn:
        outputs = sequential_vmap(outputs)
    seeds = PartitionSpec(SEEDS)
    outputs_of_seeds = jax.vmap(outputs, (0, None))
    return _by_seed(outputs_of_seeds, mesh, (seeds, PartitionSpec()), seeds)


def _by_seed(
    function: Callable, mesh: Mesh, in_specs: PyTree, out_specs: PyTree
) -> Callable:
    """`function` on every device's own seeds; the compiler partitions the rows. If it partitioned
    the seeds too, it would gather them where `vmap` is a loop over them."""
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={SEEDS},
        check_vma=False,
    )
