"""The numbers of a picture of an encoding: a heat map, a curve over the offset, ψ, and properties.

Proximities are those of `pe_jax.properties.encoding_measures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.encodings import Params, PositionEncoding, from_name, offsets
from pe_jax.encodings.encoding import checked_encoding
from pe_jax.properties import encoding_measures
from pe_jax.properties.probing import offset_curve
from pe_jax.properties.toeplitz import psi, turning_point

LENGTHS = (64, 128, 512)
POSITIONS = 32  # Of the heat map, and offsets of the curve on either side.
PSI_OFFSETS = 128

Picture = dict[str, Any]  # Goes into JSON as it is.


def picture(
    encoding: PositionEncoding | str,
    params: Params | None = None,
    *,
    lengths: Sequence[int] = LENGTHS,
    layer: int = 0,
    seed: int = 0,
) -> Picture:
    """Compute the numbers of a picture of an encoding, see `from_proximities`.

    Args:
      encoding: an encoding, or a name, which is built in the sizes of BERT-base.
      params: what `encoding.init` returned, possibly trained since; default those of `seed`.
      lengths: numbers of positions; those that the encoding does not have are left out.
      layer: index of the layer, where layers differ.
      seed: draws parameters.

    Raises:
      ValueError: for a name that is not known, or an encoding that has none of the lengths.

    Example:
      >>> from pe_jax import properties
      >>> numbers = properties.picture("sinusoidal_absolute", lengths=[64])
      >>> numbers["by"], numbers["turning_point"], numbers["properties"]["64"]["symmetry"]
      ('P·Pᵀ', 43, 0.0)
    """
    if isinstance(encoding, str):
        encoding = from_name(
            encoding, **encoding_measures.SIZES, max_length=max(lengths)
        )
    longest = checked_encoding(encoding).max_length
    possible = [length for length in lengths if longest is None or length <= longest]
    if not possible:
        raise ValueError(
            f"lengths must be at most {longest} for {encoding.name}, got {lengths}."
        )
    encoding, params = encoding_measures.one_layer(
        encoding, params, layer=layer, seed=seed
    )
    by, matrices = encoding_measures.proximities(encoding, params, possible)
    return from_proximities(encoding, params, by, dict(zip(possible, matrices)))


def from_proximities(
    encoding: PositionEncoding,
    params: Params,
    by: str,
    matrices: Mapping[int, Float[Array, "N L L"]],
) -> Picture:
    """Compute the numbers of a picture from proximity matrices of one layer.

    Args:
      encoding, params: of that layer.
      by: what proximities are.
      matrices: Φ `[N, L, L]` by length L, N matrices whose mean is shown; -inf where a head does
        not attend.

    Returns:
      a dict of numbers, strings, lists and dicts, rounded:

      - `by`; `sigma`: the standard deviation of the mean Φ at the shortest length. `heat` and
        `curve` are Φ less its mean, over `sigma`; None where queries do not attend.
      - `heat`: rows of 32 queries and keys, the first positions.
      - `curve`: `offset`, -32 to 32; `mean` and `spread` over positions.
      - `psi`: ψ(m) / ψ(0) for m = 0 .. 128, and `turning_point`; None without frequencies.
      - `properties`: by length, as text, the mean violations `translation_invariance`,
        `monotonicity` and `symmetry`, 0 if it holds; None where queries attend to one side only
        (symmetry), or those of some heads (all).
    """
    length = min(matrices)
    apart = offsets(range(length), range(length))
    phi = _mean_of_heads(matrices[length], np.asarray(encoding.window.allows(apart)))
    shown, sigma = standardised(phi)
    size = min(POSITIONS, length)
    numbers: Picture = {
        "by": by,
        "sigma": float(f"{sigma:.3g}"),
        "heat": _rounded(shown[:size, :size], 2),
        "curve": _curve(shown),
        "psi": None,
        "turning_point": None,
        "properties": {},
    }
    w = encoding_measures.frequencies(encoding, params)
    if w is not None:
        curve = np.asarray(psi(w, np.arange(max(LENGTHS)))) / w.size
        numbers["psi"] = _rounded(curve[: PSI_OFFSETS + 1], 3)
        numbers["turning_point"] = int(turning_point(curve))
    for length, matrix in sorted(matrices.items()):
        violations = encoding_measures.violations(encoding, matrix)
        numbers["properties"][str(length)] = {
            name: _rounded(violation, 3) for name, violation in violations.items()
        }
    return numbers


def _curve(phi: Float[Array, "L L"]) -> dict[str, list]:
    """Return the mean and the spread of Φ by the offset; NaN entries are left out."""
    length = len(phi)
    farthest = min(POSITIONS, length - 1)
    offset = np.arange(-farthest, farthest + 1)
    mean, spread = offset_curve(phi, where=~np.isnan(phi))
    columns = offset + length - 1
    return {
        "offset": offset.tolist(),
        "mean": _rounded(np.asarray(mean)[columns], 3),
        "spread": _rounded(np.asarray(spread)[columns], 3),
    }


def _mean_of_heads(
    matrices: Float[Array, "N L L"], window: Bool[Array, "L L"]
) -> Float[np.ndarray, "L L"]:
    """Return the mean of each entry over the matrices that have it, NaN where none does.

    Each matrix is taken less its level, so that entries that some lack compare with the others.
    """
    values = np.asarray(matrices, np.float64)
    attended = np.isfinite(values) & window
    entries = attended.sum((1, 2), keepdims=True)
    levels = np.where(attended, values, 0).sum((1, 2), keepdims=True) / entries
    total = np.where(attended, values - levels, 0).sum(0)
    heads = attended.sum(0)
    return total / np.where(heads, heads, np.nan) + levels.mean()


def standardised(phi: Float[Array, "L L"]) -> tuple[np.ndarray, float]:
    """Return Φ less its mean, in standard deviations (0 for a constant Φ), and the standard
    deviation; NaN entries are left out."""
    phi = np.asarray(phi, np.float64)
    sigma = float(np.nanstd(phi))
    if sigma <= 1e-6 * max(np.nanmax(abs(phi)), 1e-30):
        return 0 * phi, 0.0
    return (phi - np.nanmean(phi)) / sigma, sigma


def _rounded(values: Any, digits: int) -> Any:
    """Return lists of rounded numbers, None for NaN; no -0."""
    if isinstance(values, np.ndarray):
        return [_rounded(value, digits) for value in values]
    if values is None or np.isnan(values):
        return None
    return round(float(values), digits) + 0.0
