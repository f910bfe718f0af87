"""A `Run`, which a task builds from its config, and the `Program` that it compiles.

Shapes: S seeds, B rows of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from tokenizers import Tokenizer

from pe_jax.common.schema import C
from pe_jax.models import BertConfig
from pe_jax.trainer.console.terminal import counted
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.loop import Stage
from pe_jax.trainer.training.pytrees import Metrics, Params, PyTree, Scalars
from pe_jax.trainer.training.step import (
    Task,
    TrainState,
    init_state,
    make_eval_step,
    make_train_step,
    state_shapes,
)
from pe_jax.trainer.training.workdir import ResolvedConfig


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that a run compiles: initial state, train and eval steps, shardings; no data."""

    model: BertConfig
    task: Task
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule  # Learning rate of a step.
    mesh: Mesh
    # Of parameters, dropout and data order; several train side by side.
    seeds: tuple[int, ...]
    parallel: str  # A name in `sharding.PARALLEL`.
    # How many the task has, see `Task.sums`; they come with their shardings.
    constants: int = 0

    @functools.cached_property
    def shardings(self) -> TrainState:
        """The sharding of each leaf of the state."""
        return self.shardings_of(self.state_shapes)

    @property
    def state_shapes(self) -> TrainState:
        """The shape and dtype of each leaf of the state."""
        return state_shapes(self.task, self.optimizer)

    @property
    def batch_sharding(self) -> NamedSharding:
        return sharding.by_rows(self.mesh)

    def shardings_of(self, tree: PyTree) -> PyTree:
        """Return the sharding of each leaf of a state, or of a part of one."""
        return sharding.state_shardings(self.mesh, self.parallel, tree)

    def init(self) -> TrainState:
        """Return the sharded state before the first step; nothing is read from disk."""
        init = jax.jit(init_state, static_argnums=(0, 1), out_shardings=self.shardings)
        return init(self.task, self.optimizer, jax.random.key(self.seeds[0]))

    def train_step(self, accumulation: int = 1) -> jax.stages.Wrapped:
        """Return the jitted step: `(state, global batch, *constants) -> (state, metrics)`."""
        step = make_train_step(self.task, self.optimizer, accumulation=accumulation)
        return sharding.parallelize(
            step, self.mesh, self.parallel, self.shardings, self.constants
        )

    def eval_step(self) -> Callable[..., Metrics]:
        """Return the jitted evaluation: `(params, global batch, *constants) -> metrics`."""
        constants = [None] * self.constants
        arguments = (self.shardings.params, self.batch_sharding, *constants)
        return sharding.compiled(make_eval_step(self.task), self.mesh, arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Generic[C]):
    """A run as a task builds it from its config, before it is trained.

    A folder's run resumes only with the same config and checksums.
    """

    resolved: ResolvedConfig[C]
    program: Program
    stages: Sequence[Stage]
    # To print before it trains, see `log_field`.
    summary: Sequence[tuple[str, str]] = ()
    # Of its data, by name.
    checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Steps between logs, evaluations, saves: see `Loop`.
    every: tuple[int, int, int] = (0, 0, 0)
    keep_checkpoints: int = 1  # See `Checkpoints`, as `keep_best`.
    keep_best: int = 0
    # `start(fresh parameters)` takes some from another model; None trains from scratch.
    start: Callable[[Params], Params] | None = None
    # `initial_scores(parameters)` are written before the first step.
    initial_scores: Callable[[Params], Scalars] | None = None
    tokenizer: Tokenizer | None = None  # Of the run's text, kept in its folder.

    @property
    def config(self) -> C:
        return self.resolved.config


def saved_tokenizer(folder: Path) -> Path:
    """Return the path of the tokenizer of the run in `folder`."""
    return folder / "tokenizer.json"


def model_size(model: BertConfig) -> str:
    """Return a model's size such as "12 layers of 768"."""
    return f"{counted(model.num_layers, 'layer')} of {model.hidden_size}"
