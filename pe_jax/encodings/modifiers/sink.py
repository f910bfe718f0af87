"""An attention sink: a logit without a key, so that a head may attend to nothing."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.encodings.part import Metadata, Part, no_parameters
from pe_jax.encodings.registry import register_encoding


@register_encoding
def sink(*, num_heads: int, learnable: bool = True) -> Part:
    """Adds a logit z_h to the softmax's denominator (OpenAI 2025, arXiv 2508.10925: gpt-oss).

        a_ij = exp(S_ij) / (exp(z_h) + Σ_l exp(S_il))

    Adds nothing to logits, has no position, and joins encodings that have: `rope_yarn(...)+sink`.
    gpt-oss has a z for each layer, `per_layer(sink)`; its `sinks` are these logits. With z = 0,
    `learnable=False`, it is softmax1 (Miller 2023, "Attention is off by one").

    Params: `{"logit": [H]}`, zeros; none if not learnable.
    """
    return Part(
        init=(lambda rng: {"logit": jnp.zeros(num_heads)})
        if learnable
        else no_parameters,
        sink=(lambda params, _: params["logit"])
        if learnable
        else (lambda params, _: 0.0),
        metadata=Metadata(
            formula=f"a_ij = exp(S_ij) / (exp({'z_h' if learnable else '0'}) + Σ_l exp(S_il))",
            source="OpenAI 2025 (gpt-oss)" if learnable else "Miller 2023",
            parameters="H" if learnable else "0",
            invariant=True,
            monotone=False,
            symmetric=True,
        ),
    )
