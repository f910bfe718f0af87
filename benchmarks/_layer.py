"""Attention of one layer with its gradients: what several benchmarks time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
from jax.stages import Compiled, Wrapped

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.common.shapes import Array


def gradients_of_layer(
    name: str,
    implementation: str,
    qkv_shape: tuple[int, ...],
    dtype: str,
    *,
    per_row: bool = False,
    document_ids: Array | None = None,
) -> tuple[Compiled, tuple]:
    """Return the compiled gradients of attention in an implementation, and arguments for them.

    Args:
      name: of the encoding.
      qkv_shape: [B, L, H, d] of queries, keys and values.
      per_row: whether positions are arrays, as of packed sequences.
      document_ids: of packed rows, see `Context`; the last of the arguments.
    """
    rows, length, heads, size = qkv_shape
    encoding = encodings.from_name(
        name,
        hidden_size=heads * size,
        head_size=size,
        num_heads=heads,
        max_length=length,
    )
    params = encoding.init(jax.random.key(0))
    qkv = jax.random.normal(jax.random.key(1), (3, *qkv_shape), dtype)
    positions = jnp.tile(jnp.arange(length), (rows, 1)) if per_row else None
    arguments = qkv, params, positions, document_ids
    return layer_gradients(encoding, implementation).lower(
        *arguments
    ).compile(), arguments


def layer_gradients(
    encoding: encodings.PositionEncoding, implementation: str
) -> Wrapped:
    """Return the jitted gradients of attention, `(qkv, params, positions, document_ids, x, kernels)
    -> (dqkv, dparams)`.

    Some encodings read the last two: `x`, the hidden states [B, L, D], and `kernels`, those of the
    layer's queries and keys, each [D, H, d].
    """

    def projection(kernel):
        return lambda table: jnp.einsum("nD,Dhd->nhd", table, kernel)

    def loss(qkv, params, positions, document_ids, x=None, kernels=None):
        projections = None if kernels is None else tuple(map(projection, kernels))
        context = encodings.Context(
            positions_q=positions,
            document_ids=document_ids,
            x_q=x,
            x_k=x,
            projections=projections,
        )
        q, k, v = qkv
        out = attention(
            q,
            k,
            v,
            encoding.in_attention,
            params,
            context,
            implementation=implementation,
        )
        return out.astype(jnp.float32).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1)))
