"""Positions from a convolution: each token is told its neighbours, as in wav2vec 2.

Baevski et al. 2020, arXiv 2006.11477, section 2.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.positions import as_array, check_length
from pe_jax.encodings.registry import register_encoding


@register_encoding
def convolutional(
    *, hidden_size: int, width: int = 128, groups: int | None = None
) -> Part:
    """A convolution over the row, added to the input (Baevski et al. 2020, arXiv 2006.11477,
    section 2; `wav2vec2` of transformers).

        x_t -> x_t + gelu(b + Σ_n K_n x_{t + n - floor(W/2)}),   n = 0 .. W-1

    K_n maps each of G groups of channels to itself. Outside of the row there are zeros, and so are
    tokens whose position differs from that of t by another number than their place in the row
    does: other documents whose positions start again, and padding unless its positions count on.
    Set the embeddings of such padding to zero, as transformers does.

    Params: `{"kernel": [W, G, D/G, D/G], "bias": [D]}`, the kernel drawn from a normal of 2 /
    sqrt(W D), as in transformers, the bias 0. `weight [D, D/G, W]` of a PyTorch convolution is
    `weight.reshape(G, D/G, D/G, W).transpose(3, 0, 2, 1)` here. transformers normalises its weight
    while training (`weight_norm`); here it is a plain parameter.

    Args:
      width: Number W of tokens that the convolution reads.
      groups: G, which divides D; default 16, or the largest number below that divides 16 and D.

    Raises:
      ValueError: for a width below 1, or groups that do not divide the hidden size; at the input,
        for a symbolic length (`jax.export`).
    """
    if groups is None:
        groups = math.gcd(16, hidden_size)
    if width < 1 or groups < 1 or hidden_size % groups:
        raise ValueError(
            f"width must be at least 1, and groups must divide hidden_size={hidden_size}; got "
            f"{width} and {groups}."
        )
    channels = hidden_size // groups

    def init(rng: jax.Array) -> Params:
        kernel = jax.random.normal(rng, (width, groups, channels, channels))
        stddev = 2 / math.sqrt(width * hidden_size)
        return {"kernel": stddev * kernel, "bias": jnp.zeros(hidden_size)}

    def embed(
        params: Params, x: Float[Array, "B L D"], context: HookContext
    ) -> Float[Array, "B L D"]:
        length = x.shape[1]
        check_length(length, "convolutional")
        x = at_least_float32(x)
        tokens = x.reshape(*x.shape[:2], groups, channels)  # [B, L, G, D/G]
        # Two tokens have the same start if their positions differ as their places do. [#B, L]
        starts = as_array(context.positions_q) - np.arange(length)
        starts = starts.reshape(-1, length)

        outside = (width // 2, (width - 1) // 2)
        padded = jnp.pad(tokens, [(0, 0), outside, (0, 0), (0, 0)])
        padded_starts = jnp.pad(starts, [(0, 0), outside])

        # The backward pass shifts again, instead of keeping W shifted copies of the input.
        @jax.checkpoint
        def add_tap(total: Array, tap: tuple[Array, Array]) -> tuple[Array, None]:
            n, kernel = tap
            neighbours = jax.lax.dynamic_slice_in_dim(padded, n, length, 1)
            their_starts = jax.lax.dynamic_slice_in_dim(padded_starts, n, length, 1)
            is_near = (their_starts == starts)[..., None, None]
            near = jnp.where(is_near, neighbours, 0)
            return total + jnp.einsum("blgc,gcd->blgd", near, kernel), None

        taps = (jnp.arange(width), params["kernel"])
        total, _ = jax.lax.scan(add_tap, jnp.zeros_like(tokens), taps)
        convolved = total.reshape(x.shape) + params["bias"]
        return x + jax.nn.gelu(convolved, approximate=False)

    return Part(
        init=init,
        embed=embed,
        # A token's input changes with those to its right.
        traits=Traits(cacheable=False),
        metadata=Metadata(
            formula="x_t + gelu(b + Σ_n K_n x_(t + n − W/2)), K free",
            source="Baevski et al. 2020 (wav2vec 2), 2",
            parameters="W·D²/G + D",
            monotone=False,  # Equal far from the ends of a row.
        ),
    )
