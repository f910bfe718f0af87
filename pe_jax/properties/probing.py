"""Identical word probing: attention as a function of positions alone, all tokens being the same.

Paper, section 3.1 and equation 5; also P·W_Q·W_Kᵀ·Pᵀ, positions without any token (figure 7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pe_jax.shapes import Array, Float, Int


@partial(jax.jit, static_argnames=("attend", "length", "batch"))
def identical_words(
    attend: Callable[[PyTree, Int[Array, "B L"]], Float[Array, "B H L L"]],
    params: PyTree,
    words: Int[Array, " M"],
    *,
    length: int,
    batch: int = 8,
) -> Float[Array, "H L L"]:
    """The mean over words of the attention among `length` copies of a word: Ā of equation 5.

    Args:
      attend: `attend(params, tokens) -> [B, H, L, L]`, a model's logits or weights in one layer;
        any pure function. It is a static argument of jit: passing the same object again avoids
        recompilation.
      words: token ids, one input for each; the paper's figures need a few hundred.
      batch: number of words per step of the scan.
    """
    count = words.shape[0]
    blocks = -(-count // batch)
    padded = jnp.pad(words, (0, blocks * batch - count)).reshape(blocks, batch)
    weights = (jnp.arange(blocks * batch) < count).astype(jnp.float32).reshape(blocks, batch)

    def add(total, block):
        ids, weight = block
        tokens = jnp.broadcast_to(ids[:, None], (batch, length))
        return total + jnp.einsum("b,bhxy->hxy", weight, attend(params, tokens)), None

    one = jax.eval_shape(attend, params, jax.ShapeDtypeStruct((batch, length), words.dtype))
    total, _ = jax.lax.scan(add, jnp.zeros(one.shape[1:], jnp.float32), (padded, weights))
    return total / count


@jax.jit
def position_products(
    vectors: Float[Array, "L D"],
    query_kernel: Float[Array, "D H d"],
    key_kernel: Float[Array, "D H d"],
) -> Float[Array, "H L L"]:
    """P·W_Q·W_Kᵀ·Pᵀ of each head: the position-position term of absolute encodings (figure 7).

    Without token embeddings, biases and LayerNorm, as in the paper. A sinusoid's P·Pᵀ is
    translation invariant; this need not be.
    """
    q = jnp.einsum("xd,dhe->hxe", vectors, query_kernel)
    k = jnp.einsum("xd,dhe->hxe", vectors, key_kernel)
    return jnp.einsum("hxe,hye->hxy", q, k)
