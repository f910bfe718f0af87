"""RoPE for inputs longer than those trained on, without training: near keys keep their offsets, far
ones get offsets that the model has seen.

    logit_ij = q_i·R(ω f(i, j)) k_j / sqrt(d)        f(i, j) = j - i for near keys

A far key's offset is e(j) - l(i), for the earlier and the later of two tokens, and to the right
f(i, j) = -f(j, i) (ours; the papers are causal). Far logits are computed next to the near ones, at
twice the products or more, and chosen by the offset.
"""

from __future__ import annotations

from collections.abc import Callable

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
from pe_jax.encodings.rotary.rope import frequencies, rotary
from pe_jax.encodings.rotary.rotation import Layout, rotate_by
from pe_jax.encodings.sinusoid import angles

# `(positions, ω [F]) -> [..., F]`, angles.
Angles = Callable[[Real[Array, "*P"], Float[Array, " F"]], Float[Array, "*P F"]]
# Pairs with offsets of their own: `(later, earlier) -> bool` of two positions, and the angles that
# the later and the earlier token are rotated by.
Far = tuple[Callable[[Array, Array], Bool[Array, "..."]], Angles, Angles]


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
      window: w, tokens to the left with their own offsets, the query's among them.
      group: G.
      base, layout: as in `rope`.
    """
    check_at_least(1, window=window, group=group)
    grouped: Angles = lambda x, w: angles(x // group, w)
    shift = window - window // group
    later: Angles = lambda x, w: grouped(x, w) + w * shift
    far: Far = (lambda i, j: i - j >= window), later, grouped
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
      window: w.
      factor: s of the leaky form, at least 1; None is ReRoPE, s without limit.
      base, layout: as in `rope`.
    """
    check_at_least(1, window=window, factor=factor)
    slope = 0.0 if factor is None else 1 / factor
    slow: Angles = lambda x, w: angles(x, w * slope)
    shift = window * (1 - slope)
    later: Angles = lambda x, w: slow(x, w) + w * shift
    far: Far = (lambda i, j: i - j >= window), later, slow
    reached = f"{window} + (|m| − {window})/{factor:g}" if factor else f"{window}"
    metadata = Metadata(
        formula=f"|f| = {reached} where |m| ≥ {window}, else |m|",
        source="Su 2023 (ReRoPE)",
    )
    return _extended(head_size, base, layout, metadata.replace(invariant=True), far)


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
    """
    check_at_least(1, chunk=chunk)
    if not chunk < original_length:
        raise ValueError(
            "chunk must be less than original_length, the inputs trained on, got "
            f"{chunk} and {original_length}."
        )
    in_chunk: Angles = lambda x, w: angles(x % chunk, w)
    next_chunk: Angles = lambda x, w: angles(
        jnp.minimum(chunk + x % chunk, original_length - 1), w
    )
    last: Angles = lambda x, w: angles(0 * x + (original_length - 1), w)
    metadata = Metadata(
        formula="f = m in a chunk, j mod s − min(s + i mod s, c − 1) to the one before, "
        "j mod s − (c − 1) farther left, −f(j, i) to the right, "
        f"s = {chunk}, c = {original_length}",
        source="An et al. 2024 (dual chunk attention), 3",
    )
    before: Far = (lambda i, j: i // chunk - j // chunk == 1), next_chunk, in_chunk
    further: Far = (lambda i, j: i // chunk - j // chunk > 1), last, in_chunk
    return _extended(head_size, base, layout, metadata, before, further)


def _extended(
    head_size: int, base: float, layout: Layout, metadata: Metadata, *cases: Far
) -> Part:
    """RoPE, and terms that take its logits from far pairs and add their own."""
    w = frequencies(head_size, base).astype("float32")
    near = rotary(lambda params, context: jnp.array(w), w.size, layout, metadata)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()

        def rotated(x: Array, positions: Array, angles_of: Angles) -> Array:
            return rotate_by(
                at_least_float32(x), angles_of(positions, w)[..., None, :], layout
            )

        # To the left the query is the later of the two, to the right the earlier.
        q_rotated = [
            rotated(q, i, at) for _, later, earlier in cases for at in (later, earlier)
        ]
        k_rotated = [
            rotated(k, j, at) for _, later, earlier in cases for at in (earlier, later)
        ]
        q_near, k_near = rotated(q, i, angles), rotated(k, j, angles)
        return LogitTerms(
            function=term,
            query_arrays=(i, q_near, *q_rotated),
            key_arrays=(j, k_near, *k_rotated),
        )

    def term(
        query_arrays: tuple, key_arrays: tuple, shared: tuple, mask: Array | None
    ) -> Logits:
        (i, *queries), (j, *keys) = query_arrays, key_arrays
        i, j = jnp.asarray(i)[:, None, :, None], jnp.asarray(j)[:, None, None, :]
        products = [jnp.einsum("bqhd,bkhd->bhqk", *pair) for pair in zip(queries, keys)]
        total: jax.Array | float = 0.0
        for n, (is_far, *_) in enumerate(cases):
            left, right = products[1 + 2 * n : 3 + 2 * n]
            chosen = is_far(jnp.maximum(i, j), jnp.minimum(i, j))
            total = jnp.where(
                chosen, jnp.where(j < i, left, right) - products[0], total
            )
        return jnp.asarray(total)

    return near.replace(
        logits=logits, metadata=near.metadata and near.metadata.replace(pairs=())
    )
