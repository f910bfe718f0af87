"""Translation invariance, monotonicity and symmetry of proximity matrices (paper, section 2.1).

Each metric is a violation in [0, 1], 0 if the property holds exactly, of a proximity matrix
Φ `[*B, L, L]`, Φ[x, y] the proximity of positions x and y. Leading axes are batch axes. The metrics
are our own: the accepted paper has indicators whose formulas could not be obtained.

`length` restricts a metric to the first positions, so matrices of several sizes can be padded to
one shape (fewer than three positions violate nothing). `where` marks the entries that exist, such
as those of a causal mask; other entries are ignored, even NaN. A constant Φ violates nothing,
except that it orders no pair (every comparison is a tie, so monotonicity is 1/2). Φ and c·Φ violate
the same, for any c > 0 that leaves Φ's numbers normal in their dtype. A Φ that is not finite gives
NaN. The unweighted monotonicity is a count and has no gradient.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.properties import toeplitz
from pe_jax.properties.arithmetic import bounded_ratio, matrix_sum, ratio, to_unit_scale
from pe_jax.properties.compiled import compiled
from pe_jax.properties.toeplitz import Length, Toeplitz


@compiled()
def proximity(vectors: Float[Array, "*B L D"]) -> Float[jax.Array, "*B L L"]:
    """Return Φ = P·Pᵀ, the dot products of position vectors (paper, section 5.1).

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings, properties
      >>> vectors = encodings.sinusoid(jnp.arange(64), encodings.default_frequencies(256))
      >>> properties.proximity(vectors)[0, :4].round().tolist()
      [128.0, 124.0, 116.0, 105.0]
    """
    return jnp.einsum("...xd,...yd->...xy", vectors, vectors)


@compiled("skip")
def translation_invariance(
    phi: Float[Array, "*B L L"] | Toeplitz,
    *,
    skip: int = 0,
    length: Length = None,
    where: Bool[Array, "L L"] | None = None,
) -> Float[jax.Array, "*B"]:
    """Return the violation of Φ(x, x + m) = Φ(y, y + m) (paper, property 2).

    It is 1 - R² of the best Toeplitz fit: the squared deviation of entries from the mean of their
    diagonal, divided by the squared deviation from the overall mean. Entries on the main diagonal
    do not count, as self-proximity does not depend on distance. About 1 for a random table, 0 for a
    sinusoid.

    Args:
      phi: Φ.
      skip: number of leading rows and columns to exclude; 1 excludes [CLS], an outlier in real
        BERTs.
      length: only the first `length` positions count; default all. May be traced.
      where: only these entries count; default all.

    Raises:
      ValueError: for fewer than three positions, where every matrix would fit.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import properties
      >>> distance = jnp.abs(jnp.arange(5.0) - jnp.arange(5.0)[:, None])
      >>> float(properties.translation_invariance(-distance))
      0.0
      >>> round(float(properties.translation_invariance(-distance * jnp.arange(1, 6))), 2)
      0.08
    """
    positions = phi.shape[-1] - skip
    if positions < 3:
        raise ValueError(
            f"Translation invariance needs at least 3 positions, got {positions}."
        )
    length = (phi.shape[-1] if length is None else length) - skip
    if isinstance(phi, Toeplitz):
        if where is None:
            return toeplitz.invariance_and_symmetry(phi, length)
        phi = phi.matrix()
    phi = phi[..., skip:, skip:]
    if where is not None:
        where = where[skip:, skip:]
    inside = _inside(positions, length, where)
    phi = to_unit_scale(jnp.where(inside, phi, 0))
    entry = inside & ~jnp.eye(positions, dtype=bool)
    diagonals, present = by_offset(phi, entry)  # [*B, L, 2L-1]
    # Centered before squaring: a large common constant would swamp the deviations in float32.
    total = jnp.sum(diagonals, (-2, -1), keepdims=True)
    mean = total / jnp.maximum(present.sum(), 1)
    deviations = jnp.where(present, diagonals - mean, 0)
    whole = matrix_sum(deviations**2)
    # Minus the first entry of each diagonal, so that a constant diagonal deviates by exactly 0.
    first_column = jnp.flip(phi[..., :, 0], -1)
    first = jnp.concatenate([first_column, phi[..., 0, 1:]], axis=-1)
    shifted = jnp.where(present, diagonals - first[..., None, :], 0)
    counts = jnp.maximum(present.sum(-2, keepdims=True), 1)
    means = shifted.sum(-2, keepdims=True) / counts
    residuals = jnp.where(present, shifted - means, 0)
    unexplained = matrix_sum(residuals**2)
    return bounded_ratio(unexplained, whole, diagonals, positions**2)


@compiled("window", "weighted")
def monotonicity(
    phi: Float[Array, "*B L L"] | Toeplitz,
    window: int | None = None,
    *,
    weighted: bool = False,
    length: Length = None,
    where: Bool[Array, "L L"] | None = None,
) -> Float[jax.Array, "*B"]:
    """Return the violation of m > n => Φ(x, x ± m) < Φ(x, x ± n) (paper, property 1).

    It is the fraction of pairs 1 <= n < m <= window, over every row and both directions, that are
    in the wrong order; ties count half.

    Args:
      phi: Φ.
      window: the largest offset compared; default all, L - 1.
      weighted: weigh each pair by its |difference|; ties then have weight 0.
      length, where: as in `translation_invariance`; pairs of these entries count.

    Raises:
      ValueError: if the window holds no pair (2 <= window <= L - 1).

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import properties
      >>> offset = jnp.arange(16.0) - jnp.arange(16.0)[:, None]
      >>> wave = jnp.cos(offset)  # It falls up to an offset of 3, then rises.
      >>> float(properties.monotonicity(wave, 3)), round(float(properties.monotonicity(wave)), 2)
      (0.0, 0.54)
    """
    positions = phi.shape[-1]
    window = positions - 1 if window is None else window
    if not 2 <= window <= positions - 1:
        raise ValueError(
            f"window must be between 2 and L - 1 = {positions - 1}, got {window}."
        )
    if isinstance(phi, Toeplitz):
        if where is None:
            return toeplitz.monotonicity(phi, window, length, weighted=weighted)
        phi = phi.matrix()
    # Offsets increase by one from column to column, in Φ and in the band of offsets within the
    # window, the smaller array if it is narrow.
    inside = _inside(positions, length, where)
    phi = to_unit_scale(jnp.where(inside, phi, 0))
    if 2 * window < positions:
        values, present = by_offset(phi, inside)
        band = slice(positions - 1 - window, positions + window)
        values = values[..., band]
        present = present[:, band]
        offsets = jnp.broadcast_to(jnp.arange(-window, window + 1), present.shape)
    else:
        values = phi
        present = inside
        offsets = jnp.arange(positions) - jnp.arange(positions)[:, None]
    present &= (offsets != 0) & (jnp.abs(offsets) <= window)
    # Negated left of the diagonal, so that on both sides an increase along the row is wrong.
    values = jnp.where(present, jnp.sign(offsets) * values, 0)
    if weighted:
        wrong, total = _weighted_pairs(values, present, offsets, window)
    else:
        wrong, total = _pairs(values, present, offsets)
    violation = ratio(wrong, total, 0.5)
    return jnp.where(jnp.isnan(values).any((-2, -1)), jnp.nan, violation)


def _pairs(
    values: Float[Array, "*B L N"],
    present: Bool[Array, "L N"],
    offsets: Int[Array, "L N"],
) -> tuple[Float[Array, "*B"], Float[Array, ""]]:
    """Return how many pairs are in the wrong order, and how many there are; ties count half.

    A pair is on one side of the diagonal. A scan over the distance k between columns, so that
    memory stays at that of Φ. Columns k apart and those N - k apart fill one row together, which is
    the row turned by k: half of the comparisons of all columns with all. Integer counts, summed at
    the end, are fast and exact.
    """
    width = values.shape[-1]
    values = jnp.where(present, _left_below_right(values, offsets > 0), jnp.nan)
    # Comparisons with NaN are false. An odd period has no distance that is its own complement.
    between = jnp.full_like(values[..., : 1 - width % 2], jnp.nan)
    turned = jnp.concatenate([values, between, values], axis=-1)
    column = jnp.arange(width)

    def add(excess, k):
        other = jax.lax.dynamic_slice_in_dim(turned, k, width, axis=-1)
        is_greater = (other > values).astype(jnp.int32)
        is_less = (other < values).astype(jnp.int32)
        sign = is_greater - is_less
        return excess + jnp.where(column < width - k, sign, -sign), None

    distances = jnp.arange(1, width // 2 + 1)
    zeros = jnp.zeros(values.shape, jnp.int32)
    excess, _ = jax.lax.scan(add, zeros, distances, unroll=min(8, len(distances)))
    left = (present & (offsets < 0)).sum(-1)
    right = (present & (offsets > 0)).sum(-1)
    # Less the pairs of one from each side, all of which count as wrong.
    row_excess = (excess.sum(-1) - left * right).astype(values.dtype)
    sides = jnp.stack([left, right]).astype(jnp.float32)
    total = (sides * (sides - 1) / 2).sum()
    return (total + row_excess.sum(-1)) / 2, total


def _left_below_right(
    values: Float[Array, "*B L N"], right: Bool[Array, "L N"]
) -> Array:
    """Return numbers in the order of `values` on each side, those on the left below the others.

    Integers with the bits of floating-point numbers are in their order. So are, of values below 2,
    the positive numbers whose bits are those of 2 plus these integers, and the negative ones whose
    bits are those of 2 less them: all differences stay, where adding 2 would round them off.
    """
    values = at_least_float32(values) / 4
    kind = jnp.int32 if values.dtype == jnp.float32 else jnp.int64
    bits = partial(jax.lax.bitcast_convert_type, new_dtype=kind)
    number = partial(jax.lax.bitcast_convert_type, new_dtype=values.dtype)
    size = bits(jnp.abs(values))
    rank = jnp.where(values < 0, -size, size)
    two = bits(jnp.asarray(2, values.dtype))
    return jnp.where(right, number(two + rank), -number(two - rank))


def _weighted_pairs(
    values: Float[Array, "*B L N"],
    present: Bool[Array, "L N"],
    offsets: Int[Array, "L N"],
    window: int,
) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """Return the sums of |difference| of pairs in the wrong order, and of all pairs on one side."""
    width = values.shape[-1]
    padded = _pad_last(values, window)
    padded_present = _pad_last(present, window)

    @jax.checkpoint  # The backward pass recomputes the L³ differences instead of saving them.
    def add(sums, k):
        wrong, total = sums
        farther = jax.lax.dynamic_slice_in_dim(padded, k, width, axis=-1)
        is_present = jax.lax.dynamic_slice_in_dim(padded_present, k, width, axis=-1)
        one_side = (offsets > 0) | (offsets + k < 0)
        compared = present & is_present & one_side
        difference = jnp.where(compared, farther - values, 0)
        return (wrong + jnp.maximum(difference, 0), total + jnp.abs(difference)), None

    zeros = jnp.zeros_like(values)
    distances = jnp.arange(1, window)
    unroll = min(8, len(distances))
    (wrong, total), _ = jax.lax.scan(add, (zeros, zeros), distances, unroll=unroll)
    return matrix_sum(wrong), matrix_sum(total)


@compiled()
def symmetry(
    phi: Float[Array, "*B L L"] | Toeplitz,
    *,
    length: Length = None,
    where: Bool[Array, "L L"] | None = None,
) -> Float[jax.Array, "*B"]:
    """Return the violation of Φ(x, y) = Φ(y, x) (paper, property 3): ‖(Φ - Φᵀ)/2‖² / ‖Φ - mean‖².

    Args:
      phi: Φ.
      length, where: as in `translation_invariance`; an entry counts if its mirror image does.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import properties
      >>> offset = jnp.arange(16.0) - jnp.arange(16.0)[:, None]
      >>> float(properties.symmetry(jnp.cos(offset))), float(properties.symmetry(offset))
      (0.0, 1.0)
    """
    if isinstance(phi, Toeplitz):
        if where is None:
            return toeplitz.invariance_and_symmetry(phi, length)
        phi = phi.matrix()
    inside = _inside(phi.shape[-1], length, where)
    inside &= inside.T
    phi = to_unit_scale(jnp.where(inside, phi, 0))
    odd = (phi - jnp.swapaxes(phi, -1, -2)) / 2
    part = matrix_sum(odd**2)
    mean = phi.sum((-2, -1), keepdims=True) / jnp.maximum(inside.sum(), 1)
    deviation = jnp.where(inside, phi - mean, 0)
    whole = matrix_sum(deviation**2)
    return bounded_ratio(part, whole, phi, phi.shape[-1] ** 2)


@compiled()
def forward_share(weights: Float[Array, "*B L L"]) -> Float[jax.Array, "*B"]:
    """Return the excess of attention forwards over attention backwards, in [-1, 1].

    (sum above the diagonal - sum below) / (sum of both), of attention weights, row = query; 0 if
    both are 0. The paper (section 5.2) finds that learnable sinusoidal relative encodings attend
    "more on forwarding tokens".
    """
    above = matrix_sum(jnp.triu(weights, 1))
    below = matrix_sum(jnp.tril(weights, -1))
    return ratio(above - below, above + below, 0.0)


def _inside(
    positions: int, length: Length, where: Array | None = None
) -> Bool[Array, "L L"]:
    """Return True where both positions are among the first `length`, and `where` allows."""
    inside = jnp.arange(positions) < (positions if length is None else length)
    both = inside[:, None] & inside
    return both if where is None else both & where


def by_offset(
    phi: Float[Array, "*B L L"], where: Bool[Array, "L L"] | None
) -> tuple[Float[Array, "*B L M"], Bool[Array, "L M"]]:
    """Return Φ[x, x + m] at row x and column L - 1 + m, 0 outside `where`; and `where` likewise.

    M = 2L - 1.
    """
    if where is None:
        where = jnp.ones(phi.shape[-2:], bool)
    return _skewed(jnp.where(where, phi, 0)), _skewed(where)


def _skewed(matrix: Array) -> jax.Array:
    """Shift row x of `[*B, L, L]` by x columns, by a reshape, where indexing would be a gather.

    Each row is padded by L, and the rows are then cut one column shorter than that.
    """
    length = matrix.shape[-1]
    width = 2 * length - 1
    padded = _pad_last(jnp.flip(matrix, -1), length)
    flat = padded.reshape(*matrix.shape[:-2], -1)
    skewed = flat[..., : length * width].reshape(*matrix.shape[:-1], width)
    return jnp.flip(skewed, -1)


def _pad_last(x: Array, count: int) -> jax.Array:
    """Append so many zeros to the last axis."""
    before_last = [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, [*before_last, (0, count)])
