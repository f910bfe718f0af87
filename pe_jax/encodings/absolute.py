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


def sinusoidal_absolute(
    dim: int, *, base: float = 10_000.0, scale: float = 1.0
) -> PositionEncoding:
    """The fixed sinusoid of Vaswani et al. 2017; no parameters, any length.

    Args:
      scale: embeddings are scale · P(x). The paper's is 1, on top of a trained BERT. Beside fresh
        word embeddings of standard deviation 0.02 such waves are 35 times as strong and drown the
        words for long: training from scratch wants a scale near 0.03. (Vaswani et al. scale the
        word embeddings up instead, by sqrt(D).) No property of P·Pᵀ depends on it.
    """
    frequencies = default_frequencies(dim, base)

    def embed(params: Params, positions: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        del params
        return scale * sinusoid(positions, frequencies)

    return PositionEncoding(
        "sinusoidal_absolute",
        "absolute",
        no_parameters,
        embed=embed,
        vectors=embed,
        frequencies=lambda params: jnp.array(frequencies),
    )


def learnable_sinusoidal_absolute(
    dim: int, *, base: float = 10_000.0, scale: float = 1.0
) -> PositionEncoding:
    """The sinusoid with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [dim/2]}` in radians per position, starting at the fixed ones. `scale`
    as in `sinusoidal_absolute`.
    """
    start = default_frequencies(dim, base)

    def init(key: jax.Array) -> Params:
        del key  # The start is the fixed sinusoid: nothing to draw.
        return {"frequencies": jnp.array(start)}

    def embed(params: Params, positions: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        return scale * sinusoid(positions, params["frequencies"])

    return PositionEncoding(
        "learnable_sinusoidal_absolute",
        "absolute",
        init,
        embed=embed,
        vectors=embed,
        frequencies=lambda params: params["frequencies"],
    )
