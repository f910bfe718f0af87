"""ALiBi: a penalty that grows linearly with the distance, at a slope of each head's own."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    OffsetTerms,
    Params,
    Part,
)
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.registry import register_encoding


@register_encoding
def alibi(
    *,
    num_heads: int,
    directed: bool = False,
    learnable: bool = False,
    exponent: float = 8.0,
) -> Part:
    """bias(j - i) = -m_h |j - i|, added to the logits as it is (Press et al. 2021, section 3).

    The paper is causal; these are its first author's forms for encoders (issue 5 of its
    repository, "Encoder-Attention"):

    - default: both directions alike, 1. "Symmetric".
    - `directed=True`: the first half of the heads attends to the left (and to itself), the second
      half to the right, both with the slopes of H/2 heads, H even: 2. "Nonsymmetric". Where a mask
      leaves a query no key on its head's side, the head gives zeros; without any mask, NaN.
    - `directed=True, learnable=True`: every head attends to both sides, with a slope for each:
      3. "Nonsymmetric with no mask". m = sigmoid(raw), raw drawn from a normal of mean -2 and
      standard deviation 1.
    - `learnable=True` (ours): one slope a head, m = sigmoid(raw), starting at the fixed slopes.

    `exponent`, in (0, 64], is that of the flattest slope, 2^-8; MPT's `alibi_bias_max`.

    Params: none, or `{"slopes": [H]}`, directed `[2, H]` (left, right), before the sigmoid.
    """
    if not 0 < exponent <= 64:
        raise ValueError(
            f"exponent must be above 0 and at most 64 for ALiBi, got {exponent}."
        )
    if directed and not learnable and num_heads % 2:
        raise ValueError(
            "alibi(directed=True) assigns half of the heads to each side, so num_heads must be "
            f"even; got {num_heads}. Or use learnable=True, which gives every head both sides."
        )
    halves = directed and not learnable
    fixed = (
        np.tile(slopes(num_heads // 2, exponent), 2)
        if halves
        else slopes(num_heads, exponent)
    )

    def init(rng: jax.Array) -> Params:
        if directed:
            return {"slopes": jax.random.normal(rng, (2, num_heads)) - 2.0}
        return {"slopes": jnp.asarray(np.log(fixed / (1 - fixed)))}

    def bias(
        params: Params, x: Real[Array, "*B"], _: HookContext
    ) -> Float[Array, "*B H"]:
        m = jax.nn.sigmoid(params["slopes"]) if learnable else jnp.asarray(fixed)
        left, right = m if m.ndim == 2 else (m, m)
        x = x[..., None]
        return jnp.where(x < 0, left * x, -right * x)

    def allowed(i: Array, j: Array, shared: tuple, mask: Array | None) -> Logits:
        x = offsets(i, j)[..., None, :, :]
        side = np.repeat([-1, 1], num_heads // 2)[:, None, None]
        return jnp.where(x * side >= 0, jnp.float32(0), -jnp.inf)

    def allowed_side(
        params: Params, q: Array, k: Array, context: HookContext
    ) -> LogitTerms:
        positions_q, positions_k = context.rows()
        return LogitTerms(
            function=allowed, query_arrays=positions_q, key_arrays=positions_k
        )

    part = Part(
        offsets=OffsetTerms(bias=bias),
        # Not a steep bias: the TPU kernel subtracts that of the farthest offset from all logits.
        logits=allowed_side if halves else None,
        metadata=Metadata(
            formula=f"−s_h |m|, {'s_h free' if learnable else f's_h = 2^(−{exponent:g}h/H)'}"
            + (", by side" if directed else ""),
            source="Press et al. 2021"
            + (
                "; github.com/ofirpress/attention_with_linear_biases/issues/5"
                if directed
                else ""
            ),
            parameters=("2H" if directed else "H") if learnable else "0",
            invariant=True,
            monotone=not halves,
            symmetric=(None if learnable else False) if directed else True,
        ),
    )
    return part.replace(init=init) if learnable else part


def slopes(num_heads: int, exponent: float = 8.0) -> Float[np.ndarray, " H"]:
    """m_h = 2^(-exponent h/H) for h = 1 .. H, where H is a power of two. Else those of the next
    smaller power of two, then every other one of the next larger, from its first on (the authors'
    code)."""
    check_at_least(1, num_heads=num_heads)

    def of_power(count: int) -> np.ndarray:
        return 2.0 ** (-exponent * np.arange(1, count + 1) / count)

    power = 2 ** int(math.log2(num_heads))
    return np.concatenate([of_power(power), of_power(2 * power)[::2]])[:num_heads]
