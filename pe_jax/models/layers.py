"""Layers of BERT: attention and blocks, and the dense layers and norms that they share.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.attention import attention
from pe_jax.attention.dropout import dropout
from pe_jax.common.product import add_row, product
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Context, Params, PositionEncoding, embed
from pe_jax.encodings.part import Projection
from pe_jax.models.config import BertConfig


def linear(
    x: Float[Array, "M K"],
    kernel: Float[Array, "#K N"],
    bias: Float[Array, " N"] | None,
    *,
    tied: bool = False,
) -> Float[Array, "M N"]:
    """Return x·kernel + bias in float32; gradients are rounded to the dtype of `x` to go back.

    Args:
      kernel: in the dtype of `x`; `tied`, it is `[N, K]`, as an embedding that is the output layer.
      bias: float32; None adds none.
    """
    out = product("mk,nk->mn" if tied else "mk,kn->mn", x, kernel)
    return out if bias is None else add_row(out, bias.astype(out.dtype), x.dtype)


def activate(x: Float[Array, "*B N"], name: str) -> Float[Array, "*B N"]:
    """Apply an activation of `pe_jax.models.config.ACTIVATIONS`, or tanh; float32 inside."""
    # Rows in one axis, as the products before and after have them: with the axes of a batch XLA
    # keeps a float32 copy in another layout on TPUs.
    return _activate_rows(x.reshape(-1, x.shape[-1]), name).reshape(x.shape)


# Kept for the backward pass is the input alone, in its own dtype: erf is cheaper to compute again
# than its float32 values are to keep.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(1,))
def _activate_rows(x: Float[Array, "M N"], name: str) -> Float[Array, "M N"]:
    return _ACTIVATIONS[name](x.astype(jnp.float32)).astype(x.dtype)


def _gelu(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """The exact GELU, x·Φ(x), of the original BERT (Hendrycks & Gimpel 2016)."""
    return x * (0.5 * (1.0 + jax.lax.erf(x * np.float32(0.5**0.5))))


_ACTIVATIONS: dict[str, Callable[[Array], jax.Array]] = {
    "gelu": _gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def check_ids(name: str, ids: Int[Array, "..."], rows: int) -> None:
    """Check ids, whose values are known outside of `jax.jit` alone.

    Raises:
      ValueError: for ids that are no integers, or known and outside 0 .. rows - 1.
    """
    dtype = jnp.result_type(ids)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {dtype}.")
    if isinstance(ids, jax.core.Tracer):
        return
    known = np.asarray(ids)
    outside = known[(known < 0) | (known >= rows)]
    if outside.size:
        raise ValueError(f"{name} must be from 0 to {rows - 1}, got {outside[0]}.")


class Dense(nn.Module):
    """A dense layer over the last axes of its input, with the parameters of `nn.DenseGeneral`."""

    features: tuple[int, ...]  # Of the output, one or several axes.
    dtype: jnp.dtype  # Of the products and the result.
    stddev: float
    axes: int = 1  # How many of the input's last axes are contracted.
    has_bias: bool = True  # Whether there is a parameter `bias`.

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        kernel, bias = self.parameters(x.shape[x.ndim - self.axes :])
        return _dense(x.astype(self.dtype), kernel, bias, self.features)

    @nn.nowrap
    def parameters(self, inner: tuple[int, ...]) -> tuple[jax.Array, jax.Array | None]:
        """Return kernel `[*inner, *features]` and bias, for an input of last axes `inner`."""
        draw = nn.initializers.normal(self.stddev)
        kernel = self.param("kernel", draw, (*inner, *self.features))
        if not self.has_bias:
            return kernel, None
        return kernel, self.param("bias", nn.initializers.zeros, self.features)


class DenseParts(Dense):
    """`Dense` whose outputs along the first axis of its features are computed one by one.

    Parts of one product, and their gradients, would be copied from and to its rows.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> tuple[jax.Array, ...]:
        kernel, bias = self.parameters(x.shape[-1:])
        x = x.astype(self.dtype)
        parts, *features = self.features
        kernels = jnp.split(kernel, parts, axis=1)
        biases = [None] * parts if bias is None else jnp.split(bias, parts)
        outputs = []
        for part, part_bias in zip(kernels, biases, strict=True):
            if part_bias is not None:
                part_bias = part_bias.squeeze(0)
            outputs.append(_dense(x, part.squeeze(1), part_bias, tuple(features)))
        return tuple(outputs)


def _dense(
    x: Array, kernel: Array, bias: Array | None, features: tuple[int, ...]
) -> jax.Array:
    """`x` times a kernel whose first axes are the last ones of `x`, in the dtype of `x`."""
    outer = x.shape[: x.ndim - (kernel.ndim - len(features))]
    rows = x.reshape(math.prod(outer), -1)
    kernel = kernel.astype(x.dtype).reshape(rows.shape[1], -1)
    if bias is not None:
        bias = bias.reshape(-1)
    out = linear(rows, kernel, bias).astype(x.dtype)
    return out.reshape(*outer, *features)


def projection_parameters(params: Mapping[str, Any]) -> tuple[Params, Params, Params]:
    """Return the parameters of the projections to queries, keys and values.

    Args:
      params: of `SelfAttention`.

    Returns:
      Three times a kernel `[D, H, d]` and, if there is one, a bias `[H, d]`. Those of keys and
      values have their number of heads for H.
    """

    def part(dense: Params, index: int) -> Params:
        parameters = {"kernel": dense["kernel"][:, index]}
        if "bias" in dense:
            parameters["bias"] = dense["bias"][index]
        return parameters

    if "qkv" in params:
        qkv = params["qkv"]
        return part(qkv, 0), part(qkv, 1), part(qkv, 2)
    key_value = params["key_value"]
    return params["query"], part(key_value, 0), part(key_value, 1)


def query_key_maps(params: Mapping[str, Any]) -> tuple[Projection, Projection]:
    """Return the projections to queries and to keys, of the same `params`."""

    def project(part: int, x: Float[Array, "*M D"]) -> Float[Array, "*M H d"]:
        dense = projection_parameters(params)[part]
        out = jnp.einsum("...d,dhe->...he", x, dense["kernel"].astype(x.dtype))
        if "bias" in dense:
            out = out + dense["bias"].astype(x.dtype)
        return out

    return functools.partial(project, 0), functools.partial(project, 1)


# Kept for the backward pass is the input alone, as by `_activate_rows`.
_LayerNorm = nn.remat(nn.LayerNorm, prevent_cse=False)
_RMSNorm = nn.remat(nn.RMSNorm, prevent_cse=False)


class BertModule(nn.Module):
    """A module of BERT: the sizes, and layers made the same way in all of them."""

    config: BertConfig

    def dense(
        self, features: int | tuple[int, ...], name: str, kind=Dense, **options: Any
    ):
        """A `Dense` of the config's dtype; `options` are its further attributes."""
        return kind(
            features if isinstance(features, tuple) else (features,),
            dtype=jnp.dtype(self.config.dtype),
            stddev=self.config.initializer_stddev,
            name=name,
            **options,
        )

    def norm(self, name: str):
        c = self.config
        epsilon, dtype = c.layer_norm_epsilon, jnp.dtype(c.dtype)
        if c.norm == "rms_norm":
            return _RMSNorm(epsilon=epsilon, dtype=dtype, name=name)
        return _LayerNorm(epsilon=epsilon, dtype=dtype, use_bias=c.norm_bias, name=name)

    def embedding(self, rows: int, name: str):
        draw = nn.initializers.normal(self.config.initializer_stddev)
        size = self.config.embedding_width
        return nn.Embed(rows, size, embedding_init=draw, name=name)


class Convolution(BertModule):
    """A convolution over the tokens of a row, with zeros around it, as in DeBERTa-v2's xlarge."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], document_ids: Int[Array, "B L"] | None
    ) -> Float[Array, "B L D"]:
        """Convolve hidden states, which must be zero at padding; documents do not mix."""
        c = self.config
        draw = nn.initializers.normal(c.initializer_stddev)
        shape = (c.conv_kernel, c.hidden_size, c.hidden_size)
        kernel = self.param("kernel", draw, shape)
        bias = self.param("bias", nn.initializers.zeros, (c.hidden_size,))
        reach, length = c.conv_kernel // 2, x.shape[1]
        out = jnp.zeros(x.shape, jnp.float32)
        around = jnp.pad(x, [(0, 0), (reach, reach), (0, 0)])
        if document_ids is not None:
            ids_around = jnp.pad(document_ids, [(0, 0), (reach, reach)])
        for i in range(c.conv_kernel):
            neighbours = around[:, i : i + length]
            if document_ids is not None:
                same = ids_around[:, i : i + length] == document_ids
                neighbours = jnp.where(same[:, :, None], neighbours, 0)
            rows = neighbours.reshape(-1, c.hidden_size)
            product_rows = linear(rows, kernel[i].astype(x.dtype), None)
            out = out + product_rows.reshape(x.shape)
        return (out + bias).astype(x.dtype)


class SelfAttention(BertModule):
    """Multi-head self-attention; fewer heads of keys and values serve several of queries each."""

    encoding: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rng: jax.Array | None,
    ) -> Float[Array, "B L D"]:
        c = self.config
        q, k, v = self.projected(x)
        if c.query_key_norm:
            q = self.norm("query_norm")(q)
            k = self.norm("key_norm")(k)
        if not c.scale_logits:  # Attention divides the products by this.
            q = q * c.head_size**0.5
        # For inspection; costs nothing else.
        self.sow("intermediates", "compared", (x, q, k, v))
        maps = query_key_maps(self.variables["params"])
        out = attention(
            q,
            k,
            v,
            self.encoding.in_attention,
            position_params,
            context.replace(x_q=x, x_k=x, projections=maps),
            mask=mask,
            dropout_rate=0.0 if rng is None else c.attention_dropout_rate,
            dropout_rng=rng,
            implementation=c.implementation,
        )
        return self.dense(c.hidden_size, "out", axes=2, has_bias=c.attention_bias)(out)

    @nn.nowrap
    def projected(
        self, x: Float[Array, "B L D"]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries `[B, L, H, d]`, keys and values `[B, L, G, d]`."""
        c = self.config
        dense = functools.partial(self.dense, has_bias=c.attention_bias)
        if c.key_heads == c.num_heads:
            return dense((3, c.num_heads, c.head_size), "qkv", kind=DenseParts)(x)
        q = dense((c.num_heads, c.head_size), "query")(x)
        return q, *dense((2, c.key_heads, c.head_size), "key_value", kind=DenseParts)(x)


class Block(BertModule):
    """One Transformer block: attention and an MLP, each added to its input.

    With `pre_norm` their inputs are normalised, else the sums.
    """

    encoding: PositionEncoding  # Acts in attention.
    at_input: PositionEncoding  # Acts at the input of this block, see `PositionEncoding.layers`.
    # False leaves out the normalisation that belongs to attention.
    has_attention_norm: bool = True
    has_convolution: bool = False  # See `conv_kernel` of the config.

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rng: jax.Array | None,
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
        """Return the hidden states after this block, and the output of its attention.

        Args:
          context: the positions, and the rng of encodings that draw while training.
          rng: of dropout; None is no dropout.
        """
        c = self.config
        attention_rng, first_rng, second_rng = split_rng(rng, 3)
        attend = SelfAttention(c, self.encoding, name="attention")
        x = embed(x, self.at_input, position_params, context)
        inputs = x
        attention_norm = _same
        if self.has_attention_norm:
            attention_norm = self.norm("attention_norm")
        mlp_norm = self.norm("mlp_norm")
        y = attention_norm(x) if c.pre_norm else x
        attended = attend(y, position_params, context, mask, attention_rng)
        if c.sublayer_norm:
            attended = self.norm("attended_norm")(attended)
        x = x + dropout(attended, c.dropout_rate, first_rng)
        if not c.pre_norm:
            x = attention_norm(x)
        y = mlp_norm(x) if c.pre_norm else x
        y = self.mlp(y)
        if c.sublayer_norm:
            y = self.norm("mlp_output_norm")(y)
        x = x + dropout(y, c.dropout_rate, second_rng)
        if not c.pre_norm:
            x = mlp_norm(x)
        if self.has_convolution:
            convolved = Convolution(c, name="conv")(inputs, context.document_ids)
            x = self.norm("conv_norm")(x + activate(convolved, c.conv_activation))
        return x, attended

    @nn.nowrap
    def mlp(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        c = self.config
        if c.gated_mlp:
            up = self.dense(
                (2, c.intermediate_size), "up", kind=DenseParts, has_bias=c.up_bias
            )
            gate, y = up(x)
            y = activate(gate, c.activation) * y
        else:
            y = self.dense(c.intermediate_size, "up", has_bias=c.up_bias)(x)
            y = activate(y, c.activation)
        return self.dense(c.hidden_size, "down", has_bias=c.down_bias)(y)


def _same(x: Array) -> Array:
    return x


def split_rng(rng: jax.Array | None, count: int) -> jax.Array | list[None]:
    """`jax.random.split`; without an rng as many times None."""
    if rng is None:
        return [None] * count
    return jax.random.split(rng, count)
