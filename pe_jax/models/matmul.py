"""Matrix products in the compute dtype with float32 sums, backward as well.

Accelerators sum bfloat16 products in float32 anyway. CPUs with bfloat16 units (AMX) do so only for
products whose result is asked for in float32: rounding to bfloat16 afterwards is several times as
fast there as a product that returns bfloat16.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float


@jax.custom_vjp
def matmul(x: Float[Array, "M K"], w: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """x·w in float32, from operands of one dtype; the gradient is rounded to that dtype as well."""
    return _dot(x, w, 1, 0)


def _backward(operands, g):
    x, w = operands
    g = g.astype(x.dtype)
    return _dot(g, w, 1, 1).astype(x.dtype), _dot(x, g, 0, 0).astype(w.dtype)


def _dot(a: Array, b: Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


matmul.defvjp(lambda x, w: (matmul(x, w), (x, w)), _backward)


def dense_dot(x: Array, kernel: Array, dimension_numbers: Any, precision: Any = None) -> jax.Array:
    """`matmul` as the `dot_general` of `flax.linen.DenseGeneral`: the last axes of `x` meet the
    first ones of `kernel`; the result has their dtype."""
    del precision
    (axes, _), _ = dimension_numbers
    inner = math.prod(kernel.shape[: len(axes)])
    lead, features = x.shape[: x.ndim - len(axes)], kernel.shape[len(axes) :]
    out = matmul(x.reshape(-1, inner), kernel.reshape(inner, -1))
    return out.reshape(*lead, *features).astype(x.dtype)
