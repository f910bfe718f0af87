"""Absolute encodings: P(x) is added to the word embedding at position x (paper, eq. 4 left)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Params, PositionEncoding, no_parameters
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid
from pe_jax.encodings.tables import look_up
from pe_jax.shapes import Array, Float, Int


def learned_absolute(length: int, dim: int, *, stddev: float = 0.02) -> PositionEncoding:
    """One free vector per position: BERT's own encoding (Gehring et al. 2017).

    Params: `{"table": [length, dim]}`, drawn from a normal of `stddev`. A position past the table
    is a ValueError (see `tables.look_up`).
    """

    def init(key: jax.Array) -> Params:
        return {"table": stddev * jax.random.normal(key, (length, dim))}

    def embed(params: Params, positions: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        return look_up(params["table"], positions)

    return PositionEncoding("learned_absolute", "absolute", init, embed=embed, vectors=embed)


def sinusoidal_absolute(dim: int, *, base: float = 10_000.0) -> PositionEncoding:
    """The fixed sinusoid of Vaswani et al. 2017; no parameters, any length."""
    frequencies = default_frequencies(dim, base)

    def embed(params: Params, positions: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        del params
        return sinusoid(positions, frequencies)

    return PositionEncoding(
        "sinusoidal_absolute", "absolute", no_parameters, embed=embed, vectors=embed
    )


def learnable_sinusoidal_absolute(dim: int, *, base: float = 10_000.0) -> PositionEncoding:
    """The sinusoid with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [dim/2]}` in radians per position, starting at the fixed ones.
    """
    start = default_frequencies(dim, base)

    def init(key: jax.Array) -> Params:
        del key  # The start is the fixed sinusoid: nothing to draw.
        return {"frequencies": jnp.array(start)}

    def embed(params: Params, positions: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        return sinusoid(positions, params["frequencies"])

    return PositionEncoding(
        "learnable_sinusoidal_absolute", "absolute", init, embed=embed, vectors=embed
    )
