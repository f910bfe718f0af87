"""Metrics of other papers, for comparison with the literature; 1 means that the property holds.

Chen et al. 2023 (arXiv 2310.12864), on the attention weights of identical words. Saponati et al.
2025 (arXiv 2502.10927), on the matrix W_Q·W_Kᵀ of a layer. Formulas as in the published code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float
from pe_jax.properties.arithmetic import matrix_sum, ratio, to_unit_scale
from pe_jax.properties.compiled import compiled


@compiled()
def chen_locality(weights: Float[Array, "*B L L"]) -> Float[jax.Array, "*B"]:
    """Return the mean over queries i of Σ_j weights[i, j] / 2^|i-j|: 1 if each attends to itself
    only."""
    positions = np.arange(weights.shape[-1])
    distance = np.abs(positions[:, None] - positions).astype(np.float32)
    return (weights * 0.5**distance).sum(-1).mean(-1)


@compiled()
def chen_symmetry(weights: Float[Array, "*B L L"]) -> Float[jax.Array, "*B"]:
    """Return 1 - mean of |weights[i, i-m] - weights[i, i+m]|, rescaled to [0, 1] within each row.

    Rows are queries. The mean is over all i and m for which both exist. The rescaling is of the
    smallest difference of a row to 0 and the greatest to 1; all to 0 if they are equal. NaN for
    weights that are not finite.

    Raises:
      ValueError: with fewer than three positions no query has neighbours on both sides.
    """
    length = weights.shape[-1]
    if length < 3:
        raise ValueError(f"Chen's symmetry needs at least 3 positions, got {length}.")
    i = np.arange(length)[:, None]
    m = np.arange(1, (length + 1) // 2)
    exists = (i - m >= 0) & (i + m < length)  # [L, M], keys on both sides.
    left = weights[..., i, np.where(exists, i - m, 0)]
    right = weights[..., i, np.where(exists, i + m, 0)]
    difference = jnp.abs(left - right)
    low = jnp.where(exists, difference, jnp.inf).min(-1, keepdims=True)
    high = jnp.where(exists, difference, -jnp.inf).max(-1, keepdims=True)
    spread = jnp.where(high > low, high - low, 1.0)
    above_low = difference - jnp.where(exists, low, 0)  # `low` may be infinite.
    scaled = jnp.where(exists, above_low / spread, 0.0)
    value = 1 - matrix_sum(scaled) / exists.sum()
    # NaN and infinity compare as equal, which would count as symmetric.
    return jnp.where(jnp.isfinite(weights).all((-2, -1)), value, jnp.nan)


@compiled()
def saponati_symmetry(matrix: Float[Array, "*B N N"]) -> Float[jax.Array, "*B"]:
    """Return (‖S‖² - ‖A‖²) / ‖W‖² of the symmetric part S and the antisymmetric part A of W.

    1 for a symmetric W, -1 for an antisymmetric one, about 0 for a random one, and 0 for W = 0.
    (‖S‖² / ‖W‖², as in their code, is (1 + this) / 2.)
    """
    matrix = to_unit_scale(matrix)
    difference = matrix_sum(matrix * jnp.swapaxes(matrix, -1, -2))
    return ratio(difference, matrix_sum(matrix**2), 0.0)


@compiled("deviations")
def saponati_directionality(
    matrix: Float[Array, "*B N N"], *, deviations: float = 2.0
) -> Float[jax.Array, "*B"]:
    """Return the prominence of columns (1) or rows (-1) of W, in [-1, 1].

    (C - R) / (C + R), where C sums the amounts by which the norms of columns exceed their mean plus
    `deviations` sample standard deviations (N - 1), and R the same for rows; 0 if none does.
    Autoregressive training makes columns stand out.
    """
    matrix = to_unit_scale(matrix)

    def excess(norms: jax.Array) -> jax.Array:
        if norms.shape[-1] == 1:  # It has no deviation, and does not exceed its mean.
            return jnp.zeros(norms.shape[:-1], norms.dtype)
        limit = norms.mean(-1) + deviations * norms.std(-1, ddof=1)
        return jnp.maximum(norms - limit[..., None], 0).sum(-1)

    columns = excess(jnp.linalg.norm(matrix, axis=-2))
    rows = excess(jnp.linalg.norm(matrix, axis=-1))
    return ratio(columns - rows, columns + rows, 0.0)
