"""The official metrics of GLUE, in points: 100 times those of scikit-learn and scipy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import numpy as np


def _sklearn() -> ModuleType:
    try:
        return importlib.import_module("sklearn.metrics")
    except ImportError as error:
        raise ValueError(
            f"GLUE scores need scikit-learn: pip install 'pe_jax[finetuning]' ({error})."
        ) from error


def _correlation(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def score(labels: np.ndarray, predictions: np.ndarray) -> float:
        from scipy import stats  # As long to import as all of JAX, and only needed here.

        of = getattr(stats, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            value = float(of(labels, predictions).statistic)
        return 0.0 if np.isnan(value) else value  # Constant answers do not correlate.

    return score


# score(labels [N], predictions [N]) -> a number up to 1.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda labels, predictions: _sklearn().accuracy_score(labels, predictions),
    "f1": lambda labels, predictions: _sklearn().f1_score(labels, predictions, zero_division=0.0),
    "matthews": lambda labels, predictions: _sklearn().matthews_corrcoef(labels, predictions),
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}


def glue_score(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """A metric in points.

    Args:
      metric: a name in `METRICS`.
      labels, predictions: `[N]` classes, or values of a regression.

    Raises:
      ValueError: for predictions that are not finite, or if scikit-learn is not installed.
    """
    if broken := int(np.sum(~np.isfinite(predictions))):
        raise ValueError(
            f"{broken} of {len(predictions)} predictions are not finite, so they cannot be scored. "
            "The model's weights are broken."
        )
    return 100 * float(METRICS[metric](labels, predictions))
