"""KERPLE: a penalty that grows with the logarithm, or a power, of the distance."""

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

    added to the logits as it is. The paper is causal; |m| makes it a bias for both directions.

    Params: `{"r1": [H], "r2": [H]}`, drawn and bounded as in the authors' code
    (`ParallelKerpleLog`, `ParallelKerplePower`): the factor of the logarithm and the power
    uniform in 0 .. 2 (their `bias_p`), the other one uniform in 0 .. 1 (their `bias_a`). Values
    below 0.01, and powers above 2, count as these bounds. The authors clamp the parameters before
    each step; here the gradient at the bound passes through, so that a head can come back.
    """
    most = _MOST_POWER if kernel == "power" else None

    def init(rng: jax.Array) -> Params:
        widths = {"r1": 2.0, "r2": 1.0} if kernel == "log" else {"r1": 1.0, "r2": 2.0}
        rngs = zip(widths, jax.random.split(rng))
        return {
            name: widths[name] * jax.random.uniform(rng, (num_heads,))
            for name, rng in rngs
        }

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        r1, r2 = _bounded(params["r1"]), _bounded(params["r2"], most)
        distance = jnp.abs(jnp.asarray(x, r1.dtype))[..., None]
        return -r1 * (jnp.log1p(r2 * distance) if kernel == "log" else distance**r2)

    return Part(
        init=init,
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula="−r_1h·log(1 + r_2h·|m|)"
            if kernel == "log"
            else "−r_1h·|m|^(r_2h)",
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
