"""Absolute encodings: P(x) is added to the word embedding at position x (paper, eq. 4 left)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import About, Inputs, Params, Part, View, as_array, named, no_parameters
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid
from pe_jax.encodings.tables import look_up, resize_table
from pe_jax.shapes import Array, Float, Real


@named
def learned_absolute(max_length: int, hidden_size: int, *, stddev: float = 0.02) -> Part:
    """One free vector per position: BERT's own encoding (Gehring et al. 2017).

    Params: `{"table": [max_length, D]}`, drawn from a normal of `stddev`. A position past the
    table is a ValueError (see `tables.look_up`).
    """

    def init(key: jax.Array) -> Params:
        return {"table": stddev * jax.random.normal(key, (max_length, hidden_size))}

    return Part(
        init=init,
        embed=added(lambda params, x: look_up(params["table"], x)),
        view=View("absolute", lambda params, x: look_up(params["table"], x)),
        about=About(
            "P_x free",
            "L·D",
            max_length * hidden_size,
            "Gehring et al. 2017; Devlin et al. 2018",
            paper="nearly†, locally†, nearly†",
            symmetric=True,
        ),
        longest=max_length,
        resize=lambda params, *to: {"table": resize_table(params["table"], *to)},
    )


@named
def sinusoidal_absolute(hidden_size: int, *, base: float = 10_000.0, scale: float = 1.0) -> Part:
    """The fixed sinusoid of Vaswani et al. 2017; no parameters, any length.

    Args:
      scale: embeddings are scale · P(x). The paper's is 1, on top of a trained BERT. Such sinusoids
        are 35 times as large as fresh word embeddings (of standard deviation 0.02), 13 times as
        large as a trained MiniLM's (0.056), and drown the words for long: short trainings want a
        scale near 0.03. (Vaswani et al. scale the word embeddings up instead, by sqrt(D).) No
        property of P·Pᵀ depends on it.
    """
    fixed = default_frequencies(hidden_size, base)
    about = About(
        f"S(ω, x), ω_i = {base:g}^(−2i/D)",
        "0",
        0,
        "Vaswani et al. 2017",
        "yes, locally, yes",
        monotone=False,  # ψ comes back near ψ(0) again and again, as every sum of cosines.
        symmetric=True,
    )
    return _sinusoidal(lambda params: jnp.array(fixed), scale, about)


@named
def learnable_sinusoidal_absolute(
    hidden_size: int, *, base: float = 10_000.0, scale: float = 1.0
) -> Part:
    """The sinusoid with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [D/2]}` in radians per position, starting at the fixed ones. `scale`
    as in `sinusoidal_absolute`.
    """
    start = default_frequencies(hidden_size, base)
    about = About(
        "S(ω, x), ω free",
        "D/2",
        hidden_size // 2,
        "Wang et al. 2021, 3.2",
        "yes, locally†, yes",
        monotone=False,
        symmetric=True,
    )
    part = _sinusoidal(lambda params: params["frequencies"], scale, about)
    return part._replace(
        init=lambda key: {"frequencies": jnp.array(start)}, frequency_leaves=("frequencies",)
    )


# The encoding of published models, a table of positions and nothing else, and its parameter.
PUBLISHED = learned_absolute.__name__, "table"


def _sinusoidal(frequencies: Callable[[Params], jax.Array], scale: float, about: About) -> Part:
    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        return scale * sinusoid(x, frequencies(params))

    return Part(
        init=no_parameters,
        embed=added(vectors),
        view=View("absolute", vectors, frequencies),
        about=about,
    )


def added(vectors: Callable[[Params, Array], jax.Array]):
    """The hook `embed` that adds `vectors(params, positions)`."""

    def embed(params: Params, x: Float[Array, "B L D"], inputs: Inputs) -> Float[Array, "B L D"]:
        return x + vectors(params, as_array(inputs.positions))

    return embed
