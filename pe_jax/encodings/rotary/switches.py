"""Rotary encodings with other frequencies, to see what single rotations are good for."""

from __future__ import annotations

from collections.abc import Callable

from pe_jax.encodings.base import Part, PositionEncoding
from pe_jax.encodings.stack import Stack, as_stack
from pe_jax.shapes import Array, Float

# The factor of each frequency, from the frequencies themselves.
Factors = Callable[[Float[Array, "#H F"]], Float[Array, "#H F"]]


def with_factors(encoding: PositionEncoding | Stack, factors: Factors) -> Stack:
    """`encoding` with every frequency ω of its rotations (`View.rotation`) multiplied by a factor.

    Its parameters are those of `encoding`, and so are their names. A factor of 0 takes the position
    from a pair of dimensions and leaves its content. Factors may be traced: all changes of one
    model compile to one program. What has been changed is not there to be measured: it has no view.

    Args:
      factors: `ω -> factors`, both `[#H, F]`.
    """
    stack = as_stack(encoding)
    change = lambda one: PositionEncoding(tuple(_changed(part, factors) for part in one.parts))
    return Stack(change(stack.common), tuple(map(change, stack.layers)), stack.own)


def _changed(part: Part, factors: Factors) -> Part:
    rotation = part.view.rotation if part.view else None
    if rotation is None:
        return part

    def heads(params, q, k, v, context):
        w = rotation.frequencies(params)
        return rotation.heads(params, q, k, v, context, factors(w))

    return part._replace(heads=heads, view=None)
