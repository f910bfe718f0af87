"""Baselines: a position's index as a number, its share of the length, and sinusoids next to words
instead of added to them.

An encoding should distinguish positions by numbers that are bounded, do not depend on the length,
and agree under shifts. The index is not bounded, the share depends on the length, neither agrees.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.absolute.position_vectors import absolute
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


@register_encoding
def raw_index(*, hidden_size: int, stddev: float = 0.02) -> Part:
    """P(x) = x·u with one learned direction u: the index itself.

    It grows without bound: P(x)·P(y) = x y |u|², and at position 500 it is 500 times as long as a
    word embedding of the same standard deviation. (The same number added to all dimensions, u = 1,
    would be removed by the layer norm that follows.)

    Params: `{"direction": [D]}`, drawn from a normal of `stddev`.
    """
    init = normal_init(stddev, direction=(hidden_size,))
    return _along_direction(init, lambda x: x, "x·u", Traits())


@register_encoding
def normalized_index(*, hidden_size: int, stddev: float = 0.02) -> Part:
    """P(x) = x / (n - 1)·u, n the length of the input, and one learned direction u: the share of
    the input that is to the left.

    It is bounded, but a position means another share in another input: the neighbour of a token is
    1/(n - 1) away. n is a row's largest position + 1, so padding does not change it, documents
    packed into a row share that of the longest, and one more token moves all (no cache).

    Params: `{"direction": [D]}`, drawn from a normal of `stddev`.
    """

    def share(x: Real[Array, "*B L"]) -> Real[Array, "*B L"]:
        module = np if isinstance(x, np.ndarray) else jnp
        last = x.max(-1, keepdims=True, initial=0)
        return x / module.maximum(last, 1)

    init = normal_init(stddev, direction=(hidden_size,))
    return _along_direction(init, share, "x/(n − 1)·u", Traits(cacheable=False))


def _along_direction(
    init: Callable[[jax.Array], Params],
    multiple: Callable[[Array], Array],
    formula: str,
    traits: Traits,
) -> Part:
    """The part that adds `multiple(positions)` times a learned direction."""

    def vectors(params: Params, x: Real[Array, "*B L"]) -> Float[Array, "*B L D"]:
        multiples = jnp.asarray(multiple(x), jnp.float32)
        return multiples[..., None] * params["direction"]

    metadata = Metadata(
        formula=formula, source="a counter-example", parameters="D", monotone=False
    )
    return absolute(vectors, metadata, init=init, traits=traits)


@register_encoding
def sinusoidal_concatenated(
    *, hidden_size: int, share: float = 0.25, base: float = 10_000.0, scale: float = 1.0
) -> Part:
    """Put word and position next to each other: D - p numbers of E(w), then p of S(ω, x).

    The position cannot drown the word, which has p dimensions fewer in return: the last p numbers
    of the word embedding are not used. A map of both is W_E E(w) + W_P S(ω, x); of their sum it
    would be that with W_P = W_E. No parameters.

    Args:
      share: p / D, in (0, 1); p is rounded down to an even number of at least 2.
      base, scale: as in `sinusoidal_absolute`.

    Raises:
      ValueError: for a share outside (0, 1), or a base that is not positive.
    """
    if not 0 < share < 1:
        raise ValueError(
            f"share must be in (0, 1), got {share}: the position's share of the embedding."
        )
    position_size = max(2, int(hidden_size * share) // 2 * 2)
    word_size = hidden_size - position_size
    frequencies = default_frequencies(position_size, base)

    def sinusoids(x: Real[Array, "*B"]) -> Float[Array, "*B p"]:
        return scale * sinusoid(x, frequencies)

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        vector = sinusoids(x)
        return jnp.pad(vector, [(0, 0)] * (vector.ndim - 1) + [(word_size, 0)])

    def embed(
        params: Params, x: Float[Array, "B L D"], context: HookContext
    ) -> Float[Array, "B L D"]:
        vector = sinusoids(as_array(context.positions_q))
        vector = jnp.broadcast_to(vector, (*x.shape[:-1], position_size))
        words = x[..., :-position_size]
        return jnp.concatenate([words, vector.astype(x.dtype)], axis=-1)

    metadata = Metadata(
        formula=f"[E(w), S(ω, x)], ω_i = {base:g}^(−2i/p)",
        source="concatenation, after Vaswani et al. 2017",
        monotone=False,
        frequencies=lambda params: jnp.array(frequencies),
    )
    return absolute(vectors, metadata).replace(embed=embed)
