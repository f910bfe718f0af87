"""Translation invariance, monotonicity and symmetry of proximity matrices (paper, section 2.1).

Each metric is a violation in [0, 1], 0 where the property holds exactly, of a proximity matrix
Φ `[*B, L, L]`, Φ[x, y] the proximity of positions x and y. Leading axes are free. The measures are
our own: the accepted paper has indicators whose formulas could not be obtained.

All are pure and compile; a constant Φ violates nothing, except that it orders no pair (every
comparison is a tie, so monotonicity is 1/2).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array, Bool, Float, Int


def proximity(vectors: Float[Array, "*B L D"]) -> Float[Array, "*B L L"]:
    """Φ = P·Pᵀ, the dot products of position vectors (paper, section 5.1)."""
    return jnp.einsum("...xd,...yd->...xy", vectors, vectors)


@partial(jax.jit, static_argnames="skip")
def translation_invariance(phi: Float[Array, "*B L L"], *, skip: int = 0) -> Float[Array, "*B"]:
    """Violation of Φ(x, x + m) = Φ(y, y + m) (paper, property 2): 1 - R² of the best Toeplitz fit.

    Over the off-diagonal entries, as self-proximity says nothing of distance: the squared deviation
    from the mean of the entry's diagonal, over the squared deviation from the overall mean. About 1
    for a random table, 0 for a sinusoid.

    Args:
      skip: rows and columns left out at the start; 1 leaves out [CLS], an outlier in real BERTs.

    Raises:
      ValueError: with fewer than three positions every matrix would fit.
    """
    phi = phi[..., skip:, skip:]
    length = phi.shape[-1]
    if length < 3:
        raise ValueError(f"Translation invariance needs at least 3 positions, got {length}.")
    by_offset, there = _by_offset(phi)  # [*B, L, 2L-2]: offsets -(L-1) .. -1, 1 .. L-1.
    # Centred first: the squares of a large common constant would drown the deviations in float32.
    mean = jnp.sum(jnp.where(there, by_offset, 0), (-2, -1), keepdims=True) / there.sum()
    deviation = jnp.where(there, by_offset - mean, 0)
    diagonal = deviation.sum(-2, keepdims=True) / there.sum(-2, keepdims=True)
    unexplained = jnp.sum(jnp.where(there, deviation - diagonal, 0) ** 2, (-2, -1))
    return _share(unexplained, jnp.sum(deviation**2, (-2, -1)), phi)


@partial(jax.jit, static_argnames=("window", "weighted"))
def monotonicity(
    phi: Float[Array, "*B L L"], window: int | None = None, *, weighted: bool = False
) -> Float[Array, "*B"]:
    """Violation of m > n => Φ(x, x ± m) < Φ(x, x ± n) (paper, property 1).

    The share of pairs 1 <= n < m <= window, of each row and each direction, that are in the wrong
    order; ties count half.

    Args:
      window: the largest offset compared; default all, L - 1.
      weighted: each pair counts by its |difference|; ties then weigh nothing.

    Raises:
      ValueError: if the window holds no pair (2 <= window <= L - 1).
    """
    length = phi.shape[-1]
    window = length - 1 if window is None else window
    if not 2 <= window <= length - 1:
        raise ValueError(f"A window lies between 2 and L - 1 = {length - 1}, got {window}.")
    right, there_right = _by_offset(phi, np.arange(1, window + 1))
    left, there_left = _by_offset(phi, -np.arange(1, window + 1))
    rows = jnp.concatenate([right, left], axis=-2)  # [*B, 2L, window]
    there = jnp.asarray(np.concatenate([there_right, there_left]))

    def add(sums, n):
        near = jax.lax.dynamic_index_in_dim(rows, n, axis=-1)  # [*B, 2L, 1]
        compared = there & (jnp.arange(window) > n)  # An offset that exists has all nearer ones.
        difference = rows - near
        weight = jnp.where(compared, jnp.abs(difference) if weighted else 1.0, 0.0)
        wrong = jnp.where(difference > 0, 1.0, jnp.where(difference < 0, 0.0, 0.5))
        return (sums[0] + (weight * wrong).sum((-2, -1)), sums[1] + weight.sum((-2, -1))), None

    # Offset by offset, so that memory stays at L · window instead of L · window².
    zero = jnp.zeros(phi.shape[:-2], phi.dtype)
    (wrong, total), _ = jax.lax.scan(add, (zero, zero), jnp.arange(window - 1))
    return jnp.where(total > 0, wrong / jnp.where(total > 0, total, 1), 0.5)


@jax.jit
def symmetry(phi: Float[Array, "*B L L"]) -> Float[Array, "*B"]:
    """Violation of Φ(x, y) = Φ(y, x) (paper, property 3): ‖(Φ - Φᵀ)/2‖² / ‖Φ - mean‖²."""
    odd = (phi - jnp.swapaxes(phi, -1, -2)) / 2
    deviation = phi - phi.mean((-2, -1), keepdims=True)
    return _share((odd**2).sum((-2, -1)), (deviation**2).sum((-2, -1)), phi)


@jax.jit
def psi(frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]) -> Float[Array, "*B M"]:
    """ψ(m) = sum_i cos(w_i m), the dot product of two sinusoids m apart (paper, section 3.2)."""
    return jnp.cos(frequencies[..., None, :] * offsets[:, None]).sum(-1)


def turning_point(values: Float[Array, "*B M"]) -> Int[Array, "*B"]:
    """The first m with ψ(m+1) >= ψ(m), for values ψ(0), ψ(1), ...; M - 1 if there is none."""
    rising = values[..., 1:] >= values[..., :-1]
    return jnp.where(rising.any(-1), jnp.argmax(rising, axis=-1), values.shape[-1] - 1)


def _by_offset(
    phi: Float[Array, "*B L L"], offsets: np.ndarray | None = None
) -> tuple[Float[Array, "*B L M"], Bool[Array, "L M"]]:
    """Φ[x, x + m] at row x and column of m, and where x + m is a position."""
    length = phi.shape[-1]
    if offsets is None:
        offsets = np.concatenate([np.arange(1 - length, 0), np.arange(1, length)])
    columns = np.arange(length)[:, None] + offsets
    there = (columns >= 0) & (columns < length)
    rows = np.broadcast_to(np.arange(length)[:, None], columns.shape)
    return phi[..., rows, np.where(there, columns, 0)], there


def _share(part: Array, whole: Array, phi: Array) -> Array:
    """part / whole in [0, 1]; 0 where `whole` is no more than the rounding of a constant Φ."""
    size = phi.shape[-1] ** 2
    rounding = size * (8 * jnp.finfo(phi.dtype).eps * jnp.abs(phi).max((-2, -1))) ** 2
    constant = whole <= rounding
    return jnp.where(constant, 0.0, jnp.clip(part / jnp.where(constant, 1.0, whole), 0.0, 1.0))
