"""Translation invariance, monotonicity and symmetry of proximity matrices (paper, section 2.1).

Each metric is a violation in [0, 1], 0 where the property holds exactly, of a proximity matrix
Φ `[*B, L, L]`, Φ[x, y] the proximity of positions x and y. Leading axes are free. The measures are
our own: the accepted paper has indicators whose formulas could not be obtained.

All are pure, compile, and can be told with `length` that only the first positions count, so that
matrices of several sizes fit one program (fewer than three positions violate nothing). A constant Φ
violates nothing, except that it orders no pair (every comparison is a tie, so monotonicity is 1/2).
A Φ with a NaN in it gives NaN. Gradients are those of the formulas; the unweighted monotonicity is
a count and has none.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pe_jax.properties.ratio import ratio
from pe_jax.shapes import Array, Bool, Float, Int


def proximity(vectors: Float[Array, "*B L D"]) -> Float[Array, "*B L L"]:
    """Φ = P·Pᵀ, the dot products of position vectors (paper, section 5.1)."""
    return jnp.einsum("...xd,...yd->...xy", vectors, vectors)


@partial(jax.jit, static_argnames="skip")
def translation_invariance(
    phi: Float[Array, "*B L L"], *, skip: int = 0, length: int | Int[Array, ""] | None = None
) -> Float[Array, "*B"]:
    """Violation of Φ(x, x + m) = Φ(y, y + m) (paper, property 2): 1 - R² of the best Toeplitz fit.

    Over the off-diagonal entries, as self-proximity says nothing of distance: the squared deviation
    from the mean of the entry's diagonal, over the squared deviation from the overall mean. About 1
    for a random table, 0 for a sinusoid.

    Args:
      skip: rows and columns left out at the start; 1 leaves out [CLS], an outlier in real BERTs.
      length: only the first `length` positions count; default all. May be traced.

    Raises:
      ValueError: with fewer than three positions every matrix would fit.
    """
    phi = phi[..., skip:, skip:]
    positions = phi.shape[-1]
    if positions < 3:
        raise ValueError(f"Translation invariance needs at least 3 positions, got {positions}.")
    inside = _inside(positions, None if length is None else length - skip)
    by_offset, there = _by_offset(phi, inside & ~jnp.eye(positions, dtype=bool))  # [*B, L, 2L-1]
    # Centred first: the squares of a large common constant would drown the deviations in float32.
    mean = jnp.sum(by_offset, (-2, -1), keepdims=True) / there.sum()
    whole = jnp.sum(jnp.where(there, by_offset - mean, 0) ** 2, (-2, -1))
    # Each diagonal less its first entry, so that one of equal entries deviates by 0 exactly.
    first = jnp.concatenate([jnp.flip(phi[..., :, 0], -1), phi[..., 0, 1:]], axis=-1)
    shifted = jnp.where(there, by_offset - first[..., None, :], 0)
    counts = jnp.maximum(there.sum(-2, keepdims=True), 1)
    diagonal = shifted.sum(-2, keepdims=True) / counts
    unexplained = jnp.sum(jnp.where(there, shifted - diagonal, 0) ** 2, (-2, -1))
    return _share(unexplained, whole, by_offset)


@partial(jax.jit, static_argnames=("window", "weighted"))
def monotonicity(
    phi: Float[Array, "*B L L"],
    window: int | None = None,
    *,
    weighted: bool = False,
    length: int | Int[Array, ""] | None = None,
) -> Float[Array, "*B"]:
    """Violation of m > n => Φ(x, x ± m) < Φ(x, x ± n) (paper, property 1).

    The share of pairs 1 <= n < m <= window, of each row and each direction, that are in the wrong
    order; ties count half.

    Args:
      window: the largest offset compared; default all, L - 1.
      weighted: each pair counts by its |difference|; ties then weigh nothing.
      length: only the first `length` positions count; default all. May be traced.

    Raises:
      ValueError: if the window holds no pair (2 <= window <= L - 1).
    """
    positions = phi.shape[-1]
    window = positions - 1 if window is None else window
    if not 2 <= window <= positions - 1:
        raise ValueError(f"A window lies between 2 and L - 1 = {positions - 1}, got {window}.")
    # Offsets grow by one from column to column in Φ itself, and in the band of those that count,
    # which is the smaller of the two where the window is narrow.
    if 2 * window < positions:
        values, there = _by_offset(phi, _inside(positions, length))
        band = slice(positions - 1 - window, positions + window)
        values, there = values[..., band], there[:, band]
        offsets = jnp.broadcast_to(jnp.arange(-window, window + 1), there.shape)
    else:
        values, there = phi, _inside(positions, length)
        offsets = jnp.arange(positions) - jnp.arange(positions)[:, None]
    there &= (offsets != 0) & (jnp.abs(offsets) <= window)
    count = _weighted_pairs if weighted else _pairs
    # Turned round on the left, so that on both sides a larger number in a later column is wrong.
    wrong, total = count(jnp.where(there, jnp.sign(offsets) * values, 0), there, offsets, window)
    violation = ratio(wrong, total, 0.5)
    unknown = jnp.isnan(jnp.where(there, values, 0)).any((-2, -1))
    return jnp.where(unknown, jnp.nan, violation)


def _pairs(values, there, offsets, window):
    """(pairs of one side in the wrong order, all pairs of one side), ties half.

    Distance between columns by distance, so that memory stays at that of Φ. Counts are kept for
    each entry and summed last, as integers, which is what makes it fast and keeps it exact.
    """
    width = values.shape[-1]
    values = jnp.where(there, values, jnp.nan)  # A comparison with NaN is false: nothing to mask.
    beyond = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, window)], constant_values=jnp.nan)

    def add(excess, k):
        later = jax.lax.dynamic_slice_in_dim(beyond, k, width, axis=-1)
        wrong = (later > values).astype(jnp.int32) - (later < values).astype(jnp.int32)
        same_side = (offsets > 0) | (offsets + k < 0)
        return excess + jnp.where(same_side, wrong, 0), None

    excess, _ = jax.lax.scan(
        add, jnp.zeros(values.shape, jnp.int32), jnp.arange(1, window), unroll=min(8, window - 1)
    )
    sides = jnp.stack([there & (offsets > 0), there & (offsets < 0)]).sum(-1).astype(jnp.float32)
    total = (sides * (sides - 1) / 2).sum()
    return (total + excess.sum(-1).astype(values.dtype).sum(-1)) / 2, total


def _weighted_pairs(values, there, offsets, window):
    """(sum of the differences in the wrong order, sum of all), absolute, over pairs of one side."""
    width = values.shape[-1]
    pad = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, window)])
    beyond, there_beyond = pad(values), pad(there)

    @jax.checkpoint  # The backward pass compares again instead of keeping L³ differences.
    def add(sums, k):
        shifted = lambda x: jax.lax.dynamic_slice_in_dim(x, k, width, axis=-1)
        compared = there & shifted(there_beyond) & ((offsets > 0) | (offsets + k < 0))
        difference = jnp.where(compared, shifted(beyond) - values, 0)
        return (sums[0] + jnp.maximum(difference, 0), sums[1] + jnp.abs(difference)), None

    zeros = jnp.zeros_like(values)
    (wrong, total), _ = jax.lax.scan(add, (zeros, zeros), jnp.arange(1, window))
    return wrong.sum((-2, -1)), total.sum((-2, -1))


@jax.jit
def symmetry(
    phi: Float[Array, "*B L L"], *, length: int | Int[Array, ""] | None = None
) -> Float[Array, "*B"]:
    """Violation of Φ(x, y) = Φ(y, x) (paper, property 3): ‖(Φ - Φᵀ)/2‖² / ‖Φ - mean‖².

    Args:
      length: only the first `length` positions count; default all. May be traced.
    """
    inside = _inside(phi.shape[-1], length)
    phi = jnp.where(inside, phi, 0)
    odd = (phi - jnp.swapaxes(phi, -1, -2)) / 2
    mean = phi.sum((-2, -1), keepdims=True) / inside.sum()
    deviation = jnp.where(inside, phi - mean, 0)
    return _share((odd**2).sum((-2, -1)), (deviation**2).sum((-2, -1)), phi)


@jax.jit
def forward_share(weights: Float[Array, "*B L L"]) -> Float[Array, "*B"]:
    """How much more attention goes forwards than backwards, in [-1, 1].

    (mass above the diagonal - mass below) / (their sum), of attention weights, row = query; 0 where
    neither side has any. The paper (section 5.2) finds learnable sinusoidal relative encodings
    attend "more on forwarding tokens".
    """
    above = jnp.triu(weights, 1).sum((-2, -1))
    below = jnp.tril(weights, -1).sum((-2, -1))
    return ratio(above - below, above + below, 0.0)


def _inside(positions: int, length: int | Array | None) -> Bool[Array, "L L"]:
    """Where both positions are among the first `length`."""
    inside = jnp.arange(positions) < (positions if length is None else length)
    return inside[:, None] & inside


def _by_offset(
    phi: Float[Array, "*B L L"], entry: Bool[Array, "L L"]
) -> tuple[Float[Array, "*B L M"], Bool[Array, "L M"]]:
    """Φ[x, x + m] at row x and column L - 1 + m, 0 where there is none; and where there is one.

    M = 2L - 1. Padding each row by L and reading the same numbers in rows one shorter moves row x
    by x columns: a reshape, where indices would make a gather.
    """

    def skewed(matrix):
        length = matrix.shape[-1]
        turned = jnp.flip(matrix, -1)
        padded = jnp.pad(turned, [(0, 0)] * (matrix.ndim - 1) + [(0, length)])
        flat = padded.reshape(*matrix.shape[:-2], -1)[..., : length * (2 * length - 1)]
        return jnp.flip(flat.reshape(*matrix.shape[:-1], 2 * length - 1), -1)

    return skewed(jnp.where(entry, phi, 0)), skewed(entry)


def _share(part: Array, whole: Array, phi: Array) -> Array:
    """part / whole in [0, 1]; 0 where `whole` is no more than the rounding of a constant Φ."""
    size = phi.shape[-2] ** 2
    rounding = size * (8 * jnp.finfo(phi.dtype).eps * jnp.abs(phi).max((-2, -1))) ** 2
    constant = whole <= rounding
    return jnp.where(constant, 0.0, jnp.clip(part / jnp.where(constant, 1.0, whole), 0.0, 1.0))
