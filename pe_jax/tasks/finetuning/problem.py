"""The interface between fine-tuning and a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.data.rows import Rows
from pe_jax.tasks.train import reused
from pe_jax.training.pytrees import Batch, Params, PyTree, Scalars
from pe_jax.training.step import Task

HELD_OUT = "held_out"  # The name of the training data that is kept to select by.
_SPLIT_SEED = 20_210_503


def on_held_out(metric: str) -> str:
    """Return the name of a metric of the training data that is kept to select by."""
    return f"{metric}_{HELD_OUT}"


class Scored(NamedTuple):
    """The scores of one seed's outputs.

    Attributes:
      scores: in points, by metric.
      predictions: what to write, values of JSON by the name of the file.
    """

    scores: Scalars
    predictions: dict[str, Any]


class Problem(NamedTuple):
    """Data, a head, and scores.

    Attributes:
      dataset: what it is scored on; trained_on: what it is trained on.
      task: the head's losses.
      outputs: `outputs(params, batch)`, logits `[B, C]`, or `[B, L]` where `per_token`.
      train: the training rows.
      held_out: the rows to score, by name.
      score: `score(outputs)` of one seed, with the outputs of each of `held_out`: `[N, C]`, or
        `[N, L]` with L the length of the longest inputs, padded with the least float beyond the
        length of a row's own batch.
      baseline: scores of a trivial answer.
      metric: the score to select by; held_out_metric: that of training data that was kept for it,
        empty if none was.
      notes: what a reader should know about the data.
    """

    dataset: str
    trained_on: str
    task: Task
    outputs: Callable[[Params, Batch], PyTree]
    per_token: bool
    train: Rows
    held_out: dict[str, Rows]
    score: Callable[[dict[str, PyTree]], Scored]
    baseline: Scalars
    metric: str
    held_out_metric: str
    notes: list[str]


def split_off(count: int, fraction: float) -> np.ndarray:
    """Choose examples, or groups of them, to keep from training: `[count]` bool.

    The same for all seeds and models; at least one is kept, and one left to train on.
    """
    kept = np.zeros(count, bool)
    size = min(max(1, round(fraction * count)), count - 1)
    kept[np.random.default_rng(_SPLIT_SEED).permutation(count)[:size]] = True
    return kept


def draw(model: nn.Module, key: jax.Array) -> Params:
    """Fresh parameters of a BERT with a head."""
    return model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]


@reused
def make_outputs(model: nn.Module) -> Callable[[Params, Batch], Any]:
    """Return `outputs(params, batch)` of a BERT with a head, without dropout."""
    return lambda params, batch: apply(model, params, batch, None)


def apply(model: nn.Module, params: Params, batch: Batch, key: jax.Array | None) -> Any:
    """The head's outputs for a batch, with the type of the model's own; no key means no dropout."""
    return model.apply(
        {"params": params},
        batch["tokens"],
        batch["segments"],
        batch["valid"],
        deterministic=key is None,
        rngs=None if key is None else {"dropout": key},
    )
