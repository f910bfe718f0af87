"""The interface between fine-tuning and a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pe_jax.trainer.data.rows import Rows
from pe_jax.trainer.training.pytrees import PyTree, Scalars
from pe_jax.trainer.training.step import Task

# What a BERT reads of a batch.
INPUTS = {"tokens": np.int32, "token_type_ids": np.int32, "mask": np.bool_}
VALIDATION = "validation"
HELD_OUT = "held_out"  # The name of the training data that is kept to select by.
_SPLIT_SEED = 20_210_503


class FinetuningTask(NamedTuple):
    """Data, a head, and scores."""

    dataset: str  # What it is scored on.
    trained_on: str
    # The head and its losses; its outputs are logits `[B, C]`, or if `per_token` logits or integers
    # `[B, L]`.
    objective: Task
    per_token: bool
    train: Rows
    held_out: dict[str, Rows]  # The rows to score, by name.
    # `score(name, outputs)` of one seed's outputs for one of `held_out`, `[N, C]`, or `[N, L]` with
    # L the length of the longest inputs, padded with the least number beyond the length of a row's
    # own batch: scores in points by metric, and the predictions, texts by name of the file.
    score: Callable[[str, PyTree], tuple[Scalars, dict[str, str]]]
    baseline: Scalars  # Scores of a trivial answer.
    metric: str  # The score to select by.
    held_out_metric: str  # That of training data kept to select by; empty if none was.
    notes: list[str]  # What a reader should know about the data.
    # The names of classes, where they come from the data: an exported model has them.
    labels: tuple[str, ...] = ()
    scheme: str = ""  # Of the labels of words; empty for other tasks.


def prediction_path(folder: Path, step: int, seed: int, name: str) -> Path:
    """Return the file of predictions of a seed in the folder of a run."""
    return folder / "predictions" / f"step_{step}" / f"seed_{seed}_{name}"


def labels_file(folder: Path) -> Path:
    """Return the file with the labels of a run whose data names them, in their order."""
    return folder / "labels.json"


def score_name(metric: str, held_out: str) -> str:
    """Return the name of a metric of one of the held-out sets."""
    return metric if held_out == VALIDATION else f"{metric}_{held_out}"


def split_off(count: int, fraction: float) -> np.ndarray:
    """Choose examples, or groups of them, to keep from training, the same for all seeds and models.

    Args:
      fraction: of them to keep; 0 keeps none. Otherwise at least one is kept, and one left to train
        on.

    Returns:
      `[count]` bool, True where one is kept from training.
    """
    is_kept = np.zeros(count, bool)
    if fraction:
        size = min(max(1, round(fraction * count)), count - 1)
        order = np.random.default_rng(_SPLIT_SEED).permutation(count)
        is_kept[order[:size]] = True
    return is_kept
