"""What the TPU kernel (`flash`) supports, and what it is given for each term.

Terms of the offset go in as tables of 2·clip + 1 rows, of the offsets that can occur. Sinusoids
without a clip go in as a wider head, by rotation (see `offset_terms`): queries next to their
rotated selves meet keys next to P(j); values next to P(j) give outputs that are rotated back.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.offset_terms import tables
from pe_jax.attention.operands import Operands, Term
from pe_jax.attention.tpu_kernel.flash import fits, flash_attention
from pe_jax.encodings.positions import as_array
from pe_jax.encodings.sinusoid import rotate_pairs, sinusoid
from pe_jax.shapes import Array, Float

NEEDS = (
    "positions that are ranges, no mask but of keys, no terms but those of the offset, and tables "
    "of these that fit on the chip"
)


class _Laid(NamedTuple):
    """The arrays of `flash_attention`: everything that is next to one another is in them."""

    q: Array
    k: Array
    v: Array
    key_table: Array | None
    value_table: Array | None
    bias: Array | None


def supports(x: Operands) -> bool:
    """Whether `attend` can compute this attention."""
    of_keys = x.mask is None or (x.mask.shape[1] == x.mask.shape[2] == 1)
    vectors = any(term.offsets.keys for term in x.terms if not _rotates(term))
    mapped = x.q is not x.content_q
    terms = all(
        term.shift == x.shift and term.logits is None and not term.offsets.queries
        for term in x.terms
    )
    if x.shift is None or not of_keys or not terms or (mapped and vectors):
        return False
    q, k, _, *tables, bias = jax.eval_shape(lambda: _laid_out(x))
    return fits(q, k, *tables, bias=bias, reach=x.reach, offset=x.shift)


def attend(
    x: Operands, rate: float, seed: Array | None, interpret: bool
) -> Float[Array, "B Lq H f"]:
    """Attention of `x`, see `operands`.

    Args:
      rate, seed: of dropout.
      interpret: run as ordinary operations, on any device.
    """
    assert x.shift is not None
    laid = _laid_out(x)
    out = flash_attention(
        *laid[:5],
        bias=laid.bias,
        reach=x.reach,
        offset=x.shift,
        valid=None if x.mask is None else jnp.broadcast_to(x.mask[:, 0, 0], x.k.shape[:2]),
        scale=_scale(x),
        dropout_rate=rate,
        seed=seed,
        interpret=interpret,
    )
    total, at = out[..., : x.v.shape[-1]], x.q.shape[-1]
    for term in filter(_rotates, x.terms):
        assert term.offsets.value_frequencies
        w = term.offsets.value_frequencies(term.params)
        own, at = out[..., at : at + 2 * len(w)], at + 2 * len(w)
        positions = -np.asarray(as_array(term.positions[0]))[:, None]
        total += rotate_pairs(own, positions, w).astype(total.dtype)
    return total


def _laid_out(x: Operands) -> _Laid:
    rotated = [term for term in x.terms if _rotates(term)]
    in_tables = [term for term in x.terms if not _rotates(term) and term.offsets.has_terms]
    _, made = tables(in_tables, x.scale)
    beside = [_beside(term, x) for term in rotated]
    wide = x.q.shape[-1] + sum(q.shape[-1] for q, _, _ in beside)

    def pad(table: Array | None) -> Array | None:
        """With zeros where other terms are."""
        if table is None:
            return None
        return jnp.pad(table, [(0, 0)] * (table.ndim - 1) + [(0, wide - table.shape[-1])])

    # Keys may be wider than values.
    v = jnp.pad(x.v, [(0, 0)] * 3 + [(0, x.q.shape[-1] - x.v.shape[-1])])
    return _Laid(
        jnp.concatenate(
            [x.q if _scale(x) == 1.0 else x.unscaled_q, *(q for q, _, _ in beside)], axis=-1
        ),
        jnp.concatenate([x.k, *(k for _, k, _ in beside)], axis=-1),
        jnp.concatenate([v, *(v for _, _, v in beside)], axis=-1),
        pad(made.keys),
        pad(made.values),
        made.bias,
    )


def _scale(x: Operands) -> float:
    """What the kernel multiplies products of queries and keys by, where that is one number for all
    of them: it costs nothing there. Else 1.0, and queries come scaled."""
    one = isinstance(x.scale, float) and not any(map(_rotates, x.terms))
    return x.scale if one else 1.0


def _rotates(term: Term) -> bool:
    """Whether a term goes in by rotation: the alternative is a table of all offsets."""
    terms = term.offsets
    return terms.frequencies is not None and terms.clip is None and not terms.bias


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
