"""ALiBi: a penalty that grows linearly with the distance, at a slope of each head's own.

Press et al. 2021, "Train short, test long: attention with linear biases enables input length
extrapolation", arXiv 2108.12409.
"""

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
    no_parameters,
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

    - default: both directions alike, 1. "Symmetric". Alone it does not distinguish left from right.
    - `directed=True`: the first half of the heads attends to the left (and to itself), the second
      half to the right, both with the slopes of H/2 heads, H even: 2. "Nonsymmetric". Where a mask
      leaves a query no key on its head's side, the head gives zeros; without any mask, NaN.
    - `directed=True, learnable=True`: every head attends to both sides, with a slope for each:
      3. "Nonsymmetric with no mask". m = sigmoid(raw), raw drawn from a normal of mean -2 and
      standard deviation 1.
    - `learnable=True` (ours): one slope a head, m = sigmoid(raw), starting at the fixed slopes.

    Params: none, or `{"slopes": [H]}`, directed `[2, H]` (left, right), before the sigmoid.

    Args:
      directed, learnable: which form, see above.
      exponent: that of the flattest slope, 2^-8, in (0, 64]; MPT's `alibi_bias_max`.

    Raises:
      ValueError: for fewer than one head, an exponent outside (0, 64], or an odd number of heads
        with `directed` alone.
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
    is_split = directed and not learnable  # Half of the heads attend to each side.
    if is_split:
        fixed = np.tile(slopes(num_heads // 2, exponent), 2)
    else:
        fixed = slopes(num_heads, exponent)

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

    def side_bias(i: Array, j: Array, shared: tuple, mask: Array | None) -> Logits:
        x = offsets(i, j)[..., None, :, :]  # [#B, 1, Lq, Lk]
        side = np.repeat([-1, 1], num_heads // 2)[:, None, None]  # [H, 1, 1]
        return jnp.where(x * side >= 0, jnp.float32(0), -jnp.inf)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        return LogitTerms(function=side_bias, query_arrays=i, key_arrays=j)

    formula = f"−s_h |m|, s_h = 2^(−{exponent:g}h/H)"
    source = "Press et al. 2021"
    parameters = "0"
    symmetric: bool | None = True
    if learnable:
        formula = "−s_h |m|, s_h free"
        parameters = "2H" if directed else "H"
    if directed:
        formula += ", by side"
        source += "; github.com/ofirpress/attention_with_linear_biases/issues/5"
        symmetric = None if learnable else False
    return Part(
        init=init if learnable else no_parameters,
        offsets=OffsetTerms(bias=bias),
        # Not a steep bias: the TPU kernel subtracts that of the farthest offset from all logits.
        logits=logits if is_split else None,
        metadata=Metadata(
            formula=formula,
            source=source,
            parameters=parameters,
            invariant=True,
            monotone=not is_split,
            symmetric=symmetric,
        ),
    )


def slopes(num_heads: int, exponent: float = 8.0) -> Float[np.ndarray, " H"]:
    """m_h = 2^(-exponent h/H) for h = 1 .. H, where H is a power of two. Else those of the next
    smaller power of two, then every other one of the next larger, from its first on (the authors'
    code).

    Raises:
      ValueError: for fewer than one head.
    """
    check_at_least(1, num_heads=num_heads)

    def geometric(count: int) -> np.ndarray:
        return 2.0 ** (-exponent * np.arange(1, count + 1) / count)

    power = 2 ** int(math.log2(num_heads))
    between = geometric(2 * power)[::2]
    return np.concatenate([geometric(power), between])[:num_heads]
