"""The rotation of pairs of dimensions, in the form that suits the device.

With c for cosines and s for sines, each for both dimensions of its pair, and with Q, which takes a
pair (a, b) to (-b, a):

    R(angle) x = c x + s Q x

Elsewhere Q moves halves of a head about. On a TPU such moves, of lanes of a register, cost more
than the attention around them, while a product with the matrix of Q costs next to nothing, as long
as it takes a single pass, as of bfloat16 numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.product import product
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import QKV, HookContext, Params
from pe_jax.encodings.sinusoid import cos_and_sin

# Which dimensions make a pair: i and i + r/2 (GPT-NeoX, Llama as Hugging Face has it), or 2i and
# 2i + 1 (Su et al., GPT-J). The axis of the pair once r dimensions are unfolded to two axes.
Layout = Literal["half", "interleaved"]
_PAIR_AXIS: dict[Layout, int] = {"half": -2, "interleaved": -1}

# The most dimensions of all heads together for a product with Q, whose cost grows with the square.
_WIDEST = 1024


def pairs(count: int, layout: Layout) -> tuple[tuple[int, int], ...]:
    """Return the two dimensions of each of `count` pairs."""
    if layout == "half":
        return tuple((m, m + count) for m in range(count))
    return tuple((2 * m, 2 * m + 1) for m in range(count))


def both(
    rotate: Callable[[Params, Array, Array], Array],
) -> Callable[[Params, Array, Array, Array, HookContext], QKV]:
    """Return the hook `map_qkv` that rotates queries and keys, each at its own positions.

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
    """Return c R(angle) x: the first 2F dimensions are rotated, the others stay as they are.

    Args:
      x: queries or keys.
      angle: in radians, `[L, #H, F]` or `[B, L, #H, F]`.
      layout: which dimensions make a pair.
      scale: c, a number or one for each angle.

    Returns:
      an array in the dtype of `x`; the rotation is float32, float64 where `x` is.
    """
    cos, sin = cos_and_sin(angle)
    return _rotate(x, scale * cos, scale * sin, layout)


# Traced once for the queries and keys of all layers.
@functools.partial(jax.jit, static_argnames="layout")
def _rotate(x: Array, cos: Array, sin: Array, layout: Layout) -> Array:
    by_halves = functools.partial(_by_halves, layout)
    if x.shape[2] * x.shape[3] > _WIDEST:
        return by_halves(x, cos, sin)
    by_product = functools.partial(_by_product, layout)
    return jax.lax.platform_dependent(x, cos, sin, tpu=by_product, default=by_halves)


def _by_halves(layout: Layout, x: Array, cos: Array, sin: Array) -> jax.Array:
    """Unfold the rotated dimensions to two axes, one of them the pair."""
    count = cos.shape[-1]
    rotated = x[..., : 2 * count]
    rest = x[..., 2 * count :]
    pair_axis = _PAIR_AXIS[layout]
    unfolded = (2, count) if layout == "half" else (count, 2)
    wide = at_least_float32(rotated).reshape(*x.shape[:-1], *unfolded)
    a, b = jnp.moveaxis(wide, pair_axis, 0)
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], pair_axis)
    turned = turned.reshape(rotated.shape).astype(x.dtype)
    return jnp.concatenate([turned, rest], axis=-1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _by_product(layout: Layout, x: Array, cos: Array, sin: Array) -> jax.Array:
    """Multiply all heads, next to one another as the products around have them, by Q."""
    wide, turned = _with_quarter_turn(layout, x, cos.shape[-1])
    rotated = _scaled(layout, x, wide, cos, 1.0) + _scaled(layout, x, turned, sin, 0.0)
    return rotated.astype(x.dtype).reshape(x.shape)


@functools.partial(_by_product.defjvp, symbolic_zeros=True)
def _by_product_jvp(
    layout: Layout,
    primals: tuple[Array, Array, Array],
    tangents: tuple[Array | SymbolicZero, ...],
) -> tuple[jax.Array, jax.Array]:
    """Differentiate, with the tangent of s Q x as Q s dx.

    Both are the same, as s is equal for the two dimensions of a pair. The gradient of the second is
    s Qᵀ g, in which the product gets g itself. Of the first it is Qᵀ s g, whose float32 operand
    takes a TPU several passes, or has to be rounded.
    """
    x, cos, sin = primals
    dx, dcos, dsin = tangents
    spread = functools.partial(_scaled, layout, x)
    wide, turned = _with_quarter_turn(layout, x, cos.shape[-1])
    rotated = spread(wide, cos, 1.0) + spread(turned, sin, 0.0)
    tangent = jnp.zeros_like(rotated)
    if not isinstance(dx, SymbolicZero):
        wide_dx = at_least_float32(dx).reshape(wide.shape)
        scaled = spread(wide_dx, sin, 0.0).astype(x.dtype)
        _, turned_dx = _with_quarter_turn(
            layout, scaled.reshape(x.shape), cos.shape[-1]
        )
        tangent = spread(wide_dx, cos, 1.0) + turned_dx
    if not isinstance(dcos, SymbolicZero):
        tangent = tangent + spread(wide, dcos, 0.0)
    if not isinstance(dsin, SymbolicZero):
        tangent = tangent + spread(turned, dsin, 0.0)
    out = rotated.astype(x.dtype).reshape(x.shape)
    return out, tangent.astype(x.dtype).reshape(x.shape)


def _with_quarter_turn(
    layout: Layout, x: Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Return x and Q x, at least float32, with all heads in one axis: `[B, L, H·d]`."""
    rows, length, heads, size = x.shape
    first, second = np.array(pairs(count, layout)).T
    quarter_turn = np.zeros((size, size))
    quarter_turn[first, second] = 1.0
    quarter_turn[second, first] = -1.0
    every_head = jnp.asarray(np.kron(np.eye(heads), quarter_turn), x.dtype)
    # Not -1 for the last axis, which a batch of no rows would not determine.
    flat = x.reshape(rows, length, heads * size)
    # Exact, each entry being one of x, at the highest precision, which matters to float32 alone.
    if x.dtype.itemsize < 4:
        turned = product("blx,xy->bly", flat, every_head)
    else:
        turned = jnp.einsum("blx,xy->bly", flat, every_head, precision="highest")
    return at_least_float32(flat), turned


def _scaled(
    layout: Layout, x: Array, flat: Array, pair_values: Array, elsewhere: float
) -> jax.Array:
    """Multiply `flat`, `[B, L, H·d]`, by numbers of pairs; by `elsewhere` where there is no pair.

    Args:
      x: what is rotated, `[B, L, H, d]`, for its shape.
      pair_values: `[*R, #H, F]`.
    """
    _, _, heads, size = x.shape
    count = pair_values.shape[-1]
    shape = (*pair_values.shape[:-2], heads, count)
    head_values = jnp.broadcast_to(pair_values, shape)
    wide = jnp.full((*shape[:-1], size), elsewhere, head_values.dtype)
    for dims in np.array(pairs(count, layout)).T:
        wide = wide.at[..., dims].set(head_values, unique_indices=True)
    return flat * wide.reshape(*shape[:-2], heads * size)
