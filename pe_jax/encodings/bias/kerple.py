"""KERPLE: a penalty that grows with the logarithm, or a power, of the distance.

Chi et al. 2022, "KERPLE: Kernelized relative positional embedding for length extrapolation", arXiv
2205.09921.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import HookContext, Metadata, OffsetTerms, Params, Part
from pe_jax.encodings.registry import register_encoding

_LEAST = 0.01  # The authors' bound of both parameters from below.
_MOST_POWER = 2.0  # Beyond it, -|m|^r2 is no conditionally positive definite kernel.


@register_encoding
def kerple(*, num_heads: int, kernel: Literal["log", "power"] = "log") -> Part:
    """A conditionally positive definite kernel of the offset (Chi et al. 2022, arXiv 2205.09921).

        bias_h(m) = -r1 · log(1 + r2 |m|)    kernel="log"    (the paper's better one)
        bias_h(m) = -r1 · |m|^r2             kernel="power", 0 < r2 <= 2

    added to the logits as it is. The paper is causal; |m| makes it a bias for both directions. With
    r2 = 1 the power kernel is ALiBi with learnable slopes.

    Params: `{"r1": [H], "r2": [H]}`, drawn and bounded as in the authors' code
    (`ParallelKerpleLog`, `ParallelKerplePower`): the factor of the logarithm and the power
    uniform in 0 .. 2 (their `bias_p`), the other one uniform in 0 .. 1 (their `bias_a`). Values
    below 0.01, and powers above 2, count as these bounds. The authors clamp the parameters before
    each step; here the gradient at the bound passes through, so that a head can come back.
    """
    is_log = kernel == "log"

    def init(rng: jax.Array) -> Params:
        for_r1, for_r2 = jax.random.split(rng)
        r1 = jax.random.uniform(for_r1, (num_heads,))
        r2 = jax.random.uniform(for_r2, (num_heads,))
        if is_log:
            return {"r1": 2.0 * r1, "r2": r2}
        return {"r1": r1, "r2": 2.0 * r2}

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        r1 = _bounded(params["r1"])
        r2 = _bounded(params["r2"], None if is_log else _MOST_POWER)
        distance = jnp.abs(jnp.asarray(x, r1.dtype))[..., None]
        if is_log:
            return -r1 * jnp.log1p(r2 * distance)
        return -r1 * distance**r2

    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula="−r_1h·log(1 + r_2h·|m|)" if is_log else "−r_1h·|m|^(r_2h)",
            source="Chi et al. 2022",
            parameters="2·H",
            invariant=True,
            monotone=True,
            symmetric=True,
        ),
    )


def _bounded(r: Float[Array, " H"], most: float | None = None) -> Float[Array, " H"]:
    """`r` within its bounds, with the gradient of `r` itself."""
    fixed = jax.lax.stop_gradient(r)
    return jnp.clip(fixed, _LEAST, most) + (r - fixed)
