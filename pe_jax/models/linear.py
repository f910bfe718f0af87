"""Dense layers: a product and a bias, the backward pass written out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.attention.product import product, row_sum
from pe_jax.encodings import Params
from pe_jax.shapes import Array, Float

_SPEC = {False: "mk,kn->mn", True: "mk,nk->mn"}


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
    return product(_SPEC[tied], x, kernel) + bias


def _backward(tied, operands, g):
    x, kernel = operands
    g = g.astype(x.dtype)
    _, transpose = jax.vjp(functools.partial(product, _SPEC[tied]), x, kernel)
    return *transpose(g.astype(jnp.float32)), row_sum(g)


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
        kernel, bias = self.parameters(inner)
        return _dense(x.astype(self.dtype), kernel, bias)

    @nn.nowrap
    def parameters(self, inner: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Kernel `[*inner, *features]` and bias, for an input whose last axes are `inner`."""
        draw = nn.initializers.normal(self.stddev)
        kernel = self.param("kernel", draw, (*inner, *self.features))
        return kernel, self.param("bias", nn.initializers.zeros, self.features)


class DenseParts(Dense):
    """`Dense` whose outputs along the first axis of its features are computed one by one.

    One product would give them next to one another in each row, and whoever takes one of them, or
    puts their gradients together, would copy activations; so only the parameters are taken apart.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> tuple[jax.Array, ...]:
        kernel, bias = self.parameters(x.shape[-1:])
        x, parts = x.astype(self.dtype), self.features[0]
        return tuple(
            _dense(x, one.squeeze(1), own.squeeze(0))
            for one, own in zip(jnp.split(kernel, parts, axis=1), jnp.split(bias, parts))
        )


def _dense(x: Array, kernel: Array, bias: Array) -> jax.Array:
    """`x` times a kernel whose first axes are the last ones of `x`, in the dtype of `x`."""
    outer = x.shape[: x.ndim - (kernel.ndim - bias.ndim)]
    rows = x.reshape(math.prod(outer), -1)
    kernel = kernel.astype(x.dtype).reshape(rows.shape[1], -1)
    out = linear(False, rows, kernel, bias.reshape(-1)).astype(x.dtype)
    return out.reshape(*outer, *bias.shape)


def projection(params: Params, part: int) -> Callable[[Array], jax.Array]:
    """The map `[..., D] -> [..., H, d]` that is one part of a layer with features (parts, H, d).

    Args:
      params: of the layer.
    """

    def project(x: Float[Array, "*M D"]) -> Float[Array, "*M H d"]:
        kernel, bias = params["kernel"][:, part], params["bias"][part]
        return jnp.einsum("...d,dhe->...he", x, kernel.astype(x.dtype)) + bias.astype(x.dtype)

    return project
