"""How far a query attends, as encodings that are joined with others: windows and causality."""

from __future__ import annotations

from pe_jax.encodings.base import Card, Offsets, Part
from pe_jax.encodings.naming import registered
from pe_jax.encodings.positions import Reach


@registered
def window(*, reach: int) -> Part:
    """Query i attends to keys j with |j - i| <= reach: 2·reach + 1 keys. Adds nothing.

    Inclusive on both sides, so reach=64 is ModernBERT's `local_attention=128`. Causal attention
    with a window of W keys, the query's own among them, is `causal+window(reach=W - 1)`. Joins
    other encodings: `rope+window(reach=64)`; no parameters.

    Raises:
      ValueError: for a reach below 1.
    """
    if reach < 1:
        raise ValueError(
            f"A window's reach is how many positions away a key may be, at least 1; got {reach}. "
            "For no window leave it out."
        )
    card = Card(
        "a_ij = 0 where |j − i| > reach",
        "Beltagy et al. 2020",
        invariant=True,
        monotone=False,
        symmetric=True,
    )
    return Part(offsets=Offsets(reach=Reach(reach, reach)), card=card)


@registered
def causal() -> Part:
    """Query i attends to keys j <= i, as a decoder does. Adds nothing.

    Compares positions, not places in memory: with a cache, give those of queries and of all keys;
    documents that share a row need a mask as ever. Joins other encodings: `rope+causal`,
    `alibi+causal+window(reach=63)`; no parameters. By itself it already tells positions apart, as
    every query sees another number of keys (Haviv et al. 2022, arXiv 2203.16634).
    """
    card = Card(
        "a_ij = 0 where j > i",
        "Vaswani et al. 2017",
        invariant=True,
        monotone=False,
        symmetric=False,
    )
    return Part(offsets=Offsets(reach=Reach(None, 0)), card=card)
