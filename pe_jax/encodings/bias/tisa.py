"""TISA: a bias that is a sum of bells over the offset.

Wennberg and Henter 2021, "The case for translation-invariant self-attention in transformer-based
language models", arXiv 2106.01950.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import HookContext, Metadata, OffsetTerms, Params, Part
from pe_jax.encodings.registry import register_encoding


@register_encoding
def tisa(*, num_heads: int, kernels: int = 5) -> Part:
    """bias_h(m) = Σ_s a_hs · exp(-|b_hs| (m - c_hs)²), added to the logits as it is.

    Translation-invariant self-attention (Wennberg & Henter 2021, arXiv 2106.01950), made for
    encoders: bells of height a (either sign), sharpness |b| and centre c, in offsets. Far keys have
    a bias of 0: nothing penalises distance by itself.

    Params: `{"amplitude": [kernels, H], "sharpness": [kernels, H], "centre": [kernels, H]}`, drawn
    as in the authors' code: amplitude and sharpness from a normal of mean 0.1 and standard
    deviation 0.01, centres from one of standard deviation 5. c counts j - i as the paper does; the
    authors' code counts i - j - 1. `per_layer(tisa)` gives each layer its own.

    Raises:
      ValueError: for fewer than one kernel.
    """
    check_at_least(1, kernels=kernels)

    def init(rng: jax.Array) -> Params:
        shape = (kernels, num_heads)
        a, b, c = (jax.random.normal(rng, shape) for rng in jax.random.split(rng, 3))
        return {
            "amplitude": 0.1 + 0.01 * a,
            "sharpness": 0.1 + 0.01 * b,
            "centre": 5.0 * c,
        }

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        x = jnp.asarray(x, params["centre"].dtype)
        from_centre = x[..., None, None] - params["centre"]  # [*B, kernels, H]
        sharpness = jnp.abs(params["sharpness"])
        bells = params["amplitude"] * jnp.exp(-sharpness * from_centre**2)
        return bells.sum(-2)

    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula="Σ_s a_hs·exp(−|b_hs|·(m − c_hs)²)",
            source="Wennberg & Henter 2021",
            parameters="3·kernels·H",
            invariant=True,
        ),
    )
