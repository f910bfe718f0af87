"""Products of matrices: operands of any dtype, sums in float32, backward as forward.

Accelerators sum bfloat16 products in float32 anyway. CPUs with bfloat16 units (AMX) use them only
for products whose result is asked for in float32: asked for bfloat16, XLA widens the operands, and
in a backward pass it would widen whatever meets a float32 gradient.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float

# Rows of ones: of a product with a single one XLA makes a sum again.
_ONES = 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: str, a: Array, b: Array) -> jax.Array:
    """`jnp.einsum(spec, a, b)` in float32; a gradient is rounded to the dtype of `a` to go back.

    Args:
      spec: letters only, each in two of the three terms at least, as in `"bqd,kd->bqk"`.
      a, b: of one dtype.
    """
    of_a, of_b, of_out = _terms(spec)
    common = [axis for axis in of_a if axis in of_b and axis in of_out]
    own = [[axis for axis in of if axis in of_out and axis not in common] for of in (of_a, of_b)]
    order = "".join([*common, *own[0], *own[1]])
    # As matrices give it: XLA makes no bfloat16 product on a CPU whose result has the several axes
    # of one operand apart (jax 0.10.2: UNIMPLEMENTED).
    first = of_out if max(map(len, own)) == 1 else order
    out = jnp.einsum(f"{of_a},{of_b}->{first}", a, b, preferred_element_type=jnp.float32)
    return jnp.einsum(f"{first}->{of_out}", out)


def row_sum(x: Float[Array, "M N"]) -> Float[Array, " N"]:
    """The sum over rows, float32, as a product with ones: XLA's sum of rows is slow on CPUs and
    TPUs, and beside other products this one costs nothing."""
    return product("om,mn->on", jnp.ones((_ONES, len(x)), x.dtype), x)[0]


def _terms(spec: str) -> tuple[str, str, str]:
    operands, of_out = spec.split("->")
    of_a, of_b = operands.split(",")
    return of_a, of_b, of_out


def _forward(spec, a, b):
    return product(spec, a, b), (a, b)


def _backward(spec, operands, g):
    a, b = operands
    of_a, of_b, of_out = _terms(spec)
    g = g.astype(a.dtype)
    da = product(f"{of_out},{of_b}->{of_a}", g, b)
    db = product(f"{of_a},{of_out}->{of_b}", a, g)
    return da.astype(a.dtype), db.astype(b.dtype)


product.defvjp(_forward, _backward)
