"""DAPE: a small network adapts the biases of other encodings to what queries and keys contain."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.encodings.naming import registered
from pe_jax.encodings.part import Card, Context, Params, Part
from pe_jax.shapes import Array, Float


@registered
def dape(*, num_heads: int, width: int = 32) -> Part:
    """Data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722).

        logits_ij = C_ij + B_ij + MLP([C_ij, B_ij])

    C_ij are the products of a query and a key in all heads, divided by sqrt(d), and B_ij what the
    encodings that it is joined with add to them: the network sees the 2 H numbers of a pair. The
    paper's biases are ALiBi, KERPLE and FIRE: `own(kerple+dape)`, each layer with its own. Nothing
    to join leaves B = 0. The network has one hidden layer with LeakyReLU, of slope 0.01 below 0, as
    in the authors' code. Its second version, convolutions over the keys, is not here.

    Only the plain form of attention can map finished logits.

    Params: `{"hidden": {"kernel": [2 H, width], "bias": [width]}, "out": {"kernel": [width, H],
    "bias": [H]}}`, uniform within one over the root of the inputs, as in the authors' code.

    Raises:
      ValueError: for a width below 1.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}.")
    shapes = {"hidden": (2 * num_heads, width), "out": (width, num_heads)}

    def init(rng: jax.Array) -> Params:
        params = {}
        rngs = jax.random.split(rng, len(shapes))
        for layer_rng, (name, shape) in zip(rngs, shapes.items(), strict=True):
            for_kernel, for_bias = jax.random.split(layer_rng)
            most = 1 / math.sqrt(shape[0])
            params[name] = {
                "kernel": jax.random.uniform(for_kernel, shape, minval=-most, maxval=most),
                "bias": jax.random.uniform(for_bias, shape[1:], minval=-most, maxval=most),
            }
        return params

    def logit_map(
        params: Params, content: Array, terms: Array, context: Context
    ) -> Float[Array, "B H Lq Lk"]:
        pairs = jnp.moveaxis(jnp.concatenate([content, terms], axis=1), 1, -1)
        hidden = pairs @ params["hidden"]["kernel"] + params["hidden"]["bias"]
        out = jax.nn.leaky_relu(hidden) @ params["out"]["kernel"] + params["out"]["bias"]
        return content + terms + jnp.moveaxis(out, -1, 1)

    return Part(
        init=init,
        logit_map=logit_map,
        card=Card(
            "C + B + MLP([C, B]) over heads, C = q·k/√d, B of other encodings",
            "Zheng et al. 2024 (DAPE)",
            parameters="(2H + 1)·width + (width + 1)·H",
            invariant=True,
        ),
    )
