"""Decoupled rotary encodings: a slice of each head has positions, the rest has none."""

from __future__ import annotations

import jax.numpy as jnp

from pe_jax.common.shapes import Array
from pe_jax.encodings.content.row_order import hidden_states
from pe_jax.encodings.part import (
    QKV,
    HookContext,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rope import fixed_rotary
from pe_jax.encodings.rotary.rotation import Layout, rotate_by
from pe_jax.encodings.sinusoid import angles, default_frequencies


@register_encoding
def rope_slice(
    *,
    head_size: int,
    size: int | None = None,
    base: float = 10_000.0,
    layout: Layout = "half",
) -> Part:
    """RoPE in the last r dimensions of each head, ω_m = base^(-2m/r); the others have no position.

    For models of multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.3)
    whose heads are built outside: d = `qk_nope_head_dim` + `qk_rope_head_dim`, in that order, the
    rotary key the same in all heads. Logits are divided by sqrt(d), as there. `decoupled_rope`
    builds the slice itself; `rope(fraction=...)` rotates the first dimensions.

    Args:
      size: r, even and at most d; by default half of the head.
      layout: as in `rope`; DeepSeek's is "interleaved".

    Raises:
      ValueError: for a slice of an odd size, or larger than the head.
    """
    count = _even_size(size, head_size)
    if count > head_size:
        raise ValueError(f"size must be 2 to head_size={head_size}, got {count}.")
    start = head_size - count
    metadata = Metadata(
        formula=f"R(ω x) on the last r dimensions, ω_m = {base:g}^(−2m/r)",
        source="DeepSeek-AI 2024 (DeepSeek-V2), 2.1.3",
        invariant=True,
    )
    part = fixed_rotary(default_frequencies(count, base), layout, metadata)
    assert part.map_qkv and part.metadata
    map_slice = part.map_qkv
    pairs = tuple((start + a, start + b) for a, b in part.metadata.pairs)

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        slice_q, slice_k, v = map_slice(
            params, q[..., start:], k[..., start:], v, context
        )
        q = jnp.concatenate([q[..., :start], slice_q], axis=-1)
        k = jnp.concatenate([k[..., :start], slice_k], axis=-1)
        return q, k, v

    return part.replace(
        map_qkv=map_qkv, metadata=part.metadata.replace(pairs=pairs), params_key=""
    )


@register_encoding
def decoupled_rope(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    size: int | None = None,
    base: float = 10_000.0,
    layout: Layout = "half",
    stddev: float = 0.02,
) -> Part:
    """Decoupled RoPE of multi-head latent attention: heads get r more dimensions for positions.

        q_i -> [q_i, R(ω i) W_Q x_i],   k_j -> [k_j, R(ω j) W_K x_j]
        logit_ij = (q_i·k_j + (W_Q x_i)·R(ω (j - i)) W_K x_j) / sqrt(d + r)

    with ω_m = base^(-2m/r) (DeepSeek-AI 2024, arXiv 2405.04434, eqs. 14 to 18). The rotary key
    W_K x is the same in all heads. (The paper's rotary query comes from the compressed query, here
    from the hidden state.)

    Params: `{"query": [D, H, r], "key": [D, r]}`, drawn from a normal of `stddev`. The paper has
    them for each layer: `per_layer(decoupled_rope)`.

    Needs the hidden states `Context.x_q` and `x_k`.

    Args:
      size: r, even; by default d/2, as in the paper.
      layout: as in `rope`; DeepSeek's is "interleaved".

    Raises:
      ValueError: for an odd size; in attention, without the hidden states.
    """
    count = _even_size(size, head_size)
    w = default_frequencies(count, base)[None]
    # Attention divides by sqrt(d), the size of the heads that it was given.
    scale = (head_size / (head_size + count)) ** 0.5

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        x_q = hidden_states(context, "decoupled_rope", hidden_size, "q")
        x_k = hidden_states(context, "decoupled_rope", hidden_size, "k")
        i, j = context.arrays()
        rotary_q = jnp.einsum("blD,Dhr->blhr", x_q, params["query"])
        rotary_k = jnp.einsum("blD,Dr->blr", x_k, params["key"])[..., None, :]
        rotary_q = rotate_by(rotary_q, angles(i, w), layout).astype(q.dtype)
        rotary_k = rotate_by(rotary_k, angles(j, w), layout).astype(k.dtype)
        rotary_k = jnp.broadcast_to(rotary_k, (*k.shape[:-1], count))
        q = jnp.concatenate([q, rotary_q], axis=-1)
        k = jnp.concatenate([k, rotary_k], axis=-1)
        return q, k, v

    shapes = {"query": (hidden_size, num_heads, count), "key": (hidden_size, count)}
    return Part(
        init=normal_init(stddev, **shapes),
        map_qkv=map_qkv,
        scale=lambda params, context: scale,
        traits=Traits(reads_hidden_states=True),
        metadata=Metadata(
            formula=f"(q·k + W_Q x_i·R(ω m) W_K x_j) / √(d + r), ω_m = {base:g}^(−2m/r)",
            source="DeepSeek-AI 2024 (DeepSeek-V2), eqs. 14–18",
            parameters="D·(H + 1)·r",
            invariant=True,
            monotone=False,
            frequencies=lambda _: jnp.array(w),
        ),
    )


def _even_size(size: int | None, head_size: int) -> int:
    """Return r, by default half of a head; a ValueError if it is odd."""
    count = head_size // 2 if size is None else size
    if count < 2 or count % 2:
        raise ValueError(
            f"size (default head_size / 2) must be even and positive, got {count}."
        )
    return count
