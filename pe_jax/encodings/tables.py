"""Learned tables: looking positions up, and changing a table's length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Real

RESIZE_METHODS = ("truncate", "repeat", "interpolate")


def look_up(
    table: Float[Array, " N *D"], positions: Real[Array, "*B"]
) -> Float[jax.Array, "..."]:
    """Return rows of a learned table, `[*B, *D]`.

    Args:
      table: one row per position 0 .. N-1, of any shape: a vector, or one for each head.
      positions: integers. Traced ones past the table give NaN, never a wrong row.

    Raises:
      ValueError: if a concrete position lies outside 0 .. N-1, or positions are not integers.
    """
    length = table.shape[0]
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise ValueError(
            f"positions must be integers for a learned table, got {positions.dtype}. Sinusoidal "
            "and relative encodings take real positions."
        )
    if isinstance(positions, jax.core.Tracer):
        return look_up_traced(table, positions, jnp.nan)
    table = jnp.asarray(table)
    rows = np.asarray(positions)
    if rows.size and not 0 <= rows.min() <= rows.max() < length:
        raise ValueError(
            f"positions {rows.min()} to {rows.max()} do not fit a learned table of length {length} "
            f"(positions 0 to {length - 1}). Use a sinusoidal or relative encoding, which has no "
            "maximum length, or lengthen the table: pe_jax.encodings.resize_table(table, length, "
            f"method), with method one of {', '.join(RESIZE_METHODS)}."
        )
    if rows.ndim == 1 and rows.size:
        first = rows[0]
        end = first + rows.size
        if np.array_equal(rows, np.arange(first, end)):
            return table[first:end]  # A slice: its gradient needs no scatter.
    return table[rows]


def look_up_traced(
    table: Real[Array, " N *D"], positions: Real[Array, "*B"], outside: int | float
) -> Real[Array, "..."]:
    """Return rows of a table at integer positions, `outside` at those before and after it."""
    past_the_end = table.shape[0]
    rows = jnp.where(positions < 0, past_the_end, positions)  # -1 is the last row.
    return jnp.asarray(table).at[rows].get(mode="fill", fill_value=outside)


def resize_table(
    table: Float[Array, "N D"], length: int, method: str
) -> Float[jax.Array, "M D"]:
    """Return a learned table for another number of positions.

    Args:
      table: one row per position.
      length: M, the new number of positions.
      method: `"truncate"` keeps the first rows; `"repeat"` starts again from row 0 after the last;
        `"interpolate"` stretches the table linearly, its first and last rows staying the ends.

    Raises:
      ValueError: for an unknown method, length < 1, or truncating to more rows than there are.
    """
    table = jnp.asarray(table)
    rows = len(table)
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}.")
    if method == "truncate":
        if length > rows:
            raise ValueError(
                f"method='truncate' cannot lengthen a table of {rows} rows to {length}. Use "
                "'repeat' or 'interpolate'."
            )
        return table[:length]
    if method == "repeat":
        return table[np.arange(length) % rows]
    if method == "interpolate":
        places = np.linspace(0, rows - 1, length)
        below = np.floor(places).astype(int)
        above = np.minimum(below + 1, rows - 1)
        share = jnp.asarray(places - below, table.dtype)[:, None]
        return table[below] * (1 - share) + table[above] * share
    raise ValueError(
        f"method must be one of {', '.join(RESIZE_METHODS)}, got {method!r}."
    )
