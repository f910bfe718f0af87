"""Arguments of the TPU kernel (`flash`) for the inputs of attention that it supports.

Terms of the offset go in as tables of 2·clip + 1 rows, of the offsets that can occur. Sinusoids
without a clip go in as a wider head, by rotation (see `offset_terms`): queries next to their
rotated selves meet keys next to P(j); values next to P(j) give outputs that are rotated back.

Vectors of the offset meet the queries before an encoding maps them, or vectors of its own
(`OffsetProducts`): these go in beside the queries (`content`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import devices
from pe_jax.attention.inputs import AttentionInputs, Term
from pe_jax.attention.inputs import tables as offset_tables
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.attention.tpu_kernel.flash import fits, flash_attention
from pe_jax.common.mesh_axes import varies
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.part import OffsetProducts, OffsetTerms
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid


def unsupported_reason(x: AttentionInputs) -> str:
    """Return what `attend` needs and `x` does not have; empty if it computes `x`."""
    sizes = (*x.q.shape, *x.k.shape, *x.v.shape)
    if not all(isinstance(size, int) for size in sizes):
        return "shapes that are known at compile time"
    shift = x.context.shift
    shifts_differ = any(context.shift != shift for _, _, context in x.terms)
    takes_offsets = bool(x.terms) or x.masks.window is not None
    has_offsets = shift is not None or not takes_offsets
    if not has_offsets or x.masks.position_windows or shifts_differ:
        return "positions that are ranges, the same for all parts of the encoding"
    products = _products(x)
    if x.added.array is not None or x.maps or len(products) < len(x.added.terms):
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
    mask = x.masks.mask
    if mask is not None and (mask.shape[1] > 1 or mask.shape[2] > 1):
        return "a mask of keys alone, [B or 1, 1, 1, Lk]"
    has_query_vectors = any(term.query_vectors for term, _, _ in x.terms)
    if has_query_vectors and (x.is_mapped or jnp.ndim(x.scale)):
        return (
            "no vectors of the offset that join the queries, beside maps of queries and keys or a "
            "temperature of each query"
        )
    if len(products) + _has_key_vectors(x) > 1:
        return "vectors of the offset that join the keys of one part alone"
    if any(
        size > x.q.shape[-1] for size in (each.vectors.shape[-1] for each in products)
    ):
        return "vectors of the offset no wider than queries"
    (q, k, _), tables = jax.eval_shape(lambda: _laid_out(x))
    if x.sink is not None and "key_table" in tables:
        return "no sink beside vectors that join the keys"
    value_table = tables.get("value_table")
    if k.shape[2] < q.shape[2] and value_table is not None and value_table.ndim > 2:
        return "as many heads of values as of vectors that join the values"
    packed = x.masks.document_ids is not None
    offset = shift or 0
    has_content = tables.pop("content", None) is not None
    if not fits(
        *(q, k),
        **tables,
        window=x.masks.window,
        offset=offset,
        packed=packed,
        content=has_content,
    ):
        return "lengths and tables whose intermediate results fit into the memory on the chip"
    return ""


def attend(
    x: AttentionInputs, rate: float, seed: Array | None
) -> Float[Array, "B Lq H f"]:
    """Attention of `x`, with dropout if there is a seed; on a TPU, or emulated (see `devices`)."""
    interpret = devices.are_emulated()
    (q, k, v), tables = _laid_out(x)
    if not interpret:
        q = devices.on_tpu(q)
    differentiated = (q, k, v), tables, x.sink
    (q, k, v), tables, sink = jax.tree.map(reverse_only, differentiated)
    valid = x.masks.mask
    if valid is not None:
        valid = jnp.broadcast_to(valid[:, 0, 0], x.k.shape[:2])
    out = flash_attention(
        q,
        k,
        v,
        **tables,
        sink=sink,
        window=x.masks.window,
        offset=x.context.shift or 0,  # Without ranges nothing depends on it.
        valid=valid,
        document_ids=x.context.document_ids,
        scale=_scale(x),
        dropout_rate=rate,
        seed=seed,
        interpret=interpret,
    )
    total = out[..., : x.v.shape[-1]]
    first = x.q.shape[-1]  # Column of the next rotation.
    for term, params, context in _rotated(x):
        assert term.value_frequencies
        w = term.value_frequencies(params)
        columns = slice(first, first + 2 * len(w))
        first = columns.stop
        assert context.ranges is not None
        positions = -np.asarray(context.ranges[0])[:, None]
        total += rotate_pairs(out[..., columns], positions, w).astype(total.dtype)
    return total


def _laid_out(
    x: AttentionInputs,
) -> tuple[tuple[Array, Array, Array], dict[str, Array]]:
    """Return queries, keys and values, wider for rotations, and tables of `flash_attention`."""
    tables = offset_tables(
        [term for term in x.terms if not _rotates(term.offsets)], x.scale
    )
    beside = [_beside(term, x) for term in _rotated(x)]
    wide = x.q.shape[-1] + sum(q.shape[-1] for q, _, _ in beside)

    def pad(array: Array, size: int) -> Array:
        """With zeros where other terms are."""
        padding = [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])]
        return jnp.pad(array, padding)

    q = x.q if _scale(x) == 1.0 else x.unscaled_q
    v = pad(x.v, x.q.shape[-1])  # Keys may be wider than values.
    q, k, v = (
        jnp.concatenate(arrays, axis=-1)
        for arrays in zip((q, x.k, v), *beside, strict=True)
    )
    terms = {}
    content = None
    if tables.key_vectors is not None:
        terms["key_table"] = pad(tables.key_vectors, wide)
        if x.is_mapped:
            content = x.content.queries
    for products in _products(x):
        terms["key_table"] = pad(products.table, wide)
        content = products.vectors
    if content is not None:
        terms["content"] = pad(content.astype(q.dtype), wide)
    if tables.query_vectors is not None:
        terms["query_table"] = pad(tables.query_vectors, wide)
    if tables.value_vectors is not None:
        terms["value_table"] = pad(tables.value_vectors, wide)
    if tables.bias is not None:
        terms["bias"] = tables.bias
    return (q, k, v), terms


def _scale(x: AttentionInputs) -> float:
    """The scale of all products of queries and keys, if it is one number; else 1.0, and the queries
    come scaled."""
    is_of_all = not (
        _rotated(x) or _products(x) or (x.is_mapped and _has_key_vectors(x))
    )
    return x.scale if isinstance(x.scale, float) and is_of_all else 1.0


def _products(x: AttentionInputs) -> list[OffsetProducts]:
    """Added terms that are products with vectors of the offset, at the positions of the call."""
    shift = x.context.shift
    of_offsets = [terms.products for terms in x.added.terms]
    return [each for each in of_offsets if each is not None and each.shift == shift]


def _has_key_vectors(x: AttentionInputs) -> bool:
    """True if vectors of the offset join the keys, other than by rotation."""
    return any(term.key_vectors and not _rotates(term) for term, _, _ in x.terms)


def _rotated(x: AttentionInputs) -> list[Term]:
    return [term for term in x.terms if _rotates(term.offsets)]


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
    rotated = rotate_pairs(x.content.queries, positions_q[:, None], w).astype(x.q.dtype)

    def wide(frequencies: Array) -> Array:
        p = sinusoid(positions_k, frequencies).astype(x.k.dtype)  # [Lk, d]
        return jnp.broadcast_to(p[None, :, None], (*x.k.shape[:3], p.shape[-1]))

    return rotated, wide(w), wide(terms.value_frequencies(params))
