"""Sandwich: the product of two sinusoidal position vectors, weaker from head to head.

Chi et al. 2023, "Dissecting transformer length extrapolation via the lens of receptive field
analysis", arXiv 2212.10356.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import HookContext, Metadata, OffsetTerms, Params, Part
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import angles, default_frequencies


@register_encoding
def sandwich(*, num_heads: int, dim: int = 128, base: float = 10_000.0) -> Part:
    """bias_h(m) = (Σ_{i=1}^{dim/2} cos(m / base^(2i/dim)) - dim/2) / c_h, with c_h = 8h/H.

    Chi et al. 2023 (arXiv 2212.10356): what p_i·p_j of sinusoids of `dim` dimensions adds to the
    logits when positions meet positions only; c_h is the compression ratio of head h, counted from
    1. As in NeMo's `SandwichRelativePositionEmbedding`, dim/2 is subtracted, which makes the bias 0
    at m = 0 and no difference to the softmax; i starts from 1.

    The paper is causal; the cosine is a bias for both directions. It decreases up to an offset of
    13 (dim=128), and oscillates on its way down beyond. No parameters.

    Args:
      dim: the number of dimensions of the sinusoids, even.
      base: of their frequencies.

    Raises:
      ValueError: for a dim that is odd or not positive, or a base that is not positive.
    """
    # i counts from 1 here, and from 0 in `default_frequencies`.
    frequencies = default_frequencies(dim, base) * base ** (-2 / dim)
    frequencies = frequencies.astype(np.float32)
    ratios = (8 * np.arange(1, num_heads + 1) / num_heads).astype(np.float32)

    def bias(_: Params, x: Real[Array, "*B"], __: HookContext) -> Float[Array, "*B H"]:
        cosines = jnp.cos(angles(x, frequencies))  # [*B, dim/2]
        return (cosines - 1).sum(-1)[..., None] / ratios

    return Part(
        offsets=OffsetTerms(bias=bias),
        metadata=Metadata(
            formula=f"(Σ_i cos(ω_i m) − {dim // 2}) / c_h, c_h = 8h/H",
            source="Chi et al. 2023",
            invariant=True,
            monotone=False,
            symmetric=True,
        ),
    )
