"""FIRE: a small network of the distance, normalised by how far from the start the pair is.

Li et al. 2023, "Functional interpolation for relative positions improves long context
transformers", arXiv 2310.04418.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.pairwise import map_query_blocks
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    Params,
    Part,
)
from pe_jax.encodings.registry import register_encoding

_SMALL = 1e-6  # The authors': keeps the quotient finite at c = 0.


@register_encoding
def fire(
    *,
    num_heads: int,
    width: int = 32,
    c: float = 0.1,
    threshold: float = 512.0,
    directed: bool = False,
) -> Part:
    """logit_ij += f_h(psi(|i - j|) / psi(max(L, i, j))), psi(x) = log(|c| x + 1).

    Li et al. 2023; defaults, and what is learnable, as in the paper's listing. f is a network of
    one hidden layer of `width` ReLUs with an output for each head; c and L are learnable.

    The paper is causal and normalises by max(L, i). For keys to the right i becomes max(i, j):
    |i - j| never exceeds it, so the input of f stays within 0 .. 1 at any length. For keys to the
    left the formula is the paper's. It is no function of j - i, so not invariant under shifts,
    except among positions below L. Positions may be any real numbers from 0 on.

    Params: `{"c": [], "scale": [], "hidden": {"kernel": [width], "bias": [width]}, "out":
    {"kernel": [width, H], "bias": [H]}}`; L = |scale| · `threshold`, scale starting at 1 so that
    steps of a usual learning rate move it. f is drawn as the authors' (PyTorch's) linear layers.

    Hidden units are computed for a few queries at a time, and again in the backward pass.

    Args:
      width: of the hidden layer.
      c, threshold: the initial c and L.
      directed: the input of f has the sign of i - j, so that f distinguishes left from right; keys
        to the left stay as they are.

    Raises:
      ValueError: for a width below 1, or c or a threshold that is not positive.
    """
    check_at_least(1, width=width)
    check_positive(c=c, threshold=threshold)

    def init(rng: jax.Array) -> Params:
        rngs = jax.random.split(rng, 4)
        return {
            "c": jnp.float32(c),
            "scale": jnp.float32(1),
            "hidden": uniform_layer(rngs[:2], width),
            "out": uniform_layer(rngs[2:], width, num_heads),
        }

    def distance(
        params: Params, i: Real[Array, "*B Lq 1"], j: Real[Array, "*B 1 Lk"]
    ) -> jax.Array:
        def psi(x: Array) -> jax.Array:
            return jnp.log1p(jnp.abs(params["c"]) * x)

        start = psi(jnp.abs(params["scale"]) * threshold)

        # Divisors are of a query or a key, so that a pair takes one logarithm and no division.
        def inverse_scale(x: Array) -> jax.Array:
            from_start = psi(jnp.maximum(x, 0))
            return 1 / (jnp.maximum(start, from_start) + _SMALL)

        scale_q = inverse_scale(i)
        scale_k = inverse_scale(j)
        sign = jnp.sign(i - j) if directed else 1
        scale = jnp.where(i < j, scale_k, scale_q)
        return sign * psi(jnp.abs(i - j)) * scale

    def network(
        params: Params, x: Float[Array, "*B Lq Lk"]
    ) -> Float[Array, "H *B Lq Lk"]:
        # Where the same units are on, the network is a line: slope · x + intercept. Its sums over
        # units, and those over pairs in the backward pass, are then products of matrices.
        hidden = params["hidden"]
        out = params["out"]
        pairs = x.reshape(1, -1)  # As one axis, see `map_query_blocks`.
        units = hidden["kernel"][:, None] * pairs + hidden["bias"][:, None]
        is_on = (units > 0).astype(x.dtype)  # [width, pairs]
        slopes = out["kernel"].T * hidden["kernel"]  # [H, width]
        intercepts = out["kernel"].T * hidden["bias"]
        weights = jnp.concatenate([slopes, intercepts])  # [2H, width]
        slope, intercept = jnp.split(weights @ is_on, 2)
        y = slope * pairs + intercept + out["bias"][:, None]  # [H, pairs]
        return y.reshape(num_heads, *x.shape)

    def bias(i: Array, j: Array, params: Params, mask: Array | None) -> Logits:
        x = distance(params, i[..., :, None], j[..., None, :])
        heads_first = map_query_blocks(network, params, x, width)
        return jnp.moveaxis(heads_first, 0, 1)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        return LogitTerms(function=bias, query_arrays=i, key_arrays=j, shared=params)

    return Part(
        init=init,
        logits=logits,
        metadata=Metadata(
            formula="f_h(ψ(|i−j|) / ψ(max(L, i, j))), ψ(x) = log(c x + 1)",
            source="Li et al. 2023",
            parameters="width·(H+2)+H+2",
            symmetric=None if directed else True,
        ),
    )


def uniform_layer(rngs: jax.Array, *shape: int) -> Params:
    """A kernel of this shape, its last axis the outputs, and a bias, as PyTorch's linear layers
    draw them."""
    most = 1 / math.sqrt(math.prod(shape[:-1]))
    kernel = jax.random.uniform(rngs[0], shape, minval=-most, maxval=most)
    bias = jax.random.uniform(rngs[1], shape[-1:], minval=-most, maxval=most)
    return {"kernel": kernel, "bias": bias}
