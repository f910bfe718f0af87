"""An attention sink: a logit without a key, so that a head may attend to nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pe_jax.encodings.part import HookContext, Metadata, Params, Part, no_parameters
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
    logit = "0"
    source = "Miller 2023"
    parameters = "0"
    if learnable:
        logit = "z_h"
        source = "OpenAI 2025 (gpt-oss)"
        parameters = "H"

    def init(rng: jax.Array) -> Params:
        return {"logit": jnp.zeros(num_heads)}

    def sink_logit(params: Params, _: HookContext) -> ArrayLike:
        return params["logit"] if learnable else 0.0

    return Part(
        init=init if learnable else no_parameters,
        sink=sink_logit,
        metadata=Metadata(
            formula=f"a_ij = exp(S_ij) / (exp({logit}) + Σ_l exp(S_il))",
            source=source,
            parameters=parameters,
            invariant=True,
            monotone=False,
            symmetric=True,
        ),
    )
