"""Absolute encodings: P(x) is added to the word embedding at position x (paper, eq. 4 left)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import (
    HookContext,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.positions import as_array
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid
from pe_jax.encodings.tables import look_up, resize_table


@register_encoding
def learned_absolute(
    *, max_length: int, hidden_size: int, stddev: float = 0.02
) -> Part:
    """One free vector per position: BERT's own encoding (Gehring et al. 2017).

    Params: `{"table": [max_length, D]}`, drawn from a normal of `stddev`.

    Raises:
      ValueError: at the input, for a position past the table (traced ones give NaN), or positions
        that are not integers; see `tables.look_up`.
    """

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        return look_up(params["table"], x)

    metadata = Metadata(
        formula="P_x free",
        source="Gehring et al. 2017; Devlin et al. 2018",
        parameters="L·D",
    )
    return absolute(
        vectors,
        metadata,
        init=normal_init(stddev, table=(max_length, hidden_size)),
        traits=Traits(max_length=max_length, resize=resize_params),
    )


@register_encoding
def sinusoidal_absolute(
    *, hidden_size: int, base: float = 10_000.0, scale: float = 1.0
) -> Part:
    """The fixed sinusoid of Vaswani et al. 2017; no parameters, any length.

    Args:
      scale: embeddings are scale · P(x). The paper's 1 is 35 times as large as fresh word
        embeddings (of standard deviation 0.02) and 13 times as large as a trained MiniLM's (0.056),
        and drowns the words for long: short trainings want a scale near 0.03. (Vaswani et al. scale
        the word embeddings up instead, by sqrt(D).) No property of P·Pᵀ depends on it.

    Raises:
      ValueError: for an odd hidden size, or a base that is not positive.
    """
    fixed = default_frequencies(hidden_size, base)
    metadata = Metadata(
        formula=f"S(ω, x), ω_i = {base:g}^(−2i/D)",
        source="Vaswani et al. 2017",
    )
    return _sinusoidal(lambda params: jnp.array(fixed), scale, metadata)


@register_encoding
def learnable_sinusoidal_absolute(
    *, hidden_size: int, base: float = 10_000.0, scale: float = 1.0
) -> Part:
    """The sinusoid with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [D/2]}` in radians per position, starting at the fixed ones. `scale`
    as in `sinusoidal_absolute`.

    Raises:
      ValueError: for an odd hidden size, or a base that is not positive.
    """
    initial_frequencies = default_frequencies(hidden_size, base)
    metadata = Metadata(
        formula="S(ω, x), ω free",
        source="Wang et al. 2021, 3.2",
        parameters="D/2",
    )
    return _sinusoidal(
        lambda params: params["frequencies"],
        scale,
        metadata,
        init=lambda rng: {"frequencies": jnp.array(initial_frequencies)},
        traits=Traits(frequency_params=("frequencies",)),
    )


# The encoding of published models, a table of positions and nothing else, and its parameter.
LEARNED_TABLE_PATH = learned_absolute.__name__, "table"


def _sinusoidal(
    frequencies: Callable[[Params], jax.Array],
    scale: float,
    metadata: Metadata,
    **fields: Any,
) -> Part:
    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        return scale * sinusoid(x, frequencies(params))

    # Not monotone: ψ comes back near ψ(0) again and again, as every sum of cosines.
    metadata = metadata.replace(monotone=False, frequencies=frequencies)
    return absolute(vectors, metadata, **fields)


def resize_params(params: Params, length: int, method: str) -> Params:
    """Parameters whose `"table"` has a row for each of `length` positions."""
    return {**params, "table": resize_table(params["table"], length, method)}


def absolute(
    vectors: Callable[[Params, Array], jax.Array], metadata: Metadata, **fields: Any
) -> Part:
    """The part, with these further fields, that adds `vectors(params, positions)` to the input."""

    def embed(
        params: Params, x: Float[Array, "B L D"], context: HookContext
    ) -> Float[Array, "B L D"]:
        return x + vectors(params, as_array(context.positions_q))

    # Proximities of absolute vectors are P·Pᵀ, which is symmetric.
    metadata = metadata.replace(symmetric=True, kind="absolute", vectors=vectors)
    return Part(embed=embed, metadata=metadata, **fields)
