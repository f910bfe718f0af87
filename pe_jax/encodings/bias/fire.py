"""FIRE: a small network of the distance, normalised by how far from the start the pair is."""

from __future__ import annotations

import functools
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

    The paper is causal and normalises by max(L, i). For keys to the right i becomes max(i, j), so
    the input of f stays within 0 .. 1. With `directed=True` the input has the sign of i - j, which
    leaves keys to the left as they are. Positions may be any real numbers from 0 on.

    Params: `{"c": [], "scale": [], "hidden": {"kernel": [width], "bias": [width]}, "out":
    {"kernel": [width, H], "bias": [H]}}`; L = |scale| · `threshold`, scale starting at 1 so that
    steps of a usual learning rate move it. f is drawn as the authors' (PyTorch's) linear layers.

    Hidden units are computed for a few queries at a time, and again in the backward pass.
    """
    check_at_least(1, width=width)
    check_positive(c=c, threshold=threshold)

    def init(rng: jax.Array) -> Params:
        rngs = jax.random.split(rng, 4)
        hidden, out = (
            uniform_layer(rngs[:2], width),
            uniform_layer(rngs[2:], width, num_heads),
        )
        return {
            "c": jnp.float32(c),
            "scale": jnp.float32(1),
            "hidden": hidden,
            "out": out,
        }

    def distance(
        params: Params, i: Real[Array, "*B Lq 1"], j: Real[Array, "*B 1 Lk"]
    ) -> jax.Array:
        def psi(x: Array) -> jax.Array:
            return jnp.log1p(jnp.abs(params["c"]) * x)

        # Divisors are of a query or a key, so that a pair takes one logarithm and no division.
        start = psi(jnp.abs(params["scale"]) * threshold)
        scale_q, scale_k = (
            1 / (jnp.maximum(start, psi(jnp.maximum(x, 0))) + _SMALL) for x in (i, j)
        )
        sign = jnp.sign(i - j) if directed else 1
        return sign * psi(jnp.abs(i - j)) * jnp.where(i < j, scale_k, scale_q)

    def network(
        params: Params, x: Float[Array, "*B Lq Lk"]
    ) -> Float[Array, "H *B Lq Lk"]:
        # Where the same units are on, the network is a line: slope · x + intercept. Its sums over
        # units, and those over pairs in the backward pass, are then products of matrices.
        hidden, out = params["hidden"], params["out"]
        pairs = x.reshape(1, -1)  # As one axis, see `map_query_blocks`.
        on = hidden["kernel"][:, None] * pairs + hidden["bias"][:, None] > 0
        weights = jnp.concatenate(
            [out["kernel"].T * hidden[name] for name in ("kernel", "bias")]
        )
        slope, intercept = jnp.split(weights @ on.astype(x.dtype), 2)
        y = slope * pairs + intercept + out["bias"][:, None]
        return y.reshape(len(out["bias"]), *x.shape)

    def bias(i: Array, j: Array, params: Params, mask: Array | None) -> Logits:
        x = distance(params, i[..., :, None], j[..., None, :])
        return jnp.moveaxis(map_query_blocks(network, params, x, width), 0, 1)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        positions_q, positions_k = context.rows()
        return LogitTerms(
            function=bias,
            query_arrays=positions_q,
            key_arrays=positions_k,
            shared=params,
        )

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
    """A kernel of this shape, its last axis the outputs, and a bias, as PyTorch draws them."""
    most = 1 / math.sqrt(math.prod(shape[:-1]))
    draw = functools.partial(jax.random.uniform, minval=-most, maxval=most)
    return {"kernel": draw(rngs[0], shape), "bias": draw(rngs[1], shape[-1:])}
