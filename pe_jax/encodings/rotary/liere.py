"""LieRE: rotations of whole heads that are learned, one generator for each axis of a position."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.pairwise import numbers_at_once
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.positions import real_positions
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.several_axes import check_width, of_patch
from pe_jax.encodings.rotary.skew import rotation_of, skew_matrix

# With more numbers in all matrices, they are computed for some positions at a time. On a CPU that
# takes 1.4 times as long for 1,024 positions and two heads, and as long as all at once for 4,096.
_WHOLE = 2**21


@register_encoding
def liere(
    *,
    head_size: int,
    num_heads: int,
    block: int = 8,
    axes: int = 2,
    side: float = 14.0,
    width: int | None = None,
) -> Part:
    """Lie rotational position encoding (Ostmeier et al. 2024, arXiv 2406.10322, section 4).

        q_i -> R(x_i) q_i,   k_j -> R(x_j) k_j,   R(x) = exp(Σ_a x_a A_a),   A_a = -A_aᵀ

    in each block of n dimensions; what is left over of a head stays as it is. Blocks of 2 are
    `rope_mixed`. For larger ones the A_a do not commute, so logits depend on the positions
    themselves, which the paper allows on purpose.

    Params: `{"generators": [A, H, d // n, n(n-1)/2]}`, the entries above the diagonals, uniform in
    [0, 2π] as in the authors' code. There each layer has its own: `per_layer(liere)`.

    Memory: a matrix [n, n] for each position, head and block; of many positions, of some at a time.
    Exponentials are float32, with an error that grows with the position (see `skew.rotation_of`).

    Args:
      block: n, 8 in the authors' configs; blocks of the whole head if that is smaller.
      axes: A, at least 2. Positions are `[L, A]` or `[B, L, A]`, integer or real.
      side: x is the position divided by it. Use the same for images of any size. The authors' code
        has x from 0 to 1 in images of 14 x 14 patches: for its weights, and to train as it does,
        `side=13`, which is `per_layer(liere(block=64, width=14, side=13))` with blocks of 64.
      width: positions are one number each instead, as in `rope_axial`.

    Raises:
      ValueError: for sizes that do not fit, or fewer than two axes.
    """
    if axes < 2:
        raise ValueError(
            f"axes must be at least 2, got {axes}. With one axis the generators commute: use "
            "string(axes=1)."
        )
    check_width(width, axes)
    check_at_least(2, block=block, head_size=head_size)
    check_positive(side=side)
    size = min(block, head_size)
    blocks = head_size // size

    def init(rng: jax.Array) -> Params:
        shape = (axes, num_heads, blocks, size * (size - 1) // 2)
        return {"generators": jax.random.uniform(rng, shape, maxval=2 * np.pi)}

    def rotations(
        params: Params, positions: Real[Array, "..."]
    ) -> Float[Array, "*B L H N n n"]:
        if width is not None:
            positions = of_patch(positions, width)
        x = jnp.asarray(real_positions(positions)) / side
        entries = jnp.tensordot(x, params["generators"], axes=1)
        return rotation_of(skew_matrix(entries, size))

    def rotate(params: Params, positions: Array, *heads: Array) -> tuple[Array, ...]:
        """Rotate arrays `[B, L, H, d]` at the same positions, some positions at a time."""

        def rotate_block(block: tuple[Array, ...]) -> tuple[Array, ...]:
            block_positions, *block_heads = block
            matrices = rotations(params, block_positions)
            return tuple(_rotate(x, matrices) for x in block_heads)

        # The axis of tokens; an axis of rows may be before it.
        axis = positions.ndim - (1 if width else 2)
        rows = positions.shape[0] if axis else 1
        length = heads[0].shape[1]
        numbers_per_position = rows * num_heads * blocks * size**2
        # A symbolic length cannot be cut.
        if not isinstance(length, int) or length * numbers_per_position <= _WHOLE:
            return rotate_block((positions, *heads))
        count = max(1, numbers_at_once() // numbers_per_position)
        cut_positions = cut_axis(positions, count, axis)
        cut_heads = [cut_axis(x, count, 1) for x in heads]
        rotated = jax.lax.map(jax.checkpoint(rotate_block), (cut_positions, *cut_heads))
        return tuple(join_axis(x, 1, length) for x in rotated)

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        ranges = context.ranges
        same_positions = context.positions_k is context.positions_q
        if same_positions or (ranges and ranges[0] == ranges[1]):
            q, k = rotate(params, i, q, k)  # The matrices are computed once.
            return q, k, v
        (q,) = rotate(params, i, q)
        (k,) = rotate(params, j, k)
        return q, k, v

    return Part(
        init=init,
        map_qkv=map_qkv,
        traits=Traits(
            frequency_params=("generators",), axes=axes if width is None else 1
        ),
        metadata=Metadata(
            formula="exp(Σ_a x_a A_a), A = −Aᵀ free",
            source="Ostmeier et al. 2024 (LieRE), 4",
            parameters="A·H·d·(n−1)/2",
        ),
    )


def _rotate(
    x: Float[Array, "B L H d"], rotations: Float[Array, "*B L H N n n"]
) -> Float[Array, "B L H d"]:
    """Multiply each block of a head by its matrix; in float32, float64 where `x` is."""
    blocks = rotations.shape[-3]
    size = rotations.shape[-1]
    wide, rest = jnp.split(at_least_float32(x), [blocks * size], axis=-1)
    shares = wide.reshape(*x.shape[:-1], blocks, size)
    axes = "lhned,blhnd->blhne" if rotations.ndim == 5 else "blhned,blhnd->blhne"
    rotated = jnp.einsum(axes, rotations, shares, precision="highest")
    out = jnp.concatenate([rotated.reshape(wide.shape), rest], axis=-1)
    return out.astype(x.dtype)
