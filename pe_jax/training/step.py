"""The training step: a pure function (state, batch) -> (state, metrics).

Losses and scores are sums with denominators, divided once, after every reduction: the mean of
per-device means is not the global mean when devices hold different numbers of masked tokens. The
denominators come from the batch alone, so they are known before the first micro-batch runs and the
gradients of micro-batches and devices simply add up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.custom_batching import sequential_vmap
from jax.stages import Wrapped

from pe_jax.training.pytrees import Batch, Metrics, Params, PyTree, Sums

T = TypeVar("T")


class Task(NamedTuple):
    """A task to train, as pure functions.

    Attributes:
      init: `init(rng) -> params`.
      counts: `counts(batch) -> {name: denominator}`, scalars.
      sums: `sums(params, batch, rng) -> {name: sum}`, scalars under the same names; `rng` None
        means no dropout.
      losses: the names whose means add up to the objective.
    """

    init: Callable[[jax.Array], Params]
    counts: Callable[[Batch], Sums]
    sums: Callable[[Params, Batch, jax.Array | None], Sums]
    losses: tuple[str, ...]


class TrainState(NamedTuple):
    """Everything that a step changes, and the PRNG key of its dropout."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    rng: jax.Array


TrainStep = Callable[..., tuple[TrainState, Metrics]]


def init_state(task: Task, optimizer: optax.GradientTransformation, rng: jax.Array) -> TrainState:
    """The state before the first step."""
    for_params, for_dropout = jax.random.split(rng)
    params = task.init(for_params)
    return TrainState(jnp.int32(0), params, optimizer.init(params), for_dropout)


@functools.lru_cache(maxsize=16)  # The same step is traced and compiled once per process.
def make_train_step(
    task: Task, optimizer: optax.GradientTransformation, *, accumulation: int = 1
) -> TrainStep:
    """A step that runs the batch in `accumulation` micro-batches, with the result of one.

    Returns:
      `train_step(state, batch, axis=None, exchanged=None) -> (state, metrics)`. `axis` names the
      mapped device axis where the step runs per device; without it, batch and sums are global
      already. `exchanged` is the dtype in which devices add their gradients; default: their own.
    """

    def train_step(
        state: TrainState,
        batch: Batch,
        axis: str | None = None,
        exchanged: jnp.dtype | None = None,
    ) -> tuple[TrainState, Metrics]:
        reduce = (lambda x: jax.lax.psum(x, axis)) if axis else (lambda x: x)
        counts = reduce(task.counts(batch))
        rng = jax.random.fold_in(state.rng, state.step)
        if axis:
            rng = jax.random.fold_in(rng, jax.lax.axis_index(axis))

        def objective(params: Params, part: Batch, rng: jax.Array) -> tuple[jax.Array, Sums]:
            sums = task.sums(params, part, rng)
            means = [_mean(sums[name], counts[name]) for name in task.losses]
            return sum(means, start=jnp.float32(0)), sums

        gradient = jax.grad(objective, has_aux=True)
        if accumulation == 1:
            grads, sums = gradient(state.params, batch, rng)
        else:
            parts = jax.tree.map(lambda x: _micro_batches(x, accumulation), batch)

            def add(total: Any, numbered: tuple[jax.Array, Batch]) -> tuple[Any, None]:
                number, part = numbered
                new = gradient(state.params, part, jax.random.fold_in(rng, number))
                return jax.tree.map(jnp.add, total, new), None

            zero = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype),
                jax.eval_shape(gradient, state.params, jax.tree.map(lambda x: x[0], parts), rng),
            )
            (grads, sums), _ = jax.lax.scan(add, zero, (jnp.arange(accumulation), parts))
        narrow = jax.tree.map(lambda x: x.astype(exchanged or x.dtype), grads)
        narrow, sums = reduce((narrow, sums))
        grads = jax.tree.map(lambda x, wide: x.astype(wide.dtype), narrow, grads)

        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {name: (sums[name], counts[name]) for name in sums}
        metrics["gradient_norm"] = (optax.tree.norm(grads), jnp.float32(1))
        return TrainState(state.step + 1, params, opt_state, state.rng), metrics

    return train_step


# A state of several seeds has a leading axis of seeds everywhere but in the number of steps.
_EACH: Any = 0
SEED_AXES = TrainState(step=None, params=_EACH, opt_state=_EACH, rng=_EACH)  # type: ignore[arg-type]


def each_seed(function: Callable[..., T], in_axes: Any, *, in_turn: bool) -> Callable[..., T]:
    """`function` vmapped over seeds; `in_turn`, it runs for one after another, not for all at
    once."""
    return jax.vmap(sequential_vmap(function) if in_turn else function, in_axes=in_axes)


def over_seeds(train_step: TrainStep, *, in_turn: bool) -> TrainStep:
    """`train_step` for several runs that differ in their seed only, as one program.

    Args:
      in_turn: as of `each_seed`.

    Returns:
      `step(state, batch) -> (state, metrics)`: batch and metrics with a leading axis of seeds, the
      state by `SEED_AXES`.
    """

    def seed_step(state: TrainState, batch: Batch) -> tuple[tuple[PyTree, ...], Metrics]:
        new, metrics = train_step(state, batch)
        return new[1:], metrics  # The number of steps has no axis of seeds.

    step_of_seeds = each_seed(seed_step, (SEED_AXES, 0), in_turn=in_turn)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        seed_states, metrics = step_of_seeds(state, batch)
        return TrainState(state.step + 1, *seed_states), metrics

    return step


def init_seeds(
    task: Task,
    optimizer: optax.GradientTransformation,
    seeds: Sequence[int],
    shardings: TrainState,
) -> TrainState:
    """`init_state` of each seed, as `over_seeds` takes them."""
    init = _make_seeds_init(task, optimizer, shardings)
    return init(jax.vmap(jax.random.key)(np.array(seeds)))


@functools.lru_cache(maxsize=16)
def _make_seeds_init(
    task: Task, optimizer: optax.GradientTransformation, shardings: TrainState
) -> Wrapped:
    init = functools.partial(init_state, task, optimizer)
    return jax.jit(jax.vmap(init, out_axes=SEED_AXES), out_shardings=shardings)


@functools.lru_cache(maxsize=16)
def make_eval_step(task: Task) -> Callable[[Params, Batch], Metrics]:
    """`eval_step(params, batch) -> {name: (sum, count)}`, without dropout."""

    def eval_step(params: Params, batch: Batch) -> Metrics:
        sums, counts = task.sums(params, batch, None), task.counts(batch)
        return {name: (sums[name], counts[name]) for name in sums}

    return eval_step


def _mean(total: jax.Array, count: jax.Array) -> jax.Array:
    return total / jnp.maximum(count, 1)


def _micro_batches(x: jax.Array, parts: int) -> jax.Array:
    """`[B, ...] -> [parts, B/parts, ...]`, taking every parts-th row: under `jit` the rows of one
    device then stay on it, where contiguous parts would occupy some of the devices only."""
    return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
