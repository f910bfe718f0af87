"""Arguments of the TPU kernel (`flash`) for the inputs of attention that it supports.

Terms of the offset go in as tables of 2·clip + 1 rows, of the offsets that can occur. Sinusoids
without a clip go in as a wider head, by rotation (see `offset_terms`): queries next to their
rotated selves meet keys next to P(j); values next to P(j) give outputs that are rotated back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import devices
from pe_jax.attention.inputs import AttentionInputs, Term, tables
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.attention.tpu_kernel.flash import fits, flash_attention
from pe_jax.common.mesh_axes import varies
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import OffsetTerms
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid


def unsupported_reason(x: AttentionInputs) -> str:
    """Return what `attend` needs and `x` does not have; empty if it computes `x`."""
    shift, mapped = x.context.shift, x.q is not x.content_q
    sizes = (*x.q.shape, *x.k.shape, *x.v.shape)
    if not all(isinstance(size, int) for size in sizes):
        return "shapes that are known at compile time"
    shifts_differ = any(context.shift != shift for _, _, context in x.terms)
    if shift is None or x.position_windows or shifts_differ:
        return "positions that are ranges, the same for all parts of the encoding"
    if x.added is not None or x.logit_terms or x.maps:
        return (
            "an encoding without terms of the content, and biases of the offset alone"
        )
    if x.k.shape[2] != x.v.shape[2] or x.v.shape[3] > x.q.shape[3]:
        return "as many heads of values as of keys, no wider than these"
    if not x.q.dtype == x.k.dtype == x.v.dtype:
        return "queries, keys and values of one dtype"
    if x.q.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return "float32, bfloat16 or float16"
    if varies(x.q, x.k, x.v):
        return "check_vma=False in jax.shard_map"
    if x.mask is not None and (x.mask.shape[1] > 1 or x.mask.shape[2] > 1):
        return "a mask of keys alone, [B or 1, 1, 1, Lk]"
    if any(term.query_vectors for term, _, _ in x.terms):
        return "no vectors of the offset that join the queries"
    if mapped and any(
        term.key_vectors and not _rotates(term) for term, _, _ in x.terms
    ):
        return "no vectors of the offset that join the keys, beside maps of queries and keys"
    (q, k, _), terms = jax.eval_shape(lambda: _laid_out(x))
    if x.sink is not None and "key_table" in terms:
        return "no sink beside vectors that join the keys"
    values, packed = terms.get("value_table"), x.context.document_ids is not None
    if k.shape[2] < q.shape[2] and values is not None and values.ndim > 2:
        return "as many heads of values as of vectors that join the values"
    if not fits(q, k, **terms, window=x.window, offset=shift, packed=packed):
        return "lengths and tables whose intermediate results fit into the memory on the chip"
    return ""


def attend(
    x: AttentionInputs, rate: float, seed: Array | None
) -> Float[Array, "B Lq H f"]:
    """Attention of `x`, with dropout if there is a seed; on a TPU, or emulated (see `devices`)."""
    assert x.context.shift is not None
    interpret = devices.are_emulated()
    (q, k, v), terms = _laid_out(x)
    qkv = q if interpret else devices.on_tpu(q), k, v
    qkv, terms, sink = jax.tree.map(reverse_only, (qkv, terms, x.sink))
    out = flash_attention(
        *qkv,
        **terms,
        sink=sink,
        window=x.window,
        offset=x.context.shift,
        valid=None
        if x.mask is None
        else jnp.broadcast_to(x.mask[:, 0, 0], x.k.shape[:2]),
        document_ids=x.context.document_ids,
        scale=_scale(x),
        dropout_rate=rate,
        seed=seed,
        interpret=interpret,
    )
    total, end = out[..., : x.v.shape[-1]], x.q.shape[-1]
    for term, params, context in _rotated(x):
        assert term.value_frequencies
        w = term.value_frequencies(params)
        start, end = end, end + 2 * len(w)
        assert context.ranges is not None
        positions = -np.asarray(context.ranges[0])[:, None]
        total += rotate_pairs(out[..., start:end], positions, w).astype(total.dtype)
    return total


def _laid_out(
    x: AttentionInputs,
) -> tuple[tuple[Array, Array, Array], dict[str, Array]]:
    """Return queries, keys and values, wider for rotations, and tables of `flash_attention`."""
    rows = tables([term for term in x.terms if not _rotates(term[0])], x.scale).rows
    beside = [_beside(term, x) for term in _rotated(x)]
    wide = x.q.shape[-1] + sum(q.shape[-1] for q, _, _ in beside)

    def pad(table: Array) -> Array:
        """With zeros where other terms are."""
        return jnp.pad(
            table, [(0, 0)] * (table.ndim - 1) + [(0, wide - table.shape[-1])]
        )

    q = x.q if _scale(x) == 1.0 else x.unscaled_q
    # Keys may be wider than values.
    v = jnp.pad(x.v, [(0, 0)] * 3 + [(0, x.q.shape[-1] - x.v.shape[-1])])
    q, k, v = (
        jnp.concatenate(arrays, axis=-1)
        for arrays in zip((q, x.k, v), *beside, strict=True)
    )
    named = {"keys": "key_table", "values": "value_table"}
    vectors = {named[name]: pad(rows[name]) for name in named if name in rows}
    return (q, k, v), vectors | ({"bias": rows["bias"]} if "bias" in rows else {})


def _scale(x: AttentionInputs) -> float:
    """The scale of all products of queries and keys, if it is one number; else 1.0, and the queries
    come scaled."""
    return x.scale if isinstance(x.scale, float) and not _rotated(x) else 1.0


def _rotated(x: AttentionInputs) -> list[Term]:
    return [term for term in x.terms if _rotates(term[0])]


def _rotates(terms: OffsetTerms) -> bool:
    """True if terms go in by rotation: the alternative is a table of all offsets."""
    return (
        terms.frequencies is not None and terms.max_distance is None and not terms.bias
    )


def _beside(term: Term, x: AttentionInputs) -> tuple[Array, Array, Array]:
    """Columns beside queries, keys and values for unclipped sinusoids."""
    terms, params, context = term
    assert terms.frequencies and terms.value_frequencies and context.ranges
    positions_q, positions_k = (np.asarray(positions) for positions in context.ranges)
    w = terms.frequencies(params)
    rotated = rotate_pairs(x.content_q, positions_q[:, None], w).astype(x.q.dtype)

    def wide(frequencies: Array) -> Array:
        p = sinusoid(positions_k, frequencies).astype(x.k.dtype)  # [Lk, d]
        return jnp.broadcast_to(p[None, :, None], (*x.k.shape[:3], p.shape[-1]))

    return rotated, wide(w), wide(terms.value_frequencies(params))
