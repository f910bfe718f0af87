"""The regression probe: can a linear map predict the position from the position vector?

Trained on the vectors of even positions, tested on all, as in the blog post *What has the
positional "embedding" learned?* In float64: tables of low-frequency sinusoids are ill-conditioned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Real
from pe_jax.properties.compiled import refuse_complex

RIDGE = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)

LinearMap = Callable[[Float[Array, "N D"]], Float[np.ndarray, " N"]]


class Fit(Record, pytree=True):
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
    positions: Real[Array, " N"] | None = None,
    *,
    train: Bool[Array, " N"] | None = None,
    ridge: Sequence[float] = RIDGE,
) -> list[Fit]:
    """Return one fit for each penalty, all from one singular value decomposition.

    Args:
      vectors: the position vectors.
      positions: the values to predict; default 0 .. N-1.
      train: mask of the training positions; default the even ones. The others are test positions.
      ridge: penalties, see `Fit`; the first, 0, is ordinary least squares.

    Raises:
      ValueError: with fewer than two vectors to train or none to test on, for a penalty below 0, or
        for vectors or positions that are complex or not finite.
    """
    x = finite("vectors", vectors)
    y = finite("positions", np.arange(len(x)) if positions is None else positions)
    train = y % 2 == 0 if train is None else np.asarray(train)
    if train.sum() < 2 or train.all():
        raise ValueError(
            "The regression probe needs at least 2 vectors to train on and others to test on, got "
            f"{len(x)} vectors, {train.sum()} of them to train on."
        )
    subsets = {"all": np.ones_like(train), "train": train, "test": ~train}
    maps = ridge_maps(x[train], y[train], ridge)
    fits = []
    for penalty, predict in zip(ridge, maps, strict=True):
        predicted = predict(x)
        r2 = {}
        mean_absolute_error = {}
        for name, subset in subsets.items():
            errors = abs(y[subset] - predicted[subset])
            r2[name] = r_squared(y[subset], predicted[subset])
            mean_absolute_error[name] = float(errors.mean())
        fits.append(
            Fit(
                ridge=float(penalty),
                predicted=predicted,
                r2=r2,
                mean_absolute_error=mean_absolute_error,
            )
        )
    return fits


def finite(name: str, x: Array) -> np.ndarray:
    """Return `x` in float64; raise `ValueError` if it is complex or not finite."""
    refuse_complex(name, x)
    x = np.asarray(x, np.float64)
    count = int((~np.isfinite(x)).sum())
    if count:
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {count} of {x.size} values."
        )
    return x


def ridge_maps(
    x: Float[Array, "N D"], y: Real[Array, " N"], penalties: Sequence[float]
) -> Iterator[LinearMap]:
    """Yield the map with the least squared error and penalty on its weights, for each penalty, on
    one singular value decomposition.

    Args:
      penalties: multiples of the largest squared singular value of the centered `x`; 0 is the
        minimum-norm least-squares solution.

    Raises:
      ValueError: for a penalty below 0, or one that is not finite.
    """
    wrong = [penalty for penalty in penalties if not 0 <= penalty < np.inf]
    if wrong:
        raise ValueError(f"penalties must be finite and 0 or more, got {wrong[0]}.")
    x = np.asarray(x, np.float64)
    centre = x.mean(0)
    level = float(np.mean(y))
    # The triangle has the singular values and right vectors of `x`, in rows no more than columns.
    both = np.column_stack([x - centre, y - level])
    triangle = np.asarray(np.linalg.qr(both, mode="r"))
    u, s, vt = np.linalg.svd(triangle[:, :-1], full_matrices=False)
    projection = u.T @ triangle[:, -1]
    largest = s[0] if len(s) else 0.0
    # Without the directions whose singular values are rounding errors.
    rounding = largest * np.finfo(np.float64).eps * max(x.shape)
    rank = int((s > rounding).sum())

    def with_weights(weights: np.ndarray) -> LinearMap:
        return lambda x: (np.asarray(x, np.float64) - centre) @ weights + level

    for penalty in penalties:
        gain = s[:rank] / (s[:rank] ** 2 + penalty * largest**2)
        yield with_weights(vt[:rank].T @ (gain * projection[:rank]))


def r_squared(y: Real[Array, " N"], predicted: Real[Array, " N"]) -> float:
    """Return R², see `Fit`; NaN if all `y` are equal."""
    spread = ((y - y.mean()) ** 2).sum()
    if not spread:
        return math.nan
    return float(1 - ((y - predicted) ** 2).sum() / spread)
