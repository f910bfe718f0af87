"""The position probe: can the position be read off the hidden state of a single token?

After Haviv et al., *Transformer Language Models without Positional Encodings Still Learn Positional
Information* (2022, arXiv 2203.16634), section 4, who train a feed-forward classifier of positions
on each layer. Here it is a regression, linear and by a network of one hidden layer: errors are in
positions either way, and R² says how much better than a guess.

Shapes: N layers, K tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.errors import extra
from pe_jax.properties.arithmetic import ratio
from pe_jax.properties.position_regression import RIDGE, r_squared, ridge_maps
from pe_jax.shapes import Array, Float, Real

_RATE = 3e-3
_CHECKS = 20  # How often the network is compared on the tokens to choose by.


class Tokens(NamedTuple):
    """Hidden states in all layers, and the positions of their tokens."""

    states: Float[Array, "N K D"]
    positions: Real[Array, " K"]


class Probe(NamedTuple):
    """How well positions are predicted in each layer, on the tokens to test on.

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
    """Ridge regression in each layer, in float64.

    Args:
      train, choose, test: tokens of different texts: to fit, to choose the penalty by, to score.
      ridge: penalties to choose from.
    """
    layers = zip(train.states, choose.states, test.states, strict=True)
    fits = [_linear(train, choose, test, states, ridge) for states in layers]
    return _scored(test, *map(np.stack, zip(*fits, strict=True)))


def _linear(
    train: Tokens,
    choose: Tokens,
    test: Tokens,
    states: tuple[Array, Array, Array],
    ridge: Sequence[float],
) -> tuple[np.ndarray, float]:
    """The predictions for the test tokens of one layer, and the penalty."""
    x, x_choose, x_test = (np.asarray(layer, np.float64) for layer in states)
    if not all(np.isfinite(layer).all() for layer in (x, x_choose, x_test)):
        return np.full(len(x_test), np.nan), np.nan
    maps = list(ridge_maps(x, train.positions, ridge))
    errors = [((predict(x_choose) - choose.positions) ** 2).mean() for predict in maps]
    best = int(np.argmin(errors))
    return maps[best](x_test), float(ridge[best])


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
    """A network of one hidden layer (ReLU) on each layer's hidden states, trained by Adam; one
    program for all layers. Needs optax (the extra `train`).

    Args:
      rng: draws the weights and the batches, the same for all layers.
      train, choose, test: tokens of different texts: to fit, to stop early by, to score.
      width: of the hidden layer.
      steps, batch: of training, at most; the weights of the best of 20 moments are
        kept, or those that predict the mean of `train` if nothing is better.
    """
    level, scale = np.mean(train.positions), np.std(train.positions) or 1.0

    def unit(tokens: Tokens) -> Tokens:
        positions = (tokens.positions - level) / scale
        return Tokens(tokens.states, jnp.asarray(positions, jnp.float32))

    predicted, chosen = _networks(
        rng,
        unit(train),
        unit(choose),
        test.states,
        width=width,
        steps=steps,
        batch=batch,
    )
    return _scored(test, np.asarray(predicted, np.float64) * scale + level, np.asarray(chosen))


@partial(jax.jit, static_argnames=("width", "steps", "batch"))
def _networks(
    rng: jax.Array,
    train: Tokens,
    choose: Tokens,
    test: Float[Array, "N M D"],
    *,
    width: int,
    steps: int,
    batch: int,
) -> tuple[jax.Array, jax.Array]:
    """Predictions `[N, M]` of positions in units of their spread, and steps `[N]`."""
    with extra("train"):
        import optax

    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, steps))
    checks = min(_CHECKS, steps)
    draw, first = jax.random.split(rng)

    def one_layer(x: Array, x_choose: Array, x_test: Array) -> tuple[jax.Array, jax.Array]:
        mean, spread = x.mean(0), x.std(0)

        def scaled(x: Array) -> jax.Array:
            return ratio(x - mean, spread, 0.0)

        def error(weights: dict[str, Array], x: Array, y: Array) -> jax.Array:
            return ((_predict(weights, scaled(x)) - y) ** 2).mean()

        size = x.shape[1]
        weights = {
            "in": jax.random.normal(first, (size, width)) * (2 / size) ** 0.5,
            "in_bias": jnp.zeros(width),
            "out": jnp.zeros(width),  # It starts from a guess, the mean.
            "out_bias": jnp.zeros(()),
        }

        def step(carry, number):
            weights, state = carry
            rows = jax.random.randint(jax.random.fold_in(draw, number), (batch,), 0, len(x))
            slope = jax.grad(error)(weights, x[rows], train.positions[rows])
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(weights, updates), state), None

        def check(carry, numbers):
            trained, best = carry
            trained, _ = jax.lax.scan(step, trained, numbers)
            now = (error(trained[0], x_choose, choose.positions), trained[0], numbers[-1] + 1.0)
            best = jax.tree.map(partial(jnp.where, now[0] < best[0]), now, best)
            return (trained, best), None

        start = (weights, optimizer.init(weights))
        # The least error so far on the tokens to choose by, with its weights and step.
        best = (error(weights, x_choose, choose.positions), weights, jnp.zeros(()))
        numbers = jnp.arange(steps - steps % checks).reshape(checks, -1)
        (_, (_, weights, chosen)), _ = jax.lax.scan(check, (start, best), numbers)
        return _predict(weights, scaled(x_test)), chosen

    return jax.vmap(one_layer)(train.states, choose.states, test)


def _predict(weights: dict[str, Array], x: Float[Array, "K D"]) -> jax.Array:
    return (
        jax.nn.relu(x @ weights["in"] + weights["in_bias"]) @ weights["out"] + weights["out_bias"]
    )


def _scored(test: Tokens, predicted: np.ndarray, chosen: np.ndarray) -> Probe:
    return Probe(
        np.array([r_squared(test.positions, layer) for layer in predicted]),
        np.abs(predicted - test.positions).mean(1),
        chosen,
    )
