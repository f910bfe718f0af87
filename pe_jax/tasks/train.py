"""The trainer: a program, its batches and evaluations become a run in a folder.

Pretraining, fine-tuning and length generalisation each build a `Program` and its stages from a
typed config, and call `train`.

Shapes: S seeds, B rows of a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from tokenizers import Tokenizer

from pe_jax import cpu
from pe_jax.configs.training import OptimizerConfig
from pe_jax.console.terminal import Progress, counted, say, tell
from pe_jax.files import write_text
from pe_jax.models import BertConfig, frequencies
from pe_jax.schema import Config
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding, workdir
from pe_jax.training.checkpointing import Checkpoints, restore_newest
from pe_jax.training.hosts import agree, stop_requests
from pe_jax.training.loop import Cadence, Loop, Stage
from pe_jax.training.pytrees import Batch, Params, PyTree
from pe_jax.training.step import Task, TrainState, init_seeds, init_state, make_train_step
from pe_jax.training.workdir import MetricsWriter

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Program:
    """Programs of the devices for a run: the state, the steps and their shardings, but no data.

    Attributes:
      config: of the run, which resumes only if it is the same.
      schedule: learning rate of a step.
      parallel: a name in `sharding.PARALLEL`.
    """

    config: Config
    model: BertConfig
    task: Task
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    mesh: Mesh
    seeds: tuple[int, ...]
    parallel: str

    @functools.cached_property
    def shardings(self) -> TrainState:
        """The sharding of each leaf of the state."""
        return self.shardings_of(state_shapes(self.task, self.optimizer))

    @property
    def batch_sharding(self) -> NamedSharding:
        return sharding.by_rows(self.mesh)

    def shardings_of(self, tree: PyTree) -> PyTree:
        """Return the sharding of each leaf of a state, or of a part of one."""
        return sharding.state_shardings(self.mesh, self.parallel, tree)

    def init(self) -> TrainState:
        """Return the sharded state before the first step; nothing is read from disk."""
        init = _make_init(self.task, self.optimizer)
        return jax.jit(init, out_shardings=self.shardings)(jax.random.key(self.seeds[0]))

    def train_step(self, accumulation: int = 1) -> jax.stages.Wrapped:
        """Return the jitted step: `(state, global batch) -> (state, metrics)`."""
        step = make_train_step(self.task, self.optimizer, accumulation=accumulation)
        return sharding.parallelize(step, self.mesh, self.parallel, self.shardings)


@dataclasses.dataclass(frozen=True)
class SeedsProgram(Program):
    """The same for several seeds as one program: the state has a leading axis of seeds."""

    parallel: str = "jit"

    @functools.cached_property
    def shardings(self) -> TrainState:
        return sharding.seeds_state_shardings(self.mesh)

    @property
    def batch_sharding(self) -> NamedSharding:
        return sharding.by_seeds_and_rows(self.mesh)

    def shardings_of(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: sharding.by_seeds(self.mesh), tree)

    def init(self) -> TrainState:
        return init_seeds(self.task, self.optimizer, self.seeds, self.shardings)

    def train_step(self, accumulation: int = 1) -> jax.stages.Wrapped:
        step = make_train_step(self.task, self.optimizer, accumulation=accumulation)
        return sharding.parallelize_seeds(step, self.mesh, self.shardings)

    def outputs(
        self, function: Callable[[Params, Batch], PyTree]
    ) -> Callable[[Params, Batch], PyTree]:
        """Return `function(params, batch)` jitted for the parameters of all seeds and one batch:
        leaves `[S, B, ...]`."""
        return sharding.parallelize_outputs(function, self.mesh)


def reused(build: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of frozen configs so that equal arguments return the same object.

    JAX then traces and compiles what is built from it once per process. Arguments that cannot be
    hashed, such as an encoding that holds an array, are built again each time.
    """
    remembered = functools.lru_cache(maxsize=16)(build)

    @functools.wraps(build)
    def build_or_reuse(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, tuple(kwargs.items())))
        except TypeError:
            return build(*args, **kwargs)
        return remembered(*args, **kwargs)  # type: ignore[arg-type]

    return build_or_reuse


@reused
def make_optimizer(
    config: OptimizerConfig, steps: int, model: BertConfig
) -> tuple[optax.Schedule, optax.GradientTransformation]:
    """Return the learning rate and the optimizer of a run of `steps` steps."""
    return optimizers.from_config(config, steps, functools.partial(frequencies, model))


@functools.lru_cache(maxsize=16)
def _make_init(
    task: Task, optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
    return functools.partial(init_state, task, optimizer)


@functools.lru_cache(maxsize=16)
def state_shapes(task: Task, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the shapes and dtypes of the state of one seed."""
    return jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))


def saved_tokenizer(folder: Path) -> Path:
    """Return the path of the tokenizer of the run in `folder`."""
    return folder / "tokenizer.json"


def introduce(folder: Path, init: str) -> None:
    """Print where a run is, what it runs on and what it starts from, before anything takes time."""
    devices, hosts = jax.devices(), jax.process_count()
    tell("Run", str(folder))
    tell("Devices", f"{len(devices)} {devices[0].device_kind}" + (f", {hosts} hosts" * (hosts > 1)))
    tell("Start", init or "from scratch: random parameters, as config.init is empty")


def model_size(model: BertConfig) -> str:
    """Return a model's size such as "12 layers of 768"."""
    return f"{counted(model.num_layers, 'layer')} of {model.hidden_size}"


def _introduce_model(program: Program, params: Params) -> None:
    def count(tree: PyTree) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree)) // len(program.seeds)

    model, position_params = program.model, count(params["bert"].get("position", {}))
    tell("Model", f"{model_size(model)}, {model.dtype}: {count(params):,} parameters")
    tell("Positions", f"{model.encoding().name}: {position_params:,} of them")
    if model.dtype == "bfloat16" and jax.default_backend() == "cpu" and not _multiplies_bfloat16():
        tell("Hint", "this CPU has no instructions for bfloat16: float32 is likely to be faster")


def _multiplies_bfloat16() -> bool:
    """Return whether the CPU has such instructions; True if that is not known."""
    known = cpu.instructions()
    # x86: tiles, vectors; "bf16" is ARM's (docs/performance.md).
    return not known or bool({"amx_bf16", "avx512_bf16", "bf16"} & known)


def train(
    program: Program,
    stages: Sequence[Stage],
    folder: Path,
    *,
    cadence: Cadence,
    keep_checkpoints: int = 1,
    start: Callable[[TrainState], TrainState] | None = None,
    tokenizer: Tokenizer | None = None,
) -> TrainState:
    """Train to the end of the last stage; `folder` becomes this run's with the first step.

    Args:
      keep_checkpoints: how many of the newest are kept.
      start: `start(fresh state)` takes parameters from another model; not called on resuming.
      tokenizer: of the run's text, kept in the folder.

    Raises:
      ValueError: if the folder holds a run of another config, another process writes in it, or
        hosts differ.
      FloatingPointError: if a loss is no longer finite.
      OSError: if something cannot be written.
      Interrupted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    fresh = program.init()
    _introduce_model(program, fresh.params)
    text = tokenizer.to_str() if tokenizer else "{}"
    agree({"the tokenizer": hashlib.sha256(text.encode()).hexdigest()[:12]})
    with contextlib.ExitStack() as stack:
        check_folder = stack.enter_context(workdir.occupy(folder))
        workdir.check(folder, program.config)
        run = workdir.identity(program.config, text)
        restored = restore_newest(folder, fresh, run)
        checkpoints = stack.enter_context(
            contextlib.closing(Checkpoints(folder, keep=keep_checkpoints, run=run))
        )
        if restored:
            say(f"Resuming from step {restored.step:,}.")
            state = restored.state
        else:
            state = start(fresh) if start else fresh
        # Only now is the folder this run's: a config that cannot start does not occupy it.
        workdir.claim(folder, program.config)
        if tokenizer:
            write_text(saved_tokenizer(folder), tokenizer.to_str(pretty=True))
        writer = stack.enter_context(
            contextlib.closing(MetricsWriter(folder, restored.step if restored else 0))
        )
        progress = Progress(sum(stage.steps for stage in stages), int(state.step))
        loop = Loop(
            cadence,
            batch_sharding=program.batch_sharding,
            schedule=program.schedule,
            checkpoints=checkpoints,
            writer=writer,
            reporter=stack.enter_context(contextlib.closing(progress)),
            stop_requested=stack.enter_context(stop_requests()),
            check_folder=check_folder,
        )
        return loop.fit(state, stages, restored.place if restored else None)
