"""Limits to the keys of a query, which join other encodings: windows, chunks, causality."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    OffsetTerms,
    Params,
    Part,
)
from pe_jax.encodings.positions import AttentionWindow
from pe_jax.encodings.registry import register_encoding


@register_encoding
def window(*, max_distance: int) -> Part:
    """Query i attends to keys j with |j - i| <= max_distance; adds nothing.

    Inclusive on both sides, so max_distance=64 is ModernBERT's `local_attention=128`. Causal
    attention with a window of W keys, the query's own among them, is
    `causal+window(max_distance=W - 1)`. Joins other encodings; no parameters.

    Raises:
      ValueError: for a `max_distance` below 1.
    """
    check_at_least(1, max_distance=max_distance)
    metadata = Metadata(
        formula=f"a_ij = 0 where |j − i| > {max_distance}",
        source="Beltagy et al. 2020",
        symmetric=True,
    )
    return _limited(AttentionWindow(left=max_distance, right=max_distance), metadata)


@register_encoding
def chunks(*, size: int) -> Part:
    """Query i attends to keys j in its own chunk of positions: floor(j / size) = floor(i / size).
    Adds nothing.

    Llama 4's `attention_chunk_size`, in its layers with RoPE. Positions count from the start of a
    document, so that packed documents and padding on the left have chunks of their own. Joins other
    encodings; no parameters.

    Raises:
      ValueError: for a size below 1.
    """
    check_at_least(1, size=size)

    def chunk_bias(i: Array, j: Array, shared: tuple, mask: Array | None) -> Logits:
        chunk_q = i[:, None, :, None] // size
        chunk_k = j[:, None, None, :] // size
        return jnp.where(chunk_q == chunk_k, 0.0, -jnp.inf)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        return LogitTerms(function=chunk_bias, query_arrays=i, key_arrays=j)

    return Part(
        logits=logits,
        metadata=Metadata(
            formula="a_ij = 0 where ⌊j/size⌋ ≠ ⌊i/size⌋",
            source="Meta 2025 (Llama 4)",
            monotone=False,
        ),
    )


@register_encoding
def causal() -> Part:
    """Query i attends to keys j <= i, as a decoder does. Adds nothing.

    Compares positions, not places in memory: with a cache, give those of queries and of all keys;
    documents that share a row need a mask as ever. Joins other encodings: `rope+causal`. By itself
    it already tells positions apart, as every query sees another number of keys (Haviv et al. 2022,
    arXiv 2203.16634). No parameters.
    """
    metadata = Metadata(
        formula="a_ij = 0 where j > i", source="Vaswani et al. 2017", symmetric=False
    )
    return _limited(AttentionWindow(left=None, right=0), metadata)


def _limited(window: AttentionWindow, metadata: Metadata) -> Part:
    metadata = metadata.replace(invariant=True, monotone=False)
    return Part(offsets=OffsetTerms(window=window), metadata=metadata)
