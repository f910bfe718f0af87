"""Dynamic position bias: a small network of the offset.

Wang et al. 2021 (CrossFormer), arXiv 2108.00154; Liu et al. 2021 (SwinV2), arXiv 2111.09883.
"""

from __future__ import annotations

import itertools
from typing import Literal

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.bias.fire import uniform_layer
from pe_jax.encodings.part import HookContext, Metadata, OffsetTerms, Params, Part
from pe_jax.encodings.registry import register_encoding

_ACTIVATIONS = {"silu": jax.nn.silu, "relu": jax.nn.relu}


@register_encoding
def dynamic_position_bias(
    *,
    hidden_size: int,
    num_heads: int,
    width: int | None = None,
    depth: int = 2,
    log_distance: bool = True,
    activation: Literal["silu", "relu"] = "silu",
    bound: float | None = None,
) -> Part:
    """bias_h(m) = MLP_h(x), x = sign(m) log(1 + |m|), added to the logits as it is.

    As x-transformers' `DynamicPositionBias` has it, after CrossFormer (Wang et al. 2021, arXiv
    2108.00154): `depth` hidden layers of `width` units, and an output for each head. The logarithm
    is SwinV2's (Liu et al. 2021, arXiv 2111.09883); it makes long offsets a small step out of the
    range of training. SwinV2's network, for rows of tokens instead of images, is
    `dynamic_position_bias(width=512, depth=1, activation='relu', bound=16)`.

    **The sign**: m = j - i here and i - j in x-transformers: negate the first kernel of its
    weights. Positions that are no range take [B, Lq, Lk, width] numbers while the bias is computed,
    in both passes.

    Params: `{"hidden_0": {"kernel": [1, width], "bias": [width]}, "hidden_1": ..., "out":
    {"kernel": [width, H], "bias": [H]}}`, drawn as PyTorch's linear layers.

    Args:
      width: of the hidden layers; default hidden_size / 4, as in both sources.
      depth: the number of hidden layers.
      log_distance: False takes x = m, the default of x-transformers.
      activation: of the hidden layers.
      bound: the bias is bound · sigmoid(MLP_h(x)); None does not bound it.

    Raises:
      ValueError: for a width or depth below 1, or a bound that is not positive.
    """
    if width is None:
        width = max(1, hidden_size // 4)
    check_at_least(1, width=width, depth=depth)
    check_positive(bound=bound)
    sizes = [1] + depth * [width] + [num_heads]
    names = [f"hidden_{n}" for n in range(depth)] + ["out"]
    shapes = dict(zip(names, itertools.pairwise(sizes), strict=True))

    def init(rng: jax.Array) -> Params:
        rngs = jax.random.split(rng, (len(shapes), 2))
        return {
            name: uniform_layer(layer_rngs, *shapes[name])
            for name, layer_rngs in zip(shapes, rngs)
        }

    # The backward pass computes the units again, instead of keeping them for all pairs.
    @jax.checkpoint
    def network(params: Params, x: Float[Array, "*B"]) -> Float[Array, "*B H"]:
        x = x[..., None]
        for name in names[:-1]:
            hidden = x @ params[name]["kernel"] + params[name]["bias"]
            x = _ACTIVATIONS[activation](hidden)
        return x @ params["out"]["kernel"] + params["out"]["bias"]

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        x = jnp.asarray(x, params["out"]["bias"].dtype)
        if log_distance:
            x = jnp.sign(x) * jnp.log1p(jnp.abs(x))
        out = network(params, x)
        if bound is None:
            return out
        return bound * jax.nn.sigmoid(out)

    formula = "MLP_h(sign(m)·log(1+|m|))" if log_distance else "MLP_h(m)"
    if bound is not None:
        formula = f"{bound:g}·σ({formula})"
    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula=formula,
            source="Wang et al. 2021 (CrossFormer); Liu et al. 2021 (SwinV2)",
            parameters="2·w + (depth − 1)·(w + 1)·w + (w + 1)·H",
            invariant=True,
        ),
    )
