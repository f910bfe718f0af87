"""Dense layers: products in the compute dtype, sums in float32, a backward pass written out.

Accelerators sum bfloat16 products in float32 anyway. CPUs with bfloat16 units (AMX) are used only
for products whose result is asked for in float32, and XLA's sum over rows, a bias's gradient, is
slow there: as a product with ones it costs nothing beside the others.
"""

from __future__ import annotations

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(
    tied: bool, x: Float[Array, "M K"], kernel: Float[Array, "#K N"], bias: Float[Array, " N"]
) -> Float[Array, "M N"]:
    """x·kernel + bias in float32; the gradient that comes back is rounded to the dtype of `x`.

    Args:
      tied: the kernel is `[N, K]`, as an embedding is that serves as the output layer.
      kernel: in the dtype of `x`.
      bias: float32.
    """
    return _dot(x, kernel, 1, 1 if tied else 0) + bias


def _backward(tied, operands, g):
    x, kernel = operands
    g = g.astype(x.dtype)
    dx = _dot(g, kernel, 1, 0 if tied else 1)
    dkernel = _dot(g, x, 0, 0) if tied else _dot(x, g, 0, 0)
    dbias = _dot(jnp.ones((1, len(g)), g.dtype), g, 1, 0)[0]
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype), dbias


def _dot(a: Array, b: Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


linear.defvjp(lambda tied, x, kernel, bias: (linear(tied, x, kernel, bias), (x, kernel)), _backward)


class Dense(nn.Module):
    """A dense layer over the last axes of its input, with the parameters of `nn.DenseGeneral`.

    Attributes:
      features: of the output, one or several axes.
      axes: how many of the input's last axes are contracted.
      dtype: of the products and the result.
    """

    features: tuple[int, ...]
    dtype: jnp.dtype
    stddev: float
    axes: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        inner = x.shape[x.ndim - self.axes :]
        draw = nn.initializers.normal(self.stddev)
        kernel = self.param("kernel", draw, (*inner, *self.features))
        bias = self.param("bias", nn.initializers.zeros, self.features)
        rows = x.astype(self.dtype).reshape(-1, math.prod(inner))
        kernel = kernel.astype(self.dtype).reshape(math.prod(inner), -1)
        out = linear(False, rows, kernel, bias.reshape(-1)).astype(self.dtype)
        return out.reshape(*x.shape[: x.ndim - self.axes], *self.features)
