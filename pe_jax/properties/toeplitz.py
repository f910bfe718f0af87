"""Proximity that depends on the distance alone, Φ(x, y) = ψ(|y - x|) (paper, section 3.2).

That of sinusoids is ψ(m) = sum_i cos(w_i m). Φ is then a symmetric Toeplitz matrix: translation
invariance and symmetry hold exactly, and monotonicity takes L² comparisons in place of L³. The
metrics take a `Toeplitz` in place of Φ.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.properties.arithmetic import ratio, to_unit_scale
from pe_jax.properties.compiled import compiled

Length = int | Int[Array, ""] | None


class Toeplitz(Record, pytree=True):
    """Φ[x, y] = ψ(|y - x|), of L positions, from ψ(0), ψ(1), .., ψ(L - 1)."""

    psi: Array  # [*B, L]

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*B, L, L)`, that of Φ."""
        return (*self.psi.shape, self.psi.shape[-1])

    def matrix(self) -> Float[jax.Array, "*B L L"]:
        """Φ itself."""
        positions = np.arange(self.shape[-1])
        return self.psi[..., np.abs(positions - positions[:, None])]


@compiled()
def cosines(
    frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]
) -> Float[jax.Array, "*B F M"]:
    """Return cos(w_i m), the summands of ψ, for frequencies in radians per position (paper, figure
    4a)."""
    return jnp.cos(frequencies[..., None] * offsets)


@compiled()
def psi(
    frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]
) -> Float[jax.Array, "*B M"]:
    """Return ψ(m) = Σ_i cos(w_i m), the dot product of sinusoids m apart (paper, section 3.2)."""
    return cosines(frequencies, offsets).sum(-2)


@compiled(refuse_nan=True)
def turning_point(values: Float[Array, "*B M"]) -> Int[jax.Array, "*B"]:
    """Return the first m with ψ(m+1) >= ψ(m), for values ψ(0), ψ(1), ...; M - 1 if there is none.

    Up to there the proximity of sinusoids decreases with their distance.

    Raises:
      ValueError: for complex values or NaN; under `jit`, nothing rises from or to NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings, properties
      >>> values = properties.psi(encodings.default_frequencies(768), jnp.arange(512))
      >>> int(properties.turning_point(values))
      43
    """
    rising = values[..., 1:] >= values[..., :-1]
    last = values.shape[-1] - 1
    return jnp.where(rising.any(-1), jnp.argmax(rising, axis=-1), last)


def invariance_and_symmetry(phi: Toeplitz, length: Length) -> Float[jax.Array, "*B"]:
    """Return `metrics.translation_invariance` or `symmetry` of Φ: 0, NaN where ψ is not finite."""
    values, _ = _unit_scaled(phi, length)
    zero = jnp.zeros((), values.dtype)
    return jnp.where(jnp.isnan(values).any(-1), jnp.nan, zero)


def monotonicity(
    phi: Toeplitz, window: int, length: Length, *, weighted: bool
) -> Float[jax.Array, "*B"]:
    """Return `metrics.monotonicity` of Φ; offsets n < m are a pair in each row that has m.

    A scan over m - n, so that memory stays at that of ψ.
    """
    values, rows = _unit_scaled(phi, length)
    far = values[..., 1 : window + 1]
    before = jnp.concatenate([jnp.full_like(far, jnp.nan), far], axis=-1)
    offset = np.arange(window)

    @jax.checkpoint  # The backward pass recomputes the L² differences instead of saving them.
    def add(sums, k):
        wrong, total = sums
        near = jax.lax.dynamic_slice_in_dim(before, window - k, window, axis=-1)
        if weighted:
            difference = far - jnp.where(offset >= k, near, far)
            wrong += jnp.maximum(difference, 0)
            total += jnp.abs(difference)
        else:
            # A tie is half in the wrong order; counted twice, to stay integer. NaN is not greater.
            is_greater = (far > near).astype(jnp.int32)
            wrong += is_greater + (far >= near).astype(jnp.int32)
            total += 2 * (offset >= k)
        return (wrong, total), None

    zeros = jnp.zeros(far.shape, far.dtype if weighted else jnp.int32)
    steps = jnp.arange(1, window)
    (wrong, total), _ = jax.lax.scan(
        add, (zeros, zeros), steps, unroll=min(8, len(steps))
    )
    rows_with_far = rows[1 : window + 1]
    violation = ratio(
        (wrong * rows_with_far).sum(-1), (total * rows_with_far).sum(-1), 0.5
    )
    return jnp.where(jnp.isnan(values).any(-1), jnp.nan, violation)


def _unit_scaled(
    phi: Toeplitz, length: Length
) -> tuple[Float[Array, "*B L"], Float[Array, " L"]]:
    """Return ψ in one unit, and how many rows have an offset, on either side.

    From `length` on none has, and ψ, which is not read, is 0.
    """
    positions = phi.shape[-1]
    if length is None:
        length = positions
    rows = jnp.maximum(length - np.arange(positions), 0)
    psi_inside = jnp.where(rows > 0, phi.psi, 0)
    values = to_unit_scale(psi_inside[..., None, :])[..., 0, :]
    return values, rows.astype(values.dtype)
