"""Terms by offset, laid out along the keys, and their transpose: gathers both ways, no scatter.

Two primitives that are each other's transpose, differentiable to any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pe_jax.attention.masks import index_offsets
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.shapes import Array, Float


def relative_shift(
    clip: int, keys: int, by_offset: Float[Array, "*B Lq M"], shift: ArrayLike
) -> Float[Array, "*B Lq Lk"]:
    """Lay the M = 2·clip + 1 terms of a query, of offsets -clip .. clip, out along so many keys:
    entry (i, j) is that of the offset clip(j - i + shift), with `shift` the position of the first
    key minus that of the first query."""
    return relative_shift_p.bind(*vary_alike((by_offset, shift)), clip=clip, keys=keys)


def relative_shift_transpose(
    clip: int, keys: int, x: Float[Array, "*B Lq Lk"], shift: ArrayLike
) -> Float[Array, "*B Lq M"]:
    """Sum `x` over the keys of each offset; the transpose of `relative_shift`."""
    return relative_shift_transpose_p.bind(
        *vary_alike((x, shift)), clip=clip, keys=keys
    )


def _relative_shift(
    by_offset: Array, shift: ArrayLike, *, clip: int, keys: int
) -> jax.Array:
    rows = jnp.clip(index_offsets(by_offset.shape[-2], keys, shift), -clip, clip) + clip
    return _take(by_offset, rows)


def _relative_shift_transpose(
    x: Array, shift: ArrayLike, *, clip: int, keys: int
) -> jax.Array:
    # The key of offset m for query i: position i + m.
    key = index_offsets(x.shape[-2], 2 * clip - 1, 1 - clip, sign=1) - shift
    x = jax.lax.optimization_barrier(x)  # Or each of its uses recomputes it.
    near = jnp.where((key >= 0) & (key < keys), _take(x, jnp.clip(key, 0, keys - 1)), 0)
    is_left = index_offsets(x.shape[-2], keys, shift) <= -clip
    left = jnp.where(is_left, x, 0).sum(-1, keepdims=True)
    # What is neither: a second masked sum takes longer than all else here.
    right = x.sum(-1, keepdims=True) - left - near.sum(-1, keepdims=True)
    return jnp.concatenate([left, near, right], axis=-1)


relative_shift_p = Primitive("relative_shift")
relative_shift_transpose_p = Primitive("relative_shift_transpose")


def _define(
    primitive: Primitive, function: Callable[..., jax.Array], transpose: Primitive
) -> None:
    """Define a primitive as `function(x, shift, clip=, keys=)`, which is linear in x."""

    def batch(operands, axes, **sizes):
        if axes[1] is None:
            x = jnp.moveaxis(operands[0], axes[0], 0)
            return primitive.bind(x, operands[1], **sizes), 0
        return jax.vmap(functools.partial(function, **sizes), axes)(*operands), 0

    def abstract(x, shift, **sizes):
        traced = jax.make_jaxpr(functools.partial(function, **sizes))(x, shift)
        return traced.out_avals[0]

    def jvp(g, x, shift, **sizes):
        return primitive.bind(g, shift, **sizes)

    def transposed(g, x, shift, **sizes):
        return transpose.bind(g, shift, **sizes), None

    primitive.def_impl(jax.jit(function, static_argnames=("clip", "keys")))
    primitive.def_abstract_eval(abstract)
    ad.defjvp(primitive, jvp, None)
    ad.primitive_transposes[primitive] = transposed
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))


_define(relative_shift_p, _relative_shift, relative_shift_transpose_p)
_define(relative_shift_transpose_p, _relative_shift_transpose, relative_shift_p)


def _take(x: Array, index: Array) -> Array:
    """Return x[..., i, index[i, j]]."""
    index = index.reshape((1,) * (x.ndim - 2) + index.shape)
    # Barriers: fused into its neighbours, a gather runs again in each of their passes.
    x = jax.lax.optimization_barrier(x)
    out = jnp.take_along_axis(x, index, axis=-1, mode="promise_in_bounds")
    return jax.lax.optimization_barrier(out)
