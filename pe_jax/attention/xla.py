"""Attention in XLA's operations, as a function of arrays with a backward pass written by hand.

All queries at once, which saves the weights (`softmax`), or in blocks (`blocks`).
"""

from __future__ import annotations

import collections
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention import blocks, naive, softmax
from pe_jax.attention.inputs import (
    AddedLogits,
    AttentionInputs,
    Term,
    evaluated,
    farthest,
    repeat_heads,
    tables,
)
from pe_jax.attention.offset_terms import Rotation, table_logits
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.attention.softmax import (
    AttentionBlock,
    LogitMaps,
    OffsetArrays,
    Place,
    WeightDropout,
    combine,
    partition,
)
from pe_jax.attention.token_axes import PerToken
from pe_jax.common.axis_blocks import join_axis
from pe_jax.common.dtypes import standard_promotion, wide_dtype
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.positions import offsets

# Queries at a time where an encoding computes logits with a function, which keeps several arrays of
# a block's queries by all keys.
_BLOCK_OF_FUNCTIONS = 32


def computation(
    term: Term, x: AttentionInputs
) -> Literal["rotation", "tables", "added", "none"]:
    """Return the way in which terms of the offset are computed.

    - `"rotation"`: sinusoids without max_distance, or at positions that are no ranges.
    - `"tables"`: terms of the integers of a range, or clipped to one.
    - `"added"`: biases at any other positions, of each pair of query and key.
    - `"none"`: other vectors, for which attention runs as the plain formula. These are vectors
      without a clip at positions that are no range, vectors at real positions or at positions of a
      part's own, and vectors that join the queries under a temperature of each query.
    """
    terms, _, context = term
    is_consecutive = context.shift is not None
    is_clipped = terms.max_distance is not None
    has_positions_of_call = context is x.context
    if has_positions_of_call and all(
        isinstance(p, range) or np.issubdtype(jnp.result_type(p), np.integer)
        for p in (context.positions_q, context.positions_k)
    ):
        is_sinusoid = terms.frequencies and not terms.query_vectors and not terms.bias
        if is_sinusoid and not (is_clipped and is_consecutive):
            return "rotation"
        is_scaled_by_query = terms.query_vectors and jnp.ndim(x.scale)
        if (is_consecutive or is_clipped) and not is_scaled_by_query:
            return "tables"
    if terms.key_vectors or terms.query_vectors or terms.value_vectors:
        return "none"
    return "added"


def _terms_by_computation(x: AttentionInputs) -> dict[str, list[Term]]:
    terms: dict[str, list[Term]] = collections.defaultdict(list)
    for term in x.terms:
        terms[computation(term, x)].append(term)
    return terms


def unsupported_reason(x: AttentionInputs) -> str:
    """Return what `attend` needs and `x` does not have; empty if it computes `x`."""
    if not _terms_by_computation(x)["none"]:
        return ""
    return (
        "vectors at integer positions that are ranges or are clipped, and no temperature of each "
        "query where they join the queries"
    )


def attend(
    x: AttentionInputs,
    seed: Array | None,
    rate: float,
    block: int | None,
    *,
    return_lse: bool = False,
) -> tuple[Float[Array, "B Lq H f"], Float[Array, "B Lq H"] | None]:
    """Attention of inputs that have no `unsupported_reason`, and with `return_lse` the logarithm of
    the softmax's denominator.

    Args:
      seed, rate: of dropout; no seed, no dropout.
      block: queries at a time, for memory linear in the length; None takes all at once.
    """
    queries = x.q.shape[1]
    offset_terms = _terms_by_computation(x)
    # Their other form is for the TPU kernel.
    logit_terms = [terms.replace(products=None) for terms in x.added.terms]
    logit_terms += map(naive.bias, offset_terms["added"])
    if block and (logit_terms or x.maps):
        block = min(block, _BLOCK_OF_FUNCTIONS)
    if block and block >= queries:
        block = None
    added = [] if x.added.array is None else [x.added.array]
    if block is None:
        # What the backward pass needs of them is saved, like the weights.
        added += [evaluated(terms, x.masks.allowed) for terms in logit_terms]
        logit_terms = []
    dtype = wide_dtype(x.q, x.k)
    whole = AttentionBlock(
        q=x.q,
        k=x.k,
        v=x.v,
        offset_arrays=_offset_arrays(x, offset_terms),
        added=AddedLogits(
            array=softmax.sum_of_terms(added, dtype) if added else None,
            terms=tuple(logit_terms),
        ),
        maps=LogitMaps(
            functions=tuple(function for function, _ in x.maps),
            params=tuple(params for _, params in x.maps),
        ),
        sink=x.sink,
        masks=x.masks,
        dropout=WeightDropout(seed=seed, rate=rate),
        place=Place(
            ranges=x.context.ranges, num_queries=queries, block_size=block or 0
        ),
    )
    arrays, rest = partition(whole)
    arrays = vary_alike(arrays, rest)
    out = _attend(return_lse, jax.tree.map(reverse_only, arrays), rest)
    return out if return_lse else (out, None)


def _offset_arrays(
    x: AttentionInputs, offset_terms: dict[str, list[Term]]
) -> OffsetArrays:
    """Evaluate terms of the offset, with the queries, keys and positions that they need."""
    offset_tables = tables(offset_terms["tables"], x.scale)
    rotations = tuple(map(_rotation, offset_terms["rotation"]))
    has_tables = not offset_tables.is_empty
    has_terms = has_tables or bool(rotations)
    positions = PerToken()
    if has_terms and x.context.ranges is None:
        q, k = x.context.arrays()
        positions = PerToken(queries=jnp.asarray(q), keys=jnp.asarray(k))
    return OffsetArrays(
        tables=offset_tables,
        rotations=rotations,
        content=PerToken(
            queries=x.content.queries if x.is_mapped and has_terms else None,
            keys=x.content.keys if x.is_mapped and has_tables else None,
        ),
        positions=positions,
    )


def added_logits(x: AttentionInputs) -> Float[Array, "#B #H #Lq #Lk"] | None:
    """Return all that is added to the products of queries and keys, None if nothing is."""
    offset_terms = _terms_by_computation(x)
    if offset_terms["rotation"] or offset_terms["none"]:
        added = naive.added_logits(x)
    else:
        added = [] if x.added.array is None else [x.added.array]
        added += [evaluated(terms, x.masks.allowed) for terms in x.added.terms]
        added += [evaluated(naive.bias(term), None) for term in offset_terms["added"]]
        offset: ArrayLike | None = x.context.shift
        if offset is None:
            offset = offsets(x.context.positions_q, x.context.positions_k)
        added += table_logits(
            tables(offset_terms["tables"], x.scale),
            x.content.queries,
            repeat_heads(x.content.keys, x.q.shape[2]),
            offset,
        )
    return functools.reduce(jnp.add, added) if added else None


def _rotation(term: Term) -> Rotation:
    """A sinusoidal term as arrays, with its clip unless no key is beyond it."""
    terms, params, context = term
    assert (
        terms.frequencies
        and terms.value_frequencies
        and terms.key_vectors
        and terms.value_vectors
    )
    frequencies = terms.frequencies(params)
    value_frequencies = terms.value_frequencies(params)
    clip = terms.max_distance
    farthest_key = farthest(context)
    if clip is None or (farthest_key is not None and farthest_key <= clip):
        return Rotation(frequencies=frequencies, value_frequencies=value_frequencies)
    both_ends = np.array([clip, -clip])
    return Rotation(
        frequencies=frequencies,
        value_frequencies=value_frequencies,
        clip=clip,
        ends=terms.key_vectors(params, both_ends, context),
        value_ends=terms.value_vectors(params, both_ends, context),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    return_lse: bool, arrays: AttentionBlock, rest: AttentionBlock
) -> Array | tuple[Array, Array]:
    return _attend_forward(return_lse, arrays, rest)[0]


def _attend_forward(return_lse, arrays, rest):
    x = combine(arrays, rest)
    if x.place.block_size:
        out, saved = blocks.forward(x)
    else:  # The weights are saved, which is quicker where they fit.
        out, saved, log_total = softmax.forward(x)
    if not return_lse:
        return out, (x, out, saved)
    if x.place.block_size:
        log_total = join_axis(saved, 2, x.place.num_queries)
    return (out, log_total[..., 0].swapaxes(1, 2)), (x, out, saved)


@standard_promotion()
def _attend_backward(return_lse, residuals, g):
    x, out, saved = residuals
    g_log_total = None
    if return_lse:
        g, g_lse = g
        g_log_total = g_lse.swapaxes(1, 2)[..., None]
    module = blocks if x.place.block_size else softmax
    return module.backward(x, saved, out, g, g_log_total), None


_attend.defvjp(_attend_forward, _attend_backward)
