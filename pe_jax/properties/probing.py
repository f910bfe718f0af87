"""Identical word probing: what attention sees of positions when all words are the same.

Paper, section 3.1 and equation 5; also P·W_Q·W_Kᵀ·Pᵀ, positions without any words (figure 7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.shapes import Array, Float, Int


@partial(jax.jit, static_argnames=("attend", "length", "batch"))
def identical_words(
    attend: Callable[[Any, Int[Array, "B L"]], Float[Array, "B H L L"]],
    params: Any,
    words: Int[Array, " M"],
    *,
    length: int,
    batch: int = 8,
) -> Float[Array, "H L L"]:
    """The mean over words of the attention among `length` copies of one word: Ā of equation 5.

    Args:
      attend: `attend(params, tokens) -> [B, H, L, L]`, a model's logits or weights in one layer;
        any pure function. It is compiled: give the same function again and it is not compiled anew.
      words: token ids, each fed by itself; the paper's figures need a few hundred.
      batch: words in memory at once.
    """
    count = words.shape[0]
    blocks = -(-count // batch)
    padded = jnp.pad(words, (0, blocks * batch - count)).reshape(blocks, batch)
    real = (jnp.arange(blocks * batch) < count).astype(jnp.float32).reshape(blocks, batch)

    def add(total, block):
        some, weight = block
        tokens = jnp.broadcast_to(some[:, None], (batch, length))
        return total + jnp.einsum("b,bhxy->hxy", weight, attend(params, tokens)), None

    one = jax.eval_shape(attend, params, jax.ShapeDtypeStruct((batch, length), words.dtype))
    total, _ = jax.lax.scan(add, jnp.zeros(one.shape[1:], jnp.float32), (padded, real))
    return total / count


@jax.jit
def position_products(
    vectors: Float[Array, "L D"],
    query_kernel: Float[Array, "D H d"],
    key_kernel: Float[Array, "D H d"],
) -> Float[Array, "H L L"]:
    """P·W_Q·W_Kᵀ·Pᵀ of each head: the position-position term of absolute encodings (figure 7).

    Without words, biases and LayerNorm, as the paper has it. A sinusoid's P·Pᵀ is translation
    invariant, this need not be.
    """
    q = jnp.einsum("xd,dhe->hxe", vectors, query_kernel)
    k = jnp.einsum("xd,dhe->hxe", vectors, key_kernel)
    return jnp.einsum("hxe,hye->hxy", q, k)
