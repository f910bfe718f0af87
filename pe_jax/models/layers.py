"""Layers of BERT: dense layers, GELU, and what its modules have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.product import add_row, product
from pe_jax.encodings import Params
from pe_jax.models.config import BertConfig
from pe_jax.shapes import Array, Float


def linear(
    x: Float[Array, "M K"],
    kernel: Float[Array, "#K N"],
    bias: Float[Array, " N"],
    *,
    tied: bool = False,
) -> Float[Array, "M N"]:
    """Return x·kernel + bias in float32; gradients are rounded to the dtype of `x` to go back.

    Args:
      kernel: in the dtype of `x`.
      bias: float32.
      tied: the kernel is `[N, K]`, as an embedding is that serves as the output layer.
    """
    return add_row(product("mk,nk->mn" if tied else "mk,kn->mn", x, kernel), bias, x.dtype)


def gelu(x: Float[Array, "*B N"]) -> Float[Array, "*B N"]:
    """The exact GELU, x·Φ(x), of the original BERT (Hendrycks & Gimpel 2016); float32 inside."""
    # Rows in one axis, as the products before and after have them: with the axes of a batch XLA
    # keeps a float32 copy in another layout on TPUs.
    return _gelu_of_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape)


# Kept for the backward pass is the input alone, in its own dtype: erf is cheaper to compute again
# than its float32 values are to keep.
@functools.partial(jax.checkpoint, prevent_cse=False)
def _gelu_of_rows(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    x32 = x.astype(jnp.float32)
    below = 0.5 * (1.0 + jax.lax.erf(x32 * np.float32(0.5**0.5)))
    return (x32 * below).astype(x.dtype)


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
        kernel, bias = self.parameters(x.shape[x.ndim - self.axes :])
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
            _dense(x, part_kernel.squeeze(1), part_bias.squeeze(0))
            for part_kernel, part_bias in zip(
                jnp.split(kernel, parts, axis=1), jnp.split(bias, parts), strict=True
            )
        )


def _dense(x: Array, kernel: Array, bias: Array) -> jax.Array:
    """`x` times a kernel whose first axes are the last ones of `x`, in the dtype of `x`."""
    outer = x.shape[: x.ndim - (kernel.ndim - bias.ndim)]
    rows = x.reshape(math.prod(outer), -1)
    kernel = kernel.astype(x.dtype).reshape(rows.shape[1], -1)
    out = linear(rows, kernel, bias.reshape(-1)).astype(x.dtype)
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


class BertModule(nn.Module):
    """A module of BERT: the sizes, and layers made the same way in all of them."""

    config: BertConfig

    def dense(
        self,
        features: int | tuple[int, ...],
        name: str,
        axes: int = 1,
        kind: type[Dense] = Dense,
    ):
        return kind(
            features if isinstance(features, tuple) else (features,),
            dtype=jnp.dtype(self.config.dtype),
            stddev=self.config.initializer_stddev,
            axes=axes,
            name=name,
        )

    def layer_norm(self, name: str):
        return nn.LayerNorm(
            epsilon=self.config.layer_norm_epsilon, dtype=jnp.dtype(self.config.dtype), name=name
        )

    def embedding(self, rows: int, name: str):
        return nn.Embed(
            rows,
            self.config.hidden_size,
            embedding_init=nn.initializers.normal(self.config.initializer_stddev),
            name=name,
        )
