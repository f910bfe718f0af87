"""What the TPU kernel (`flash`) supports, and what it is given for each term.

Terms of the offset go in as tables of 2·clip + 1 rows, of the offsets that can occur. Sinusoids
without a clip go in as a wider head, by rotation (see `offset_terms`): queries next to their
rotated selves meet keys next to P(j); values next to P(j) give outputs that are rotated back.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pe_jax.attention.offset_terms import Tables, farthest, tables
from pe_jax.attention.operands import Operands, Term
from pe_jax.attention.tpu_kernel.flash import flash_attention
from pe_jax.encodings.base import as_array
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid
from pe_jax.shapes import Array, Float

NEEDS = (
    "positions that are ranges, no mask but of keys, no terms but those of the offset, and tables "
    "of these that fit on the chip"
)
# Rows of the tables: a state of [queries, rows] numbers a head is kept on the chip.
_ROWS = 2049


def supports(x: Operands) -> bool:
    """Whether `attend` can compute this attention."""
    of_keys = x.mask is None or (x.mask.shape[1] == x.mask.shape[2] == 1)
    mapped = x.q is not x.content_q
    in_tables = [term for term in x.terms if not _rotates(term)]
    vectors = any(term.offsets.keys for term in in_tables)
    return (
        of_keys
        and x.shift is not None
        and all(term.shift == x.shift and term.logits is None for term in x.terms)
        and not any(term.offsets.queries for term in x.terms)
        and 2 * _clip(in_tables) + 1 <= _ROWS
        and not (mapped and vectors)
    )


def attend(
    x: Operands, rate: float, seed: Array | None, interpret: bool
) -> Float[Array, "B Lq H f"]:
    """Attention of `x`, see `operands`.

    Args:
      rate, seed: of dropout.
      interpret: run as ordinary operations, on any device.
    """
    assert x.shift is not None
    rotated = [term for term in x.terms if _rotates(term)]
    in_tables = [term for term in x.terms if not _rotates(term) and term.offsets.has_terms]
    made = tables(in_tables, _clip(in_tables), x.scale) if in_tables else None
    made = Tables(None, None, None, None) if made is None else made
    size, value_size = x.q.shape[-1], x.v.shape[-1]
    beside = [_beside(term, x) for term in rotated]
    v = jnp.pad(x.v, [(0, 0)] * 3 + [(0, size - value_size)])  # Keys may be wider than values.
    wider = sum(q.shape[-1] for q, _, _ in beside)
    pad = lambda table, own: None if table is None else jnp.pad(
        table, [(0, 0)] * (table.ndim - 1) + [(0, size - own + wider)]
    )  # fmt: skip
    out = flash_attention(
        jnp.concatenate([x.q, *(q for q, _, _ in beside)], axis=-1),
        jnp.concatenate([x.k, *(k for _, k, _ in beside)], axis=-1),
        jnp.concatenate([v, *(v for _, _, v in beside)], axis=-1),
        pad(made.keys, size),
        pad(made.values, value_size),
        bias=made.bias,
        reach=x.reach,
        offset=x.shift,
        valid=None if x.mask is None else jnp.broadcast_to(x.mask[:, 0, 0], x.k.shape[:2]),
        scale=1.0,
        dropout_rate=rate,
        seed=seed,
        interpret=interpret,
    )
    total, at = out[..., :value_size], size
    for term, (_, _, values) in zip(rotated, beside, strict=True):
        positions = -np.asarray(as_array(term.positions[0]))[:, None]
        assert term.offsets.value_frequencies
        w = term.offsets.value_frequencies(term.params)
        own = out[..., at : at + values.shape[-1]]
        total += rotate_pairs(own, positions, w).astype(total.dtype)
        at += values.shape[-1]
    return total


def _rotates(term: Term) -> bool:
    """Whether a term goes in by rotation: the alternative is a table of all offsets."""
    terms = term.offsets
    return terms.frequencies is not None and terms.clip is None and not terms.bias


def _clip(terms: list[Term]) -> int:
    """Of the tables; offsets that cannot occur have no row."""
    clips = [
        min(c for c in (t.offsets.clip, farthest(t)) if c is not None)
        for t in terms
        if t.offsets.has_terms and (t.offsets.clip is not None or t.shift is not None)
    ]
    return max(1, *clips) if clips else 1


def _beside(term: Term, x: Operands) -> tuple[Array, Array, Array]:
    """What is next to queries, keys and values for unclipped sinusoids."""
    assert term.offsets.frequencies and term.offsets.value_frequencies
    of_q, of_k = (np.asarray(as_array(p)) for p in term.positions)
    w = term.offsets.frequencies(term.params)
    rotated = rotate_pairs(x.content_q, of_q[:, None], w).astype(x.q.dtype)

    def wide(frequencies: Array) -> Array:
        p = sinusoid(of_k, frequencies).astype(x.k.dtype)  # [Lk, d]
        shape = (*x.k.shape[:3], p.shape[-1])
        return jnp.broadcast_to(p[None, :, None], shape)

    return rotated, wide(w), wide(term.offsets.value_frequencies(term.params))
