"""The position probe: can the position be read off the hidden state of a single token?

After Haviv et al. 2022 (arXiv 2203.16634), section 4, who train a feed-forward classifier of
positions on each layer. Here it is a regression, linear and by a network of one hidden layer:
errors are in positions either way, and R² says how much better than a guess.

Shapes: N layers, K tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import extra
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.properties.arithmetic import ratio
from pe_jax.properties.position_regression import RIDGE, r_squared, ridge_maps

_RATE = 3e-3
_CHECKS = 20  # How often the network is compared on the tokens to choose by.

# Hidden states in all layers, and the positions of their tokens.
Tokens: TypeAlias = tuple[Float[Array, "N _ D"], Real[Array, " _"]]


class Probe(Record, pytree=True):
    """Accuracy of the positions predicted in each layer, on the tokens to test on.

    Attributes:
      r2: 1 for exact predictions, 0 for guessing the mean, below 0 for worse; NaN for hidden states
        that are not finite, and where there is one position only.
      mean_absolute_error: in positions.
      chosen: the penalty of the linear map (see `Fit.ridge`), or the steps of the network, with the
        least squared error on the tokens to choose by.
    """

    r2: Float[np.ndarray, " N"]
    mean_absolute_error: Float[np.ndarray, " N"]
    chosen: Float[np.ndarray, " N"]


def linear_probe(
    train: Tokens, choose: Tokens, test: Tokens, *, ridge: Sequence[float] = RIDGE
) -> Probe:
    """Predict positions by ridge regression in each layer, in float64.

    Args:
      train, choose, test: tokens of different texts: to fit, to choose the penalty by, to score.
      ridge: penalties to choose from.

    Raises:
      ValueError: for different numbers of layers, or a penalty below 0 or not finite.
    """
    predicted = []
    chosen = []
    for states in zip(train[0], choose[0], test[0], strict=True):
        x, x_choose, x_test = (np.asarray(layer, np.float64) for layer in states)
        if not all(np.isfinite(layer).all() for layer in (x, x_choose, x_test)):
            predicted.append(np.full(len(x_test), np.nan))
            chosen.append(np.nan)
            continue
        maps = list(ridge_maps(x, train[1], ridge))
        errors = [((predict(x_choose) - choose[1]) ** 2).mean() for predict in maps]
        best = int(np.argmin(errors))
        predicted.append(maps[best](x_test))
        chosen.append(float(ridge[best]))
    return _scored(test[1], np.stack(predicted), np.stack(chosen))


def mlp_probe(
    rng: jax.Array,
    train: Tokens,
    choose: Tokens,
    test: Tokens,
    *,
    width: int = 64,
    steps: int = 1000,
    batch: int = 256,
) -> Probe:
    """Predict positions by a network of one hidden layer (ReLU) on each layer's hidden states.

    It is trained by Adam, in one program for all layers. Needs optax (the extra `train`).

    Args:
      rng: draws the weights and the batches, the same for all layers.
      train, choose, test: tokens of different texts: to fit, to stop early by, to score.
      width: of the hidden layer.
      steps, batch: of training, at most; the weights of the best of 20 moments are kept, or those
        that predict the mean of `train` if nothing is better.

    Raises:
      ModuleNotFoundError: without optax.
    """
    level = np.mean(train[1])
    scale = np.std(train[1]) or 1.0

    def unit(tokens: Tokens) -> Tokens:
        states, positions = tokens
        return states, jnp.asarray((positions - level) / scale, jnp.float32)

    tokens = (unit(train), unit(choose), test[0])
    unit_predicted, chosen = _networks(rng, tokens, width, steps, batch)
    predicted = np.asarray(unit_predicted, np.float64) * scale + level
    return _scored(test[1], predicted, np.asarray(chosen))


class _Checked(NamedTuple):
    """Weights after some steps, with their error on the tokens to choose by."""

    error: Array
    weights: dict[str, Array]
    steps: Array


@partial(jax.jit, static_argnums=(2, 3, 4))
def _networks(
    rng: jax.Array,
    tokens: tuple[Tokens, Tokens, Float[Array, "N M D"]],
    width: int,
    steps: int,
    batch: int,
) -> tuple[jax.Array, jax.Array]:
    """Return predictions `[N, M]` of positions in units of their spread, and steps `[N]`."""
    with extra("train"):
        import optax

    train, choose, test = tokens
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, steps))
    checks = min(_CHECKS, steps)
    draw, first = jax.random.split(rng)

    def error(weights: dict[str, Array], x: Array, y: Array) -> jax.Array:
        return ((_predict(weights, x) - y) ** 2).mean()

    def one_layer(*states: Array) -> tuple[jax.Array, jax.Array]:
        mean = states[0].mean(0)
        spread = states[0].std(0)
        x, x_choose, x_test = (ratio(each - mean, spread, 0.0) for each in states)
        size = x.shape[1]
        weights = {
            "in": jax.random.normal(first, (size, width)) * (2 / size) ** 0.5,
            "in_bias": jnp.zeros(width),
            "out": jnp.zeros(width),  # It starts from a guess, the mean.
            "out_bias": jnp.zeros(()),
        }

        def checked(weights: dict[str, Array], steps_done: Array) -> _Checked:
            return _Checked(error(weights, x_choose, choose[1]), weights, steps_done)

        def step(carry, number):
            weights, state = carry
            step_rng = jax.random.fold_in(draw, number)
            rows = jax.random.randint(step_rng, (batch,), 0, len(x))
            gradient = jax.grad(error)(weights, x[rows], train[1][rows])
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(weights, updates), state), None

        def check(carry, numbers):
            trained, best = carry
            trained, _ = jax.lax.scan(step, trained, numbers)
            now = checked(trained[0], numbers[-1] + 1.0)
            is_better = now.error < best.error
            best = jax.tree.map(partial(jnp.where, is_better), now, best)
            return (trained, best), None

        trained = (weights, optimizer.init(weights))
        start = (trained, checked(weights, jnp.zeros(())))
        numbers = jnp.arange(steps - steps % checks).reshape(checks, -1)
        (_, best), _ = jax.lax.scan(check, start, numbers)
        return _predict(best.weights, x_test), best.steps

    return jax.vmap(one_layer)(train[0], choose[0], test)


def _predict(weights: dict[str, Array], x: Float[Array, "K D"]) -> jax.Array:
    hidden = jax.nn.relu(x @ weights["in"] + weights["in_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


def _scored(positions: Array, predicted: np.ndarray, chosen: np.ndarray) -> Probe:
    errors = np.abs(predicted - positions).mean(1)
    return Probe(
        r2=np.array([r_squared(positions, layer) for layer in predicted]),
        mean_absolute_error=errors,
        chosen=chosen,
    )
