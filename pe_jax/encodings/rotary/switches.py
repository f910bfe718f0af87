"""Rotary encodings with other frequencies, to see what single rotations are good for."""

from __future__ import annotations

from collections.abc import Callable

from pe_jax.encodings.base import Context, Heads, Params, Part, PositionEncoding
from pe_jax.shapes import Array, Float

# The factor of each frequency, from the frequencies themselves.
Factors = Callable[[Float[Array, "#H F"]], Float[Array, "#H F"]]


def with_factors(encoding: PositionEncoding, factors: Factors) -> PositionEncoding:
    """`encoding` with every frequency ω of its rotations (`Card.pairs`) multiplied by a factor.

    Its parameters are those of `encoding`, and so are their names. A factor of 0 takes the position
    from a pair of dimensions and leaves its content. Factors may be traced: all changes of one
    model compile to one program. What has been changed is not there to be measured: it has no card.

    Args:
      factors: `ω -> factors`, both `[#H, F]`.
    """
    return encoding.map_parts(lambda part: _changed(part, factors))


def _changed(part: Part, factors: Factors) -> Part:
    hook = part.heads
    if hook is None or part.card is None or not part.card.pairs:
        return part

    def heads(params: Params, q: Array, k: Array, v: Array, context: Context) -> Heads:
        return hook(params, q, k, v, context._replace(frequency_factors=factors))

    return part._replace(heads=heads, card=None)
