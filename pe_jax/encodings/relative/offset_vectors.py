"""Relative encodings: P(j - i) joins key j and value j as query i sees them (paper, eq. 4 right).

    logit_ij = q_i · (k_j + P(j - i)) / sqrt(d)        out_i = sum_j a_ij (v_j + P(j - i))

Offsets are clipped to -max_distance .. max_distance, and one set of vectors of the head's size d is
shared by all heads and layers (paper, A.3; Shaw et al. 2018), keys and values; `separate=True`
learns two. A `max_distance` of None leaves offsets unclipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Int, Real
from pe_jax.encodings.part import (
    Metadata,
    OffsetTerms,
    Params,
    Part,
    Traits,
    no_parameters,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import default_frequencies, sinusoid
from pe_jax.encodings.tables import look_up


@register_encoding
def learned_relative(
    *, head_size: int, max_distance: int = 64, separate: bool = False
) -> Part:
    """One free vector per clipped offset (Shaw et al. 2018).

    Shaw et al. have a table for keys, another for values, and both for each layer:
    `per_layer(learned_relative(max_distance=16, separate=True))`.

    Params: `{"table": [2 max_distance + 1, d]}`, row `max_distance + offset`; with `separate`,
    `{"key": {...}, "value": {...}}`. Drawn by Glorot's rule, as Shaw et al. did: the table is added
    to keys and values, and with BERT's 0.02 it would hardly be seen beside them at first.

    Raises:
      ValueError: for a `max_distance` below 1; in attention, for positions that are not integers.
    """

    def init(rng: jax.Array) -> Params:
        draw = jax.nn.initializers.glorot_uniform()
        return {"table": draw(rng, (2 * max_distance + 1, head_size), jnp.float32)}

    def vectors(params: Params, x: Int[Array, "*B"]) -> Float[Array, "*B d"]:
        clipped = x.clip(-max_distance, max_distance)
        return look_up(params["table"], clipped + max_distance)

    metadata = Metadata(
        formula="P_m free",
        source="Shaw et al. 2018",
        parameters=f"{'2·' if separate else ''}(2·max_distance+1)·d",
    )
    return _relative(metadata, init, vectors, max_distance, separate=separate)


@register_encoding
def sinusoidal_relative(
    *, head_size: int, max_distance: int | None = 64, base: float = 10_000.0
) -> Part:
    """The fixed sinusoid of the signed, clipped offset (Wei et al. 2019); no parameters.

    NEZHA's encoding as its paper writes it; see `nezha` for that of its published weights.

    Raises:
      ValueError: for an odd head size, a `max_distance` below 1, or a base that is not positive.
    """
    fixed = default_frequencies(head_size, base)
    metadata = Metadata(
        formula=f"S(ω, m), ω_i = {base:g}^(−2i/d)", source="Wei et al. 2019"
    )
    frequencies = lambda params: jnp.array(fixed)
    return _sinusoidal(metadata, no_parameters, frequencies, max_distance)


@register_encoding
def learnable_sinusoidal_relative(
    *,
    head_size: int,
    max_distance: int | None = 64,
    separate: bool = False,
    base: float = 10_000.0,
) -> Part:
    """The sinusoid of the signed, clipped offset with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [d/2]}` in radians per position, starting at the fixed ones; with
    `separate`, `{"key": {...}, "value": {...}}`.

    Raises:
      ValueError: for an odd head size, a `max_distance` below 1, or a base that is not positive.
    """
    initial_frequencies = default_frequencies(head_size, base)
    metadata = Metadata(
        formula="S(ω, m), ω free",
        source="Wang et al. 2021, 3.2",
        parameters="d" if separate else "d/2",
    )
    init = lambda rng: {"frequencies": jnp.array(initial_frequencies)}
    frequencies = lambda params: params["frequencies"]
    part = _sinusoidal(metadata, init, frequencies, max_distance, separate)
    return part.replace(traits=Traits(frequency_params=("frequencies",)))


@register_encoding
def nezha(*, head_size: int, max_distance: int = 64, base: float = 10_000.0) -> Part:
    """The fixed sinusoid of a clipped offset counted from 0, as NEZHA's code has it; no parameters.

    P_m = S(ω, m + max_distance), m clipped to ±max_distance, in every layer, head, key and value
    (Wei et al. 2019, arXiv 1909.00204). The paper writes S(ω, m), which is `sinusoidal_relative`;
    the two differ by a fixed rotation of the pairs of P, which the projections can undo. It is the
    same model to train, but weights of a published NEZHA need this one.

    Raises:
      ValueError: for an odd head size, a `max_distance` below 1, or a base that is not positive.
    """
    fixed = default_frequencies(head_size, base)

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B d"]:
        clipped = x.clip(-max_distance, max_distance)
        return sinusoid(clipped + max_distance, jnp.array(fixed))

    metadata = Metadata(
        formula=f"S(ω, m + {max_distance}), ω_i = {base:g}^(−2i/d)",
        source="Wei et al. 2019, code",
        frequencies=lambda params: jnp.array(fixed),
    )
    # Without `OffsetTerms.frequencies`, which are for sinusoids of the offset itself.
    return _relative(metadata, no_parameters, vectors, max_distance)


def _sinusoidal(
    metadata: Metadata,
    init: Callable[[jax.Array], Params],
    frequencies: Callable[[Params], jax.Array],
    max_distance: int | None,
    separate: bool = False,
) -> Part:
    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B d"]:
        if max_distance is not None:
            x = x.clip(-max_distance, max_distance)
        return sinusoid(x, frequencies(params))

    return _relative(metadata, init, vectors, max_distance, frequencies, separate)


def _relative(
    metadata: Metadata,
    init: Callable[[jax.Array], Params],
    vectors: Callable[[Params, Array], jax.Array],
    max_distance: int | None,
    frequencies: Callable[[Params], jax.Array] | None = None,
    separate: bool = False,
) -> Part:
    """The part that adds `vectors(params, offsets)` to keys and values.

    Args:
      frequencies: of vectors that are sinusoids of the offset.
      separate: keys and values have parameters of their own, each as `init` draws them.
    """
    check_at_least(1, max_distance=max_distance)

    def init_both(rng: jax.Array) -> Params:
        for_key, for_value = jax.random.split(rng)
        return {"key": init(for_key), "value": init(for_value)}

    def of_params(name: str, function: Any) -> Any:
        """`function` of the parameters of keys or values, as one of all parameters."""
        if not separate or function is None:
            return function
        return lambda params, *x: function(params[name], *x)

    key_vectors = of_params("key", vectors)
    value_vectors = of_params("value", vectors)
    key_frequencies = of_params("key", frequencies)
    return Part(
        init=init_both if separate else init,
        offsets=OffsetTerms(
            key_vectors=lambda params, x, _: key_vectors(params, x),
            value_vectors=lambda params, x, _: value_vectors(params, x),
            frequencies=key_frequencies,
            value_frequencies=of_params("value", frequencies),
            max_distance=max_distance,
        ),
        metadata=metadata.replace(
            invariant=True,
            monotone=False,  # Constant beyond max_distance; without one a sum of cosines.
            vectors=key_vectors,
            frequencies=key_frequencies or metadata.frequencies,
        ),
    )
