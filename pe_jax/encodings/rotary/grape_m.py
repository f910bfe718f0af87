"""Multiplicative GRAPE: a position is a rotation in a plane of the head that is learned."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import both
from pe_jax.encodings.sinusoid import angles, cos_and_sin


@register_encoding
def grape_m(*, head_size: int, num_heads: int, base: float = 10_000.0) -> Part:
    """Multiplicative group representational position encoding, of one plane for each head (Zhang et
    al. 2025, arXiv 2512.07805, section 2).

        q_i -> G(i) q_i,   k_j -> G(j) k_j,   G(x) = exp(x ω_h L_h),   L_h = a_h b_hᵀ - b_h a_hᵀ

    With s = sqrt(|a|²|b|² - (a·b)²), the area that a and b span, G(x) rotates the plane of a and b
    by the angle x ω s and leaves alone what is orthogonal to it. G(i)ᵀ G(j) = G(j - i): logits
    depend on differences of positions.

    Sums of d/2 such generators (section 3.1) are `rope(learnable=True)`, with the planes of RoPE,
    and `string(axes=1)`, with planes that are learned. Those of appendix D are not here.

    Params: `{"a": [H, d], "b": [H, d], "frequencies": [H]}`. As in the paper, a and b start with
    length 1 and at right angles, at random. ω_h starts at base^(-h/H), h = 0 .. H-1, radians per
    position: RoPE's frequencies, spread over the heads (ours).

    Raises:
      ValueError: for a head of one dimension, or a base that is not positive.
    """
    check_at_least(2, head_size=head_size)
    check_positive(base=base)

    def init(rng: jax.Array) -> Params:
        directions = jax.random.orthogonal(rng, head_size, (num_heads,))
        w = jnp.float32(base) ** (-np.arange(num_heads) / num_heads)
        return {"a": directions[:, 0], "b": directions[:, 1], "frequencies": w}

    return Part(
        init=init,
        map_qkv=both(_rotate),
        traits=Traits(frequency_params=("frequencies",)),
        metadata=Metadata(
            formula="exp(x ω L) q, exp(x ω L) k, L = a bᵀ − b aᵀ",
            source="Zhang et al. 2025 (GRAPE), 2.3",
            parameters="(2d + 1)·H",
            invariant=True,
            monotone=False,  # A cosine of the offset.
            frequencies=lambda params: _planes(params).frequencies[:, None],
        ),
    )


class _Planes(NamedTuple):
    """The plane of each head: orthonormal vectors with L = s (u vᵀ - v uᵀ), and ω s."""

    u: Float[Array, "H d"]
    v: Float[Array, "H d"]
    frequencies: Float[Array, " H"]


def _planes(params: Params) -> _Planes:
    a = params["a"]
    b = params["b"]
    length = jnp.linalg.norm(a, axis=-1, keepdims=True)
    u = a / length
    across = b - u * _product(u, b)
    height = jnp.linalg.norm(across, axis=-1, keepdims=True)
    area = (length * height)[:, 0]
    return _Planes(u=u, v=across / height, frequencies=params["frequencies"] * area)


def _rotate(
    params: Params, x: Float[Array, "B L H d"], positions: Real[Array, "*P"]
) -> Float[Array, "B L H d"]:
    """Return G(position) x; computed in float32, float64 where `x` is."""
    u, v, frequencies = _planes(params)
    angle = angles(positions, frequencies)[..., None]  # [#B, L, H, 1]
    cos, sin = cos_and_sin(angle)
    wide = at_least_float32(x)
    along_u = _product(wide, u)
    along_v = _product(wide, v)
    moved_u = (cos - 1) * along_u + sin * along_v
    moved_v = (cos - 1) * along_v - sin * along_u
    return (wide + moved_u * u + moved_v * v).astype(x.dtype)


def _product(x: Array, y: Array) -> jax.Array:
    return jnp.sum(x * y, axis=-1, keepdims=True)
