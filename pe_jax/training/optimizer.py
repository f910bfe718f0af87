"""AdamW as BERT uses it: warm-up and linear decay, weight decay on matrices only."""

from __future__ import annotations

from typing import Any

import jax
import optax

# Leaves that weight decay leaves alone, by the last name of their path: pulling frequencies to 0
# would turn every sinusoid into a constant.
_NO_DECAY = ("bias", "scale", "frequencies")


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
    *,
    weight_decay: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-6,
    clip_norm: float = 1.0,
    frequency_scale: float = 1.0,
) -> optax.GradientTransformation:
    """AdamW with clipping by global norm.

    Args:
      schedule: learning rate of a step.
      weight_decay: not applied to biases, LayerNorm scales and frequencies.
      clip_norm: gradients are scaled down to this norm; 0 means no clipping.
      frequency_scale: the learning rate of frequencies over that of the rest.
    """
    parts = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    parts += [
        optax.scale_by_adam(b1, b2, epsilon),
        optax.add_decayed_weights(weight_decay, mask=lambda p: _named(p, _NO_DECAY, False)),
    ]
    if frequency_scale != 1.0:
        parts.append(
            optax.masked(optax.scale(frequency_scale), lambda p: _named(p, ("frequencies",), True))
        )
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


def _named(params: Any, names: tuple[str, ...], value: bool) -> Any:
    """A tree like `params`: `value` where the last key is one of `names`, elsewhere `not value`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: value if path[-1].key in names else not value, params
    )
