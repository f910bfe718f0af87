"""The regression probe: can a linear map predict the position from the position vector?

Trained on the vectors of even positions, tested on all, as in the blog post *What has the
positional "embedding" learned?* In float64: tables of low-frequency sinusoids are ill-conditioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pe_jax.shapes import Array, Bool, Float, Int

RIDGE = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


class Fit(NamedTuple):
    """A linear map from position vectors to positions, and its errors.

    Attributes:
      ridge: the penalty, as a multiple of the largest squared singular value of the training
        vectors; 0 is the minimum-norm least-squares solution.
      predicted: `[N]`, for all positions.
      r2, mean_absolute_error: on "all", the "train" and the "test" positions; errors in positions.
        R² is 1 for exact predictions, 0 for predicting the mean, below 0 for worse.
    """

    ridge: float
    predicted: np.ndarray
    r2: dict[str, float]
    mean_absolute_error: dict[str, float]


def regress(
    vectors: Float[Array, "N D"],
    positions: Int[Array, " N"] | None = None,
    *,
    train: Bool[Array, " N"] | None = None,
    ridge: Sequence[float] = RIDGE,
) -> list[Fit]:
    """One fit for each penalty, all from one singular value decomposition.

    Args:
      vectors: the position vectors.
      positions: the values to predict; default 0 .. N-1.
      train: mask of the training positions; default the even ones. The others are test positions.
      ridge: penalties, see `Fit`; the first, 0, is ordinary least squares.

    Raises:
      ValueError: with fewer than two vectors to train or none to test on, a penalty below 0, or
        values that are not finite.
    """
    x = np.asarray(vectors, np.float64)
    y = np.arange(len(x)) if positions is None else np.asarray(positions)
    train = y % 2 == 0 if train is None else np.asarray(train)
    if train.sum() < 2 or train.all():
        raise ValueError(
            f"A regression probe trains on 2 vectors or more and tests on others, got {len(x)} "
            f"vectors, {train.sum()} of them to train on."
        )
    if min(ridge) < 0:
        raise ValueError(f"A ridge penalty is 0 or more, got {min(ridge)}.")
    if not np.isfinite(x).all():
        raise ValueError("The position vectors hold values that are not finite.")
    subsets = {"all": np.ones_like(train), "train": train, "test": ~train}
    return [
        Fit(
            float(penalty),
            predicted,
            {name: _r2(y[subset], predicted[subset]) for name, subset in subsets.items()},
            {name: float(abs(y - predicted)[subset].mean()) for name, subset in subsets.items()},
        )
        for penalty, predicted in zip(ridge, _predictions(x, y, train, ridge), strict=True)
    ]


def _predictions(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, ridge: Sequence[float]
) -> Iterator[np.ndarray]:
    """The predictions for all rows of `x`, for each penalty."""
    mean_x, mean_y = x[train].mean(0), y[train].mean()
    u, s, vt = np.linalg.svd(x[train] - mean_x, full_matrices=False)
    projection = u.T @ (y[train] - mean_y)
    largest = s[0] if len(s) else 0.0
    # Without the directions whose singular values are rounding errors.
    rank = int((s > largest * np.finfo(np.float64).eps * max(x[train].shape)).sum())
    for penalty in ridge:
        gain = s[:rank] / (s[:rank] ** 2 + penalty * largest**2)
        yield (x - mean_x) @ (vt[:rank].T @ (gain * projection[:rank])) + mean_y


def _r2(y: np.ndarray, predicted: np.ndarray) -> float:
    spread = ((y - y.mean()) ** 2).sum()
    return float(1 - ((y - predicted) ** 2).sum() / spread) if spread else float("nan")
