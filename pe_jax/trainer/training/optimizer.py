"""AdamW and LAMB as BERT uses them, other optimizers of optax, and schedules of their rate."""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from pe_jax.encodings import PositionEncoding
from pe_jax.encodings.parameters import frequency_mask
from pe_jax.models.config import BertConfig
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.training.pytrees import Params, PyTree, named_leaves
from pe_jax.trainer.training.step import cache_by_arguments


def _direction(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return how the gradient becomes a step, before weight decay and the learning rate."""
    match config.name:
        case "lion":
            return optax.scale_by_lion(config.b1, config.b2)
        case "muon":
            # At a rate of -1 it is the direction alone. Matrices get steps of the size of AdamW's.
            return optax.contrib.muon(
                -1.0,
                eps=config.epsilon,
                adam_b1=config.b1,
                adam_b2=config.b2,
                muon_weight_dimension_numbers=matrices,
                consistent_rms=0.2,
            )
        case "sgd":
            return optax.trace(config.b1)
    is_nesterov = config.name == "nadamw"
    return optax.scale_by_adam(
        config.b1, config.b2, config.epsilon, nesterov=is_nesterov
    )


# `mark(params)`: a tree like `params`, True for some of its leaves.
Mark = Callable[[Params], PyTree]

# Weight decay and LAMB's trust ratio skip leaves with these last names in their path, and
# frequencies: pulling those to 0 would make every sinusoid a constant.
_PLAIN = ("bias", "scale")


def no_frequencies(params: Params) -> PyTree:
    """Mark no parameter."""
    return jax.tree.map(lambda _: False, params)


def frequencies(encoding: PositionEncoding, params: Params) -> PyTree:
    """Mark the learned frequencies among the parameters of a model with heads."""
    marks = no_frequencies(params)
    if "position" not in params["bert"]:
        return marks
    position = frequency_mask(encoding, params["bert"]["position"])
    return {**marks, "bert": {**marks["bert"], "position": position}}


def make_schedule(
    name: str, peak: float, warmup: int, steps: int, decay: int = 0
) -> optax.Schedule:
    """Return a learning rate that rises linearly from 0 to `peak` in `warmup` steps.

    Args:
      name: of the way down to 0 at `steps`: "linear"; "cosine", half a period; or "wsd" (warmup,
        stable, decay; Hu et al. 2024), `peak` until `decay` steps before the end, then linear.
    """
    rise = optax.linear_schedule(0.0, peak, max(warmup, 1))
    rest = max(steps - warmup, 1)
    if name == "wsd":
        fall = optax.linear_schedule(peak, 0.0, max(decay, 1))
        stable = optax.constant_schedule(peak)
        after = optax.join_schedules([stable, fall], [steps - decay - warmup])
    elif name == "cosine":
        after = optax.cosine_decay_schedule(peak, rest)
    else:
        after = optax.linear_schedule(peak, 0.0, rest)
    return optax.join_schedules([rise, after], [warmup])


def matrices(params: Params) -> PyTree:
    """Return the axes of inputs and outputs of the kernels of layers, for Muon; None elsewhere.

    Queries, keys and values, and the two parts of a gated layer, are matrices of their own.
    """

    def axes(
        path: tuple[jax.tree_util.DictKey, ...], x: jax.Array
    ) -> MuonDimensionNumbers | None:
        names = ["", *(part.key for part in path)]
        module, leaf = names[-2:]
        in_layer = any(name.startswith("layer_") for name in names)
        if leaf != "kernel" or not in_layer:
            return None
        if module == "out":
            return MuonDimensionNumbers((0, 1), 2)
        is_gated = module == "up" and x.ndim == 3
        has_parts = module in ("qkv", "key_value") or is_gated
        first_output = 2 if has_parts else 1
        return MuonDimensionNumbers(0, tuple(range(first_output, x.ndim)))

    return jax.tree.map_with_path(axes, params)


def update_rule(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    frequencies: Mark = no_frequencies,
) -> optax.GradientTransformation:
    """Return the optimizer that `config.name` names.

    AdamW (Loshchilov & Hutter 2019): x <- x - rate·u with u = m̂ / (√v̂ + ε) + decay·x. The others
    have their own first term of u.

    There is no decay of biases, LayerNorm scales and frequencies. A ratio of 0 in `config.rates`
    freezes: such parameters have no state, and no part in the norm of the gradient.

    LAMB (You et al. 2020, algorithm 2, φ(z) = z): x <- x - rate·‖x‖/‖u‖·u. The ratio ‖x‖/‖u‖, one
    for each array, allows a large rate for large batches. As in the authors' code, arrays that are
    not decayed have none: the norm of a bias says nothing about how far it may move. Where a norm
    is 0, the ratio is 1. Query, key and value share one array and ratio.

    Args:
      schedule: learning rate of a step.
      frequencies: which parameters have `config.frequency_learning_rate`, whatever `config.rates`.
    """
    ratios, frequency_rate = config.ratios, config.frequency_learning_rate

    def decayed(params: Params) -> PyTree:
        def is_decayed(path: Any, x: jax.Array, is_frequency: bool) -> bool:
            return x.ndim > 1 and not is_frequency and path[-1].key not in _PLAIN

        return jax.tree.map_with_path(is_decayed, params, frequencies(params))

    def rates(params: Params) -> PyTree:
        by_group = by_path(params, ratios)
        if frequency_rate is None:
            return by_group
        frequency_ratio = frequency_rate / config.learning_rate
        marks = frequencies(params)
        return jax.tree.map(
            lambda ratio, mark: frequency_ratio if mark else ratio, by_group, marks
        )

    def trained(params: Params) -> PyTree:
        return jax.tree.map(bool, rates(params))

    def frozen(params: Params) -> PyTree:
        return jax.tree.map(operator.not_, rates(params))

    def scale(updates: Params, _: Params | None) -> Params:
        return jax.tree.map(jnp.multiply, updates, rates(updates))

    parts = []
    direction = _direction(config)
    if ratios:
        parts.append(optax.masked(optax.set_to_zero(), frozen))
        direction = optax.masked(direction, trained)
    if config.clip_norm:
        parts.append(_clip(config.clip_norm))
    parts.append(direction)
    parts.append(optax.add_decayed_weights(config.weight_decay, mask=decayed))
    if config.name == "lamb":
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decayed))
    if ratios or frequency_rate is not None:
        parts.append(optax.stateless(scale))
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


def _clip(largest: float) -> optax.GradientTransformation:
    """Return `optax.clip_by_global_norm` as a product with one scalar, which XLA computes again in
    each of its uses. optax's division is a copy of all gradients, 1.8 times the time of an update
    on a CPU (docs/measurements.md)."""

    def clipped(gradients: Params, _: Params | None) -> Params:
        factor = jnp.minimum(1.0, largest / optax.tree.norm(gradients))
        return jax.tree.map(lambda x: x * factor, gradients)

    return optax.stateless(clipped)


def by_path(params: Params, ratios: Mapping[str, float]) -> PyTree:
    """Return the ratio of the last pattern that fits each parameter's path; 1 where none does.

    Raises:
      ValueError: for a pattern that fits no parameter, unless it is one of position parameters or
        of token types: some encodings, and modern encoders, have none.
    """
    paths = [path for path, _ in named_leaves(params)]
    ratio_by_path = dict.fromkeys(paths, 1.0)
    for pattern, ratio in ratios.items():
        fitting = fnmatch.filter(paths, pattern)
        may_be_absent = pattern.startswith(("bert/position/", "bert/token_type/"))
        if not fitting and not may_be_absent:
            groups = sorted({"/".join(path.split("/")[:2]) for path in paths})
            raise ValueError(
                f"config.optimizer.rates: no parameter matches {pattern!r}. Their paths begin with "
                f"{', '.join(groups)}."
            )
        ratio_by_path |= dict.fromkeys(fitting, ratio)
    return jax.tree.unflatten(jax.tree.structure(params), ratio_by_path.values())


@cache_by_arguments
def make_optimizer(
    config: OptimizerConfig, steps: int, model: BertConfig
) -> tuple[optax.Schedule, optax.GradientTransformation]:
    """Return the learning rate and the optimizer of a run of `steps` steps. Learnable frequencies
    of the model's encoding have no weight decay; unused rows of token embeddings stay as they
    are."""
    warmup = round(config.warmup * steps)
    # Rounding up both may give a step more than there are.
    decay = min(round(config.decay * steps), steps - warmup)
    schedule = make_schedule(
        config.schedule, config.learning_rate, warmup, steps, decay
    )
    is_frequency = functools.partial(frequencies, model.encoding())
    optimizer = update_rule(config, schedule, is_frequency)
    if model.unused_rows:
        keep = optax.stateless(functools.partial(keep_unused_rows, model.vocab_size))
        optimizer = optax.chain(optimizer, keep)
    return schedule, optimizer


def keep_unused_rows(tokens: int, updates: Params, _: Params | None = None) -> Params:
    """Return updates that leave rows without a token as they are: weight decay would move them."""
    by_path = dict(named_leaves(updates))
    for path in ("bert/token/embedding", "masked_lm/decoder", "masked_lm/bias"):
        if path in by_path:
            by_path[path] = by_path[path].at[tokens:].set(0)
    return jax.tree.unflatten(jax.tree.structure(updates), by_path.values())
