"""What the devices run for a pretraining config: state, steps and their shardings, but no data."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from pe_jax.models import BertConfig, frequencies
from pe_jax.tasks.pretraining.objective import pretraining_task
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding
from pe_jax.training.pytrees import Params, PyTree
from pe_jax.training.step import Task, TrainState, init_state, make_train_step


@dataclasses.dataclass(frozen=True)
class Program:
    """What the devices run for a config: everything about its steps but the data."""

    config: ConfigDict
    model: BertConfig
    task: Task
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: jax.sharding.Mesh
    shardings: TrainState

    def shardings_of(self, tree: PyTree) -> PyTree:
        """The sharding of each leaf of a state, or of a part of one."""
        return sharding.state_shardings(self.mesh, self.config.parallel, tree)

    def init(self) -> TrainState:
        """The state before the first step, sharded; nothing is read from disk."""
        make = functools.partial(init_state, self.task, self.optimizer)
        return jax.jit(make, out_shardings=self.shardings)(jax.random.key(self.config.seed))

    def abstract_state(self) -> TrainState:
        """The shapes, dtypes and shardings of `init`; takes no memory."""
        return sharding.abstract(_state_shapes(self.task, self.optimizer), self.shardings)

    def abstract_batch(self, stage: ConfigDict) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes, dtypes and shardings of a global batch of `stage`."""
        return sharding.abstract(batch_shapes(stage), sharding.by_rows(self.mesh))

    def train_step(self, stage: ConfigDict) -> jax.stages.Wrapped:
        """The jitted step of `stage`: `(state, global batch) -> (state, metrics)`."""
        step = make_train_step(self.task, self.optimizer, accumulation=stage.accumulation)
        return sharding.parallelize(step, self.mesh, self.config.parallel, self.shardings)


def make_program(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: BertConfig, steps: int
) -> Program:
    """What `config` runs on the devices of `mesh` in `steps` steps.

    Args:
      model: see `model_config`.
    """
    schedule, optimizer = optimizers.from_config(
        config.optimizer, steps, functools.partial(frequencies, model)
    )
    task = pretraining_task(model)
    task = task._replace(sums=sharding.gather(task.sums, mesh, config.parallel))
    state = _state_shapes(task, optimizer)
    shardings = sharding.state_shardings(mesh, config.parallel, state)
    return Program(config, model, task, optimizer, schedule, mesh, shardings)


def batch_shapes(stage: ConfigDict) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a global batch of `data.batches` for `stage`."""
    rows, length, predictions = stage.batch_size, stage.length, stage.max_predictions
    shape = jax.ShapeDtypeStruct
    return {
        "tokens": shape((rows, length), jnp.int32),
        "segments": shape((rows, length), jnp.int32),
        "valid": shape((rows, length), jnp.bool_),
        "masked_positions": shape((rows, predictions), jnp.int32),
        "masked_tokens": shape((rows, predictions), jnp.int32),
        "masked_weights": shape((rows, predictions), jnp.float32),
        "next_sentence": shape((rows,), jnp.int32),
    }


def initial_positions(config: ConfigDict, model: BertConfig) -> Params:
    """The position parameters that a run of `config` draws before its first step."""
    task = pretraining_task(model)

    @jax.jit
    def draw(key: jax.Array) -> Params:
        return init_state(task, optax.identity(), key).params["bert"].get("position", {})

    return draw(jax.random.key(config.seed))


def _state_shapes(task: Task, optimizer: optax.GradientTransformation) -> TrainState:
    return jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))
