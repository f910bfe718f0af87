"""Dynamic position bias: a small network of the offset."""

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
    2108.00154): `depth` hidden layers of `width` units, by default hidden_size / 4, and an output
    for each head. x is m itself with `log_distance=False`, their default; the logarithm is SwinV2's
    (Liu et al. 2021, arXiv 2111.09883), whose network for rows of tokens is
    `dynamic_position_bias(width=512, depth=1, activation='relu', bound=16)`: `bound` gives
    bound · sigmoid(MLP_h(x)).

    **The sign**: m = j - i here and i - j in x-transformers: negate the first kernel of weights of
    its. Positions that are no range take [B, Lq, Lk, width] numbers in both passes.

    Params: `{"hidden_0": {"kernel": [1, width], "bias": [width]}, "hidden_1": ..., "out":
    {"kernel": [width, H], "bias": [H]}}`, drawn as PyTorch's linear layers.
    """
    units = max(1, hidden_size // 4) if width is None else width
    check_at_least(1, width=units, depth=depth)
    check_positive(bound=bound)
    sizes = [1] + depth * [units] + [num_heads]
    names = [f"hidden_{n}" for n in range(depth)] + ["out"]
    shapes = dict(zip(names, itertools.pairwise(sizes), strict=True))

    def init(rng: jax.Array) -> Params:
        rngs = jax.random.split(rng, (len(shapes), 2))
        return {
            name: uniform_layer(rng, *shapes[name]) for name, rng in zip(shapes, rngs)
        }

    @jax.checkpoint
    def network(params: Params, x: Float[Array, "*B"]) -> Float[Array, "*B H"]:
        x = x[..., None]
        for name in names[:-1]:
            x = _ACTIVATIONS[activation](
                x @ params[name]["kernel"] + params[name]["bias"]
            )
        return x @ params["out"]["kernel"] + params["out"]["bias"]

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        x = jnp.asarray(x, params["out"]["bias"].dtype)
        out = network(
            params, jnp.sign(x) * jnp.log1p(jnp.abs(x)) if log_distance else x
        )
        return out if bound is None else bound * jax.nn.sigmoid(out)

    network_input = "sign(m)·log(1+|m|)" if log_distance else "m"
    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula=f"MLP_h({network_input})"
            if bound is None
            else f"{bound:g}·σ(MLP_h({network_input}))",
            source="Wang et al. 2021 (CrossFormer); Liu et al. 2021 (SwinV2)",
            parameters="2·w + (depth − 1)·(w + 1)·w + (w + 1)·H",
            invariant=True,
        ),
    )
