"""RoPE for inputs longer than those trained on, without training: near keys keep their offsets, far
ones get offsets that the model has seen.

    logit_ij = q_i·R(ω f(i, j)) k_j / sqrt(d)        f(i, j) = j - i for near keys

A far key's offset is e(j) - l(i), for the earlier and the later of two tokens. To the right, where
the papers' attention is causal, offsets are mirrored (ours): f(i, j) = -f(j, i). Far logits are
computed next to the near ones, at twice the products or more, and chosen by the offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Bool, Float, Real
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    Params,
    Part,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rope import fixed_rotary, frequencies
from pe_jax.encodings.rotary.rotation import Layout, rotate_by
from pe_jax.encodings.sinusoid import angles

# `(positions, ω [F]) -> [..., F]`, angles.
Angles = Callable[[Real[Array, "*P"], Float[Array, " F"]], Float[Array, "*P F"]]


class Far(NamedTuple):
    """Pairs of tokens with offsets of their own.

    Attributes:
      is_far: `(later, earlier) -> bool` of two positions: whether the pair is one of these.
      later, earlier: the angles that the two tokens are rotated by.
    """

    is_far: Callable[[Array, Array], Bool[Array, "..."]]
    later: Angles
    earlier: Angles


@register_encoding
def self_extend(
    *,
    head_size: int,
    window: int = 1024,
    group: int = 8,
    base: float = 10_000.0,
    layout: Layout = "half",
) -> Part:
    """Self-Extend (Jin et al. 2024, arXiv 2401.01325, section 3): from `window` w on, offsets are
    between groups of G tokens.

        f(i, j) = floor(j/G) - floor(i/G) - (w - floor(w/G))   where i - j >= w, else j - i

    A model trained on L tokens sees no offset that it does not know up to (L - w)·G + w tokens. The
    authors' code (datamllab/LongLM) has `group_size_2` for w and `group_size_1` for G. It does not
    round w/G, so the two agree where G divides w.

    Args:
      window: Number w of tokens to the left with their own offsets, the query's among them.
      group: Number G of positions in a group.
      base, layout: as in `rope`.

    Raises:
      ValueError: for a window or group below 1.
    """
    check_at_least(1, window=window, group=group)
    shift = window - window // group

    def grouped(x: Array, w: Array) -> Array:
        return angles(x // group, w)

    def shifted(x: Array, w: Array) -> Array:
        return grouped(x, w) + w * shift

    far = Far(_at_least(window), later=shifted, earlier=grouped)
    metadata = Metadata(
        formula=f"f = ⌊j/{group}⌋ − ⌊i/{group}⌋ + {shift}·sign(m) where |m| ≥ {window}, else m",
        source="Jin et al. 2024 (Self-Extend), 3",
    )
    return _extended(head_size, base, layout, metadata, far)


@register_encoding
def rerope(
    *,
    head_size: int,
    window: int = 512,
    factor: float | None = None,
    base: float = 10_000.0,
    layout: Layout = "half",
) -> Part:
    """ReRoPE and Leaky ReRoPE (Su 2023, kexue.fm/archives/9708 and 9706): from `window` w on,
    offsets stay at w, or grow more slowly.

        f(i, j) = -w   or, leaky,   -(w + (i - j - w)/s)   where i - j >= w, else j - i

    The author's code (bojone/rerope) scales the queries of both forms as well, by
    max(1, log(i + 1) / log L) for a model trained on L tokens: that is
    `rerope(window=512)+log_n(original_length=4096)`.

    Args:
      window: Offset w from which offsets stop growing, or grow more slowly.
      factor: s of the leaky form, at least 1; None is ReRoPE, s without limit.
      base, layout: as in `rope`.

    Raises:
      ValueError: for a window or factor below 1.
    """
    check_at_least(1, window=window, factor=factor)
    slope = 0.0 if factor is None else 1 / factor
    shift = window * (1 - slope)

    def slow(x: Array, w: Array) -> Array:
        return angles(x, w * slope)

    def shifted(x: Array, w: Array) -> Array:
        return slow(x, w) + w * shift

    far = Far(_at_least(window), later=shifted, earlier=slow)
    far_offset = f"{window}"
    if factor:
        far_offset += f" + (|m| − {window})/{factor:g}"
    metadata = Metadata(
        formula=f"|f| = {far_offset} where |m| ≥ {window}, else |m|",
        source="Su 2023 (ReRoPE)",
        invariant=True,
    )
    return _extended(head_size, base, layout, metadata, far)


@register_encoding
def dual_chunk(
    *,
    head_size: int,
    chunk: int = 3072,
    original_length: int = 4096,
    base: float = 10_000.0,
    layout: Layout = "half",
) -> Part:
    """Dual chunk attention (An et al. 2024, arXiv 2402.17463, section 3): positions start again in
    each chunk of s tokens, and those of queries are far from earlier chunks.

        f(i, j) = j - i                               in one chunk
        f(i, j) = j mod s - min(s + i mod s, c - 1)   where j is in the chunk before
        f(i, j) = j mod s - (c - 1)                   further to the left

    The defaults are the paper's. Released code has other options, `chunk_size` and `local_window`
    (ChunkLlama) or `local_size` (Qwen2.5's `dual_chunk_attention_config`, in vLLM). It is

        chunk = chunk_size - local_window,   original_length = chunk_size + 1

    with 2·chunk >= original_length.

    ChunkLlama takes 3/4 of the length trained on for `chunk_size`, and 1/8 of it for
    `local_window`: for 4,096 tokens `dual_chunk(chunk=2560, original_length=3073)`.

    Args:
      chunk: s, from 1 to c - 1.
      original_length: c; offsets stay below it. In the paper the length of the inputs trained on.
      base, layout: as in `rope`.

    Raises:
      ValueError: for a chunk that is not from 1 to `original_length` - 1.
    """
    check_at_least(1, chunk=chunk)
    if not chunk < original_length:
        raise ValueError(
            "chunk must be less than original_length, the inputs trained on, got "
            f"{chunk} and {original_length}."
        )
    largest = original_length - 1

    def in_chunk(x: Array, w: Array) -> Array:
        return angles(x % chunk, w)

    def in_next_chunk(x: Array, w: Array) -> Array:
        return angles(jnp.minimum(chunk + x % chunk, largest), w)

    def at_largest(x: Array, w: Array) -> Array:
        return angles(0 * x + largest, w)

    def chunks_apart(later: Array, earlier: Array) -> Array:
        return later // chunk - earlier // chunk

    before = Far(
        lambda later, earlier: chunks_apart(later, earlier) == 1,
        later=in_next_chunk,
        earlier=in_chunk,
    )
    further = Far(
        lambda later, earlier: chunks_apart(later, earlier) > 1,
        later=at_largest,
        earlier=in_chunk,
    )
    metadata = Metadata(
        formula="f = m in a chunk, j mod s − min(s + i mod s, c − 1) to the one before, "
        "j mod s − (c − 1) farther left, −f(j, i) to the right, "
        f"s = {chunk}, c = {original_length}",
        source="An et al. 2024 (dual chunk attention), 3",
    )
    return _extended(head_size, base, layout, metadata, before, further)


def _at_least(window: int) -> Callable[[Array, Array], Bool[Array, "..."]]:
    """Return `Far.is_far` of tokens that are `window` or more apart."""
    return lambda later, earlier: later - earlier >= window


def _extended(
    head_size: int, base: float, layout: Layout, metadata: Metadata, *cases: Far
) -> Part:
    """Return RoPE with terms that take its logits from far pairs and add their own."""
    w = frequencies(head_size, base).astype("float32")
    near = fixed_rotary(w, layout, metadata)

    def rotate(x: Array, positions: Array, angles_of: Angles) -> Array:
        angle = angles_of(positions, w)[..., None, :]
        return rotate_by(at_least_float32(x), angle, layout)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        # Of each case for keys to the left, where the query is the later token, and to the right.
        far_q = [(rotate(q, i, far.later), rotate(q, i, far.earlier)) for far in cases]
        far_k = [(rotate(k, j, far.earlier), rotate(k, j, far.later)) for far in cases]
        return LogitTerms(
            function=term,
            query_arrays=(i, rotate(q, i, angles), far_q),
            key_arrays=(j, rotate(k, j, angles), far_k),
        )

    def term(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Logits:
        i, near_q, far_q = query_arrays
        j, near_k, far_k = key_arrays
        i = jnp.asarray(i)[:, None, :, None]
        j = jnp.asarray(j)[:, None, None, :]
        later = jnp.maximum(i, j)
        earlier = jnp.minimum(i, j)
        near_logits = _products(near_q, near_k)
        total: jax.Array | float = 0.0
        for far, (left_q, right_q), (left_k, right_k) in zip(cases, far_q, far_k):
            left = _products(left_q, left_k)
            right = _products(right_q, right_k)
            change = jnp.where(j < i, left, right) - near_logits
            total = jnp.where(far.is_far(later, earlier), change, total)
        return jnp.asarray(total)

    assert near.metadata
    return near.replace(logits=logits, metadata=near.metadata.replace(pairs=()))


def _products(q: Float[Array, "B Lq H d"], k: Float[Array, "B Lk H d"]) -> Logits:
    return jnp.einsum("bqhd,bkhd->bhqk", q, k)
