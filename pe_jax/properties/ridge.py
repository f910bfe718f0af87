"""Ridge regression on one singular value decomposition, in float64, and the R² of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pe_jax.shapes import Array, Float, Real


class LinearMap(NamedTuple):
    """(x - centre)·weights + level."""

    centre: Float[np.ndarray, " D"]
    weights: Float[np.ndarray, " D"]
    level: float

    def __call__(self, x: Float[Array, "N D"]) -> Float[np.ndarray, " N"]:
        return (np.asarray(x, np.float64) - self.centre) @ self.weights + self.level


def ridge_maps(
    x: Float[Array, "N D"], y: Real[Array, " N"], penalties: Sequence[float]
) -> Iterator[LinearMap]:
    """The map with the least squared error and penalty on its weights, for each penalty.

    Args:
      penalties: multiples of the largest squared singular value of the centred `x`; 0 is the
        minimum-norm least-squares solution.

    Raises:
      ValueError: for a penalty below 0.
    """
    if min(penalties) < 0:
        raise ValueError(f"A ridge penalty is 0 or more, got {min(penalties)}.")
    x = np.asarray(x, np.float64)
    centre, level = x.mean(0), float(np.mean(y))
    # The triangle has the singular values and right vectors of `x`, in rows no more than columns.
    both = np.column_stack([x - centre, y - level])
    triangle = np.asarray(np.linalg.qr(both, mode="r"))
    u, s, vt = np.linalg.svd(triangle[:, :-1], full_matrices=False)
    projection = u.T @ triangle[:, -1]
    largest = s[0] if len(s) else 0.0
    # Without the directions whose singular values are rounding errors.
    rank = int((s > largest * np.finfo(np.float64).eps * max(x.shape)).sum())
    for penalty in penalties:
        gain = s[:rank] / (s[:rank] ** 2 + penalty * largest**2)
        yield LinearMap(centre, vt[:rank].T @ (gain * projection[:rank]), level)


def r_squared(y: Real[Array, " N"], predicted: Real[Array, " N"]) -> float:
    """1 for exact predictions, 0 for the mean, below 0 for worse; NaN where all `y` are equal."""
    spread = ((y - y.mean()) ** 2).sum()
    return float(1 - ((y - predicted) ** 2).sum() / spread) if spread else float("nan")
