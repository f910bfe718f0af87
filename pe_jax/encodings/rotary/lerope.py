"""LeRoPE: frequencies of a rotary encoding times factors that are learned."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings.part import Params, Part
from pe_jax.encodings.registry import register_wrapper
from pe_jax.encodings.rotary.rope import no_rotation, with_part_factors


@register_wrapper
def lerope(part: Part) -> Part:
    """A rotary encoding with learned factors of its frequencies (LeRoPE of Mistral Large 4: Mistral
    AI 2026, `mistral_large4` of transformers).

        ω_m -> ω_m e^(α_m)

    Mistral Large 4 has it around YaRN, in the slice of each head that rotates, with one α for all
    layers. `rope(learnable=True)` learns the frequencies themselves.

    Params: those of the encoding, and `{"log_factors": [F]}`, α of its F pairs, which starts at 0.

    Args:
      part: any encoding with `Metadata.pairs`, such as `rope`, its scaled kin and `rope_slice`.

    Raises:
      ValueError: for an encoding without pairs that rotate.
    """
    metadata = part.metadata
    if metadata is None or not metadata.pairs:
        raise no_rotation("lerope", part)
    unscaled = metadata.frequencies

    def init(rng: jax.Array) -> Params:
        return {**part.init(rng), "log_factors": jnp.zeros(len(metadata.pairs))}

    def factors(params: Params) -> jax.Array:
        return jnp.exp(params["log_factors"])

    def frequencies(params: Params) -> jax.Array:
        assert unscaled
        return unscaled(params) * factors(params)

    parameters = "r/2"
    if metadata.parameters != "0":
        parameters = f"{metadata.parameters} + r/2"
    frequency_params = (*part.traits.frequency_params, "log_factors")
    scaled = with_part_factors(part, lambda params: lambda w: factors(params))
    return scaled.replace(
        init=init,
        traits=part.traits.replace(frequency_params=frequency_params),
        metadata=metadata.replace(
            formula="ω_m → ω_m e^(α_m), α free",
            source="Mistral AI 2026 (Mistral Large 4), code",
            parameters=parameters,
            frequencies=frequencies if unscaled else None,
        ),
    )
