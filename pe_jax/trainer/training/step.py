"""The training step: a pure function (state, batch) -> (state, metrics).

Losses and scores are sums with denominators, divided once, after every reduction: the mean of
per-device means is not the global mean when devices hold different numbers of masked tokens. The
denominators come from the batch alone, so they are known before the first micro-batch runs and the
gradients of micro-batches and devices simply add up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from pe_jax.trainer.training.pytrees import Batch, Metrics, Params, PyTree, Sums

P = ParamSpec("P")
T = TypeVar("T")


def cache_by_arguments(build: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that builds programs, so that equal arguments return the same object.

    JAX then traces and compiles it once per process, however many runs use it. Arguments that
    cannot be hashed, such as an encoding that holds an array, are built again each time.
    """
    remembered = functools.lru_cache(maxsize=64)(build)

    @functools.wraps(build)
    def build_or_reuse(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, tuple(kwargs.items())))
        except TypeError:
            return build(*args, **kwargs)
        return remembered(*args, **kwargs)  # type: ignore[arg-type]

    return build_or_reuse


class Task(NamedTuple):
    """A task to train, as pure functions. Counts and sums are scalars under the same names.

    Attributes:
      init: `init(rng)` returns parameters.
      counts: `counts(batch)` returns denominators.
      sums: `sums(params, batch, rng, *constants)`; `rng` None means no dropout. Constants are trees
        of arrays that a run does not train, such as a teacher; most tasks have none.
      losses: the names whose means add up to the objective.
      outputs: `outputs(params, batch, rng=None)` of the model of `sums`.
    """

    init: Callable[[jax.Array], Params]
    counts: Callable[[Batch], Sums]
    sums: Callable[..., Sums]
    losses: tuple[str, ...]
    outputs: Callable[..., Any]


class TrainState(NamedTuple):
    """Everything that a step changes, and the PRNG key of its dropout."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    rng: jax.Array


TrainStep = Callable[..., tuple[TrainState, Metrics]]
Gradients = Callable[..., tuple[Params, Sums, Sums]]  # See `make_gradients`.


def make_task(
    model: nn.Module,
    inputs: Mapping[str, DTypeLike],
    counts: Callable[[Batch], Sums],
    sums: Callable[[Any, Batch], Sums],
    losses: tuple[str, ...] = ("loss",),
) -> Task:
    """Return a task of a Flax model.

    Args:
      inputs: dtypes of the arrays of a batch that the model takes, by their names, which are also
        those of its arguments.
      sums: `sums(outputs of the model, batch) -> {name: sum}`.
    """

    def init(rng: jax.Array) -> Params:
        example: dict[str, Any] = {
            name: jnp.zeros((1, 8), dtype) for name, dtype in inputs.items()
        }
        return model.init(rng, **example)["params"]

    def outputs(params: Params, batch: Batch, rng: jax.Array | None = None) -> Any:
        named: dict[str, Any] = {name: batch[name] for name in inputs}
        return model.apply(
            {"params": params},
            **named,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )

    def sums_of_batch(params: Params, batch: Batch, rng: jax.Array | None) -> Sums:
        return sums(outputs(params, batch, rng), batch)

    return Task(init, counts, sums_of_batch, losses, outputs)


def init_state(
    task: Task, optimizer: optax.GradientTransformation, rng: jax.Array
) -> TrainState:
    """Return the state before the first step."""
    params_rng, dropout_rng = jax.random.split(rng)
    params = task.init(params_rng)
    opt_state = optimizer.init(params)
    return TrainState(jnp.int32(0), params, opt_state, dropout_rng)


@cache_by_arguments
def state_shapes(task: Task, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the shapes and dtypes of the state of one seed."""
    return jax.eval_shape(lambda: init_state(task, optimizer, jax.random.key(0)))


@cache_by_arguments
def make_train_step(
    task: Task, optimizer: optax.GradientTransformation, *, accumulation: int = 1
) -> TrainStep:
    """Return a step that runs the batch in `accumulation` micro-batches, with the result of one:
    `train_step(state, batch, *constants, map_gradients=None) -> (state, metrics)`.

    `map_gradients` takes the function of `make_gradients` and returns it mapped over devices, as
    `sharding.parallelize` does; by default it runs as it is, and batch and sums are global.
    """
    gradients = make_gradients(task, accumulation)

    def train_step(
        state: TrainState,
        batch: Batch,
        *constants: PyTree,
        map_gradients: Callable[[Gradients], Gradients] | None = None,
    ) -> tuple[TrainState, Metrics]:
        compute = map_gradients(gradients) if map_gradients else gradients
        rng = jax.random.fold_in(state.rng, state.step)
        grads, sums, counts = compute(state.params, batch, rng, *constants)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {name: (sums[name], counts[name]) for name in sums}
        metrics["gradient_norm"] = (optax.tree.norm(grads), jnp.float32(1))
        return TrainState(state.step + 1, params, opt_state, state.rng), metrics

    return train_step


@cache_by_arguments
def make_gradients(task: Task, accumulation: int) -> Gradients:
    """Return the gradients of a batch in `accumulation` micro-batches, with sums and counts:
    `gradients(params, batch, rng, *constants, axis=None, exchange=None) -> (grads, sums, counts)`.

    `axis` names the mapped device axis where this runs per device; otherwise batch and sums are
    global. `exchange(grads)` then adds the gradients of all devices, once for all micro-batches.
    """

    def gradients(
        params: Params,
        batch: Batch,
        rng: jax.Array,
        *constants: PyTree,
        axis: str | None = None,
        exchange: Callable[[Params], Params] | None = None,
    ) -> tuple[Params, Sums, Sums]:
        def reduce(x: PyTree) -> PyTree:
            return jax.lax.psum(x, axis) if axis else x

        counts = reduce(task.counts(batch))
        if axis:
            rng = jax.random.fold_in(rng, jax.lax.axis_index(axis))

        def objective(
            params: Params, part: Batch, rng: jax.Array
        ) -> tuple[jax.Array, Sums]:
            sums = task.sums(params, part, rng, *constants)
            means = (sums[name] / jnp.maximum(counts[name], 1) for name in task.losses)
            return sum(means, start=jnp.float32(0)), sums

        gradient = jax.grad(objective, has_aux=True)
        if accumulation == 1:
            grads, sums = gradient(params, batch, rng)
        else:
            parts = jax.tree.map(lambda x: _micro_batches(x, accumulation), batch)

            def add(total: Any, numbered: tuple[jax.Array, Batch]) -> tuple[Any, None]:
                number, part = numbered
                new = gradient(params, part, jax.random.fold_in(rng, number))
                return jax.tree.map(jnp.add, total, new), None

            first = jax.tree.map(lambda x: x[0], parts)
            shapes = jax.eval_shape(gradient, params, first, rng)
            zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            numbered_parts = (jnp.arange(accumulation), parts)
            (grads, sums), _ = jax.lax.scan(add, zero, numbered_parts)
        if exchange:
            grads = exchange(grads)
        return grads, reduce(sums), counts

    return gradients


@cache_by_arguments
def make_eval_step(task: Task) -> Callable[..., Metrics]:
    """Return `eval_step(params, batch, *constants) -> {name: (sum, count)}`, without dropout."""

    def eval_step(params: Params, batch: Batch, *constants: PyTree) -> Metrics:
        sums = task.sums(params, batch, None, *constants)
        counts = task.counts(batch)
        return {name: (sums[name], counts[name]) for name in sums}

    return eval_step


def _micro_batches(x: jax.Array, parts: int) -> jax.Array:
    """`[B, ...] -> [parts, B/parts, ...]`, taking every parts-th row: under `jit` the rows of one
    device then stay on it, where contiguous parts would occupy some of the devices only."""
    return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
