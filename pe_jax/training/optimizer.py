"""AdamW and LAMB as BERT uses them: warmup and linear decay, weight decay on matrices only."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import optax

from pe_jax.configs.training import OptimizerConfig
from pe_jax.models import BertConfig
from pe_jax.models import frequencies as model_frequencies
from pe_jax.training.pytrees import Params, PyTree
from pe_jax.training.step import reused

# `mark(params)`: a tree like `params`, True for some of its leaves.
Mark = Callable[[Params], PyTree]

# Weight decay and LAMB's trust ratio skip leaves with these last names in their path, and
# frequencies: pulling those to 0 would make every sinusoid a constant.
_PLAIN = ("bias", "scale")


def no_frequencies(params: Params) -> PyTree:
    """Mark none."""
    return jax.tree.map(lambda _: False, params)


def linear_schedule(peak: float, warmup: int, steps: int) -> optax.Schedule:
    """0 to `peak` in `warmup` steps, then down to 0 at `steps`."""
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, peak, max(warmup, 1)),
            optax.linear_schedule(peak, 0.0, max(steps - warmup, 1)),
        ],
        [warmup],
    )


def adamw(
    schedule: optax.Schedule,
    frequencies: Mark = no_frequencies,
    *,
    weight_decay: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-6,
    clip_norm: float = 1.0,
    frequency_scale: float = 1.0,
    trust_ratio: bool = False,
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019): x <- x - rate·u with u = m̂ / (√v̂ + ε) + decay·x.

    Args:
      schedule: learning rate of a step.
      frequencies: which parameters are frequencies, see `models.frequencies`.
      weight_decay: not applied to biases, LayerNorm scales and frequencies.
      clip_norm: gradients are scaled down to this global norm; 0 means no clipping.
      frequency_scale: ratio of the learning rate of frequencies to that of all other parameters.
      trust_ratio: LAMB (You et al. 2020, algorithm 2, φ(z) = z): x <- x - rate·‖x‖/‖u‖·u. The ratio
        ‖x‖/‖u‖, one for each array, allows a large rate for large batches. As in the authors' code,
        arrays that are not decayed have none: the norm of a bias says nothing about how far it may
        move. Where a norm is 0, the ratio is 1. Query, key and value share one array and ratio.
    """

    def decayed(params: Params) -> PyTree:
        """True for matrices, but for the names and frequencies above."""

        def is_decayed(path: tuple, leaf: jax.Array, frequency: bool) -> bool:
            return leaf.ndim > 1 and not frequency and path[-1].key not in _PLAIN

        return jax.tree.map_with_path(is_decayed, params, frequencies(params))

    parts = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    parts += [
        optax.scale_by_adam(b1, b2, epsilon),
        optax.add_decayed_weights(weight_decay, mask=decayed),
    ]
    if trust_ratio:
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decayed))
    if frequency_scale != 1.0:
        parts.append(optax.masked(optax.scale(frequency_scale), frequencies))
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


lamb = functools.partial(adamw, trust_ratio=True)

# By `config.optimizer.name`: `optimizer(schedule, frequencies, **settings)`, the same settings.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"adamw": adamw, "lamb": lamb}


@reused
def make_optimizer(
    config: OptimizerConfig, steps: int, model: BertConfig
) -> tuple[optax.Schedule, optax.GradientTransformation]:
    """Return the learning rate and the optimizer of a run of `steps` steps."""
    peak, for_frequencies = config.learning_rate, config.frequency_learning_rate
    schedule = linear_schedule(peak, round(config.warmup * steps), steps)
    return schedule, OPTIMIZERS[config.name](
        schedule,
        functools.partial(model_frequencies, model),
        weight_decay=config.weight_decay,
        b1=config.b1,
        b2=config.b2,
        epsilon=config.epsilon,
        clip_norm=config.clip_norm,
        frequency_scale=1.0 if for_frequencies is None else for_frequencies / peak,
    )
