"""Attention masks: boolean, True where a query may look at a key."""

from __future__ import annotations

from pe_jax.shapes import Array, Bool, Int


def padding_mask(valid: Bool[Array, "B Lk"]) -> Bool[Array, "B 1 1 Lk"]:
    """Every query looks at the valid keys only."""
    return valid[:, None, None, :]


def segment_mask(
    segments_q: Int[Array, "B Lq"], segments_k: Int[Array, "B Lk"]
) -> Bool[Array, "B 1 Lq Lk"]:
    """For packed sequences: queries look at keys of their own segment.

    Segments are numbered from 1; 0 is padding, which looks at nothing and is looked at by nothing.
    """
    q, k = segments_q[:, None, :, None], segments_k[:, None, None, :]
    return (q == k) & (q > 0)
