"""The rotation of pairs of dimensions, in the form that suits the device.

With c for cosines and s for sines, each for both dimensions of its pair, and with Q, which takes a
pair (a, b) to (-b, a):

    R(angle) x = c x + s Q x

Elsewhere Q moves halves of a head about. On a TPU such moves, of lanes of a register, cost more
than the attention around them, while a product with the matrix of Q costs next to nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32, wide_dtype
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import QKV, HookContext, Params

# Which dimensions make a pair: i and i + r/2 (GPT-NeoX, Llama as Hugging Face has it), or 2i and
# 2i + 1 (Su et al., GPT-J). The axis of the pair once r dimensions are unfolded to two axes.
Layout = Literal["half", "interleaved"]
_PAIR_AXIS: dict[Layout, int] = {"half": -2, "interleaved": -1}

# The most dimensions of all heads together for a product with Q, whose cost grows with the square.
_WIDEST = 1024


def pairs(count: int, layout: Layout) -> tuple[tuple[int, int], ...]:
    """The dimensions of each of so many pairs."""
    return tuple(
        (m, m + count) if layout == "half" else (2 * m, 2 * m + 1) for m in range(count)
    )


def both(
    rotate: Callable[[Params, Array, Array], Array],
) -> Callable[[Params, Array, Array, Array, HookContext], QKV]:
    """The hook `map_qkv` that rotates queries and keys, each at its own positions.

    Args:
      rotate: `(params, x [B, L, H, d], positions) -> x`.
    """

    def heads(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        return rotate(params, q, i), rotate(params, k, j), v

    return heads


def rotate_by(
    x: Float[Array, "B L H d"],
    angle: Float[Array, "*R #H F"],
    layout: Layout = "half",
    scale: Array | float = 1.0,
) -> Float[Array, "B L H d"]:
    """c R(angle) x, for the first 2F dimensions, as `rotate_heads` with angles of one's own.

    Args:
      angle: `[L, #H, F]` or `[B, L, #H, F]`.
      scale: c, a number or one for each angle.
    """
    return _rotate(x, scale * jnp.cos(angle), scale * jnp.sin(angle), layout)


# Traced once for the queries and keys of all layers.
@functools.partial(jax.jit, static_argnames="layout")
def _rotate(x: Array, cos: Array, sin: Array, layout: Layout) -> Array:
    by_halves = functools.partial(_by_halves, layout)
    if x.shape[2] * x.shape[3] > _WIDEST:
        return by_halves(x, cos, sin)
    by_product = functools.partial(_by_product, layout)
    return jax.lax.platform_dependent(x, cos, sin, tpu=by_product, default=by_halves)


def _by_halves(layout: Layout, x: Array, cos: Array, sin: Array) -> jax.Array:
    count, axis = cos.shape[-1], _PAIR_AXIS[layout]
    rotated, rest = x[..., : 2 * count], x[..., 2 * count :]
    unfolded = (2, count) if axis == -2 else (count, 2)
    a, b = jnp.moveaxis(
        at_least_float32(rotated).reshape(*x.shape[:-1], *unfolded), axis, 0
    )
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis)
    return jnp.concatenate([turned.reshape(rotated.shape).astype(x.dtype), rest], -1)


def _by_product(layout: Layout, x: Array, cos: Array, sin: Array) -> jax.Array:
    """All heads next to one another, as the products before and after have them."""
    width = (
        x.shape[2] * x.shape[3]
    )  # Not -1, which a batch of no rows would not determine.
    size, pair_dims = x.shape[-1], np.array(pairs(cos.shape[-1], layout))
    quarter = np.zeros((size, size))
    (
        quarter[pair_dims[:, 0], pair_dims[:, 1]],
        quarter[pair_dims[:, 1], pair_dims[:, 0]],
    ) = 1.0, -1.0
    every_head = jnp.asarray(np.kron(np.eye(x.shape[2]), quarter), x.dtype)

    def flat(pair_values: Array, elsewhere: float) -> jax.Array:
        """Spread numbers of pairs over the dimensions of all heads."""
        shape = *pair_values.shape[:-2], x.shape[2], cos.shape[-1]
        head_values = jnp.broadcast_to(pair_values, shape)
        wide = jnp.full((*head_values.shape[:-1], size), elsewhere, head_values.dtype)
        for dims in pair_dims.T:
            wide = wide.at[..., dims].set(head_values)
        return wide.reshape(*wide.shape[:-2], width)

    heads = x.reshape(*x.shape[:2], width)
    # Exact, each entry being one of x: the highest precision matters to float32 alone.
    turned = jnp.einsum(
        "blx,xy->bly",
        heads,
        every_head,
        precision="highest",
        preferred_element_type=wide_dtype(x),
    )
    rotated = at_least_float32(heads) * flat(cos, 1.0) + turned * flat(sin, 0.0)
    return rotated.astype(x.dtype).reshape(x.shape)
