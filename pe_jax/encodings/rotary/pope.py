"""PoPE: the content gives the magnitude of each complex coordinate, the position its phase."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import angles, cos_and_sin, default_frequencies


@register_encoding
def pope(
    *,
    head_size: int,
    num_heads: int,
    base: float = 10_000.0,
    random_phases: bool = False,
) -> Part:
    """Polar coordinate position embedding (Gopalakrishnan et al. 2025, arXiv 2509.10534).

        logit_ij = s · Σ_c softplus(q_ic) softplus(k_jc) cos((j - i) w_c + δ_hc)

    with w_c = base^(-c/d) for c = 0 .. d-1, a frequency for each coordinate. Queries and keys grow
    to 2d, real parts first; s stays 1/sqrt(d).

    Params: `{"phase": [H, d]}`, δ in radians, zeros; with `random_phases`, uniform in [-2π, 0]. A
    phase moves the offset that a coordinate favours from 0 to -δ/w. The published code clamps δ to
    [-2π, 0], which from 0 stops the gradient of every phase whose first step goes up. Here δ is
    free. Clip weights of that code once.

    Raises:
      ValueError: for a base that is not positive.
    """
    frequencies = default_frequencies(2 * head_size, base)

    def init(rng: jax.Array) -> Params:
        shape = (num_heads, head_size)
        phase = jnp.zeros(shape)
        if random_phases:
            phase = jax.random.uniform(rng, shape, minval=-2 * np.pi, maxval=0.0)
        return {"phase": phase}

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        i, j = context.arrays()
        phase_q = angles(i, frequencies)[..., None, :]
        phase_k = angles(j, frequencies)[..., None, :]
        return _polar(q, phase_q), _polar(k, phase_k + params["phase"]), v

    return Part(
        init=init,
        map_qkv=map_qkv,
        metadata=Metadata(
            formula="softplus(q)·e^(iωx), softplus(k)·e^(i(ωx + δ))",
            source="Gopalakrishnan et al. 2025",
            parameters="H·d",
            invariant=True,
            monotone=False,
            frequencies=lambda _: jnp.array(frequencies),
        ),
    )


def _polar(
    x: Float[Array, "B L H d"], phase: Float[Array, "..."]
) -> Float[Array, "B L H e"]:
    """Return real and imaginary parts of softplus(x)·e^(i·phase), e = 2d; computed in float32."""
    magnitude = jax.nn.softplus(at_least_float32(x))
    cos, sin = cos_and_sin(phase)
    real = magnitude * cos
    imaginary = magnitude * sin
    return jnp.concatenate([real, imaginary], axis=-1).astype(x.dtype)
