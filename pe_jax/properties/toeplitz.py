"""Proximity that depends on the offset alone, Φ(x, y) = ψ(y - x) (paper, section 3.2).

That of sinusoids is ψ(m) = sum_i cos(w_i m). Φ is then a Toeplitz matrix, and ψ says everything
about it: translation invariance holds exactly, symmetry where ψ is even, and monotonicity takes L²
comparisons in place of L³. The metrics take a `Toeplitz` in place of Φ.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.properties.arithmetic import bounded_ratio, ratio, to_unit_scale
from pe_jax.shapes import Array, Float, Int


class Toeplitz(NamedTuple):
    """Φ[x, y] = ψ(y - x), of L positions.

    Attributes:
      ahead: ψ(0), ψ(1), .., ψ(L - 1).
      behind: ψ(-1), ψ(-2), .., ψ(1 - L); None if ψ is even, which makes Φ symmetric.
    """

    ahead: Float[Array, "*B L"]
    behind: Float[Array, "*B L-1"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """`(*B, L, L)`, that of Φ."""
        return (*self.ahead.shape, self.ahead.shape[-1])

    def matrix(self) -> Float[Array, "*B L L"]:
        """Φ itself."""
        last = self.shape[-1] - 1
        behind = self.ahead[..., 1:] if self.behind is None else self.behind
        values = jnp.concatenate([jnp.flip(behind, -1), self.ahead], axis=-1)
        positions = np.arange(last + 1)
        return values[..., last + positions - positions[:, None]]


@jax.jit
def cosines(frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]) -> Float[Array, "*B F M"]:
    """cos(w_i m), the summands of ψ; frequencies in radians per position (paper, figure 4a)."""
    return jnp.cos(frequencies[..., None] * offsets)


@jax.jit
def psi(frequencies: Float[Array, "*B F"], offsets: Int[Array, " M"]) -> Float[Array, "*B M"]:
    """ψ(m) = sum_i cos(w_i m), the dot product of sinusoids m apart (paper, section 3.2)."""
    return cosines(frequencies, offsets).sum(-2)


@jax.jit
def turning_point(values: Float[Array, "*B M"]) -> Int[Array, "*B"]:
    """The first m with ψ(m+1) >= ψ(m), for values ψ(0), ψ(1), ...; M - 1 if there is none.

    Up to there the proximity of sinusoids decreases with their distance.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings, properties
      >>> values = properties.psi(encodings.default_frequencies(768), jnp.arange(512))
      >>> int(properties.turning_point(values))
      43
    """
    rising = values[..., 1:] >= values[..., :-1]
    return jnp.where(rising.any(-1), jnp.argmax(rising, axis=-1), values.shape[-1] - 1)


def translation_invariance(
    phi: Toeplitz, length: int | Int[Array, ""] | None
) -> Float[Array, "*B"]:
    """`metrics.translation_invariance` of Φ: 0, and NaN where ψ is not finite."""
    sides, _ = _sides(phi, length)
    return jnp.where(jnp.isnan(sides).any((-2, -1)), jnp.nan, jnp.zeros((), sides.dtype))


def symmetry(phi: Toeplitz, length: int | Int[Array, ""] | None) -> Float[Array, "*B"]:
    """`metrics.symmetry` of Φ: 0 where ψ is even."""
    if phi.behind is None:
        return translation_invariance(phi, length)
    sides, entries = _sides(phi, length)
    # The diagonal is in both sides: half of it in each.
    entries *= np.where(np.arange(len(entries)) == 0, 0.5, 1)
    mean = (entries * sides).sum((-2, -1), keepdims=True) / (2 * entries.sum())
    odd = (sides[..., 0, :] - sides[..., 1, :]) / 2
    whole = (entries * (sides - mean) ** 2).sum((-2, -1))
    return bounded_ratio(2 * (entries * odd**2).sum(-1), whole, sides, phi.shape[-1] ** 2)


def monotonicity(
    phi: Toeplitz, window: int, length: int | Int[Array, ""] | None, *, weighted: bool
) -> Float[Array, "*B"]:
    """`metrics.monotonicity` of Φ. A pair of offsets n < m counts
    once for each row that contains m."""
    sides, rows = _sides(phi, length)
    near, far = sides[..., 1 : window + 1, None], sides[..., None, 1 : window + 1]
    pairs = np.tri(window, k=-1, dtype=bool).T  # Offset n < m, at row n - 1 and column m - 1.
    if weighted:
        difference = jnp.where(pairs, far - near, 0)
        wrong, of = jnp.maximum(difference, 0).sum(-2), jnp.abs(difference).sum(-2)
    else:
        # A tie is half in the wrong order; counted twice, to stay among integers.
        twice = (far > near).astype(jnp.int32) + (far >= near).astype(jnp.int32)
        wrong = jnp.where(pairs, twice, 0).sum(-2) / 2
        of = jnp.broadcast_to(pairs.sum(-2), wrong.shape)
    wrong, of = ((x * rows[1 : window + 1]).sum((-2, -1)) for x in (wrong, of))
    violation = ratio(wrong, of, 0.5)
    return jnp.where(jnp.isnan(sides).any((-2, -1)), jnp.nan, violation)


def _sides(
    phi: Toeplitz, length: int | Int[Array, ""] | None
) -> tuple[Float[Array, "*B S L"], Float[Array, " L"]]:
    """ψ(0), ψ(1), .. and, unless it is even, ψ(0), ψ(-1), .., in one unit; and how many rows have
    an offset. From `length` on none has, and ψ, which is not read, is 0."""
    positions = phi.shape[-1]
    rows = jnp.maximum((positions if length is None else length) - np.arange(positions), 0)
    sides = [phi.ahead]
    if phi.behind is not None:
        sides.append(jnp.concatenate([phi.ahead[..., :1], phi.behind], axis=-1))
    values = to_unit_scale(jnp.where(rows > 0, jnp.stack(sides, axis=-2), 0))
    return values, rows.astype(values.dtype)
