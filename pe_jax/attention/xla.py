"""Attention in XLA's operations, as a function of arrays with a backward pass written by hand.

All queries at once, which saves the weights (`softmax`), or in blocks (`blocks`).
"""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import blocks, naive, softmax
from pe_jax.attention.inputs import (
    AttentionInputs,
    Term,
    farthest,
    repeat_heads,
    tables,
)
from pe_jax.attention.offset_terms import Rotation, table_logits
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.attention.softmax import AttentionBlock, combine, partition
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
    consecutive = context.shift is not None
    positions = context.positions_q, context.positions_k
    if context is x.context and all(
        isinstance(p, range) or np.issubdtype(jnp.result_type(p), np.integer)
        for p in positions
    ):
        sinusoids = terms.frequencies and not terms.query_vectors and not terms.bias
        if sinusoids and (terms.max_distance is None or not consecutive):
            return "rotation"
        scaled_by_query = terms.query_vectors and jnp.ndim(x.scale)
        if (consecutive or terms.max_distance is not None) and not scaled_by_query:
            return "tables"
    return (
        "none"
        if any((terms.key_vectors, terms.query_vectors, terms.value_vectors))
        else "added"
    )


def _by_computation(x: AttentionInputs) -> dict[str, list[Term]]:
    ways: dict[str, list[Term]] = {
        "rotation": [],
        "tables": [],
        "added": [],
        "none": [],
    }
    for term in x.terms:
        ways[computation(term, x)].append(term)
    return ways


def unsupported_reason(x: AttentionInputs) -> str:
    """Return a description of the inputs that this module needs and `x` is not; empty if it is."""
    if not _by_computation(x)["none"]:
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
    ways = _by_computation(x)
    logit_terms = [*x.logit_terms, *map(naive.bias, ways["added"])]
    if block and (logit_terms or x.maps):
        block = min(block, _BLOCK_OF_FUNCTIONS)
    if block and block >= queries:
        block = None
    added = [] if x.added is None else [x.added]
    if (
        block is None
    ):  # What the backward pass needs of them is saved, like the weights.
        added += [naive.evaluated(terms, x.allowed) for terms in logit_terms]
        logit_terms = []
    offset_tables = tables(ways["tables"], x.scale)
    rotations = tuple(map(_rotation, ways["rotation"]))
    has_tables, mapped = bool(offset_tables.rows), x.q is not x.content_q
    ranges, document_ids = x.context.ranges, x.context.document_ids
    positions: tuple[Array | None, Array | None] = (None, None)
    if ranges is None and (has_tables or rotations):
        q, k = x.context.arrays()
        positions = jnp.asarray(q), jnp.asarray(k)
    maps, map_params = zip(*x.maps) if x.maps else ((), ())
    position_windows, limits_q, limits_k = (
        zip(*x.position_windows) if x.position_windows else ((), (), ())
    )
    whole = AttentionBlock(
        q=x.q,
        k=x.k,
        v=x.v,
        content_q=x.content_q if mapped and (has_tables or rotations) else None,
        content_k=x.content_k if mapped and has_tables else None,
        tables=offset_tables,
        rotations=rotations,
        logit_terms=tuple(logit_terms),
        added=softmax.sum_of_terms(added, wide_dtype(x.q, x.k)) if added else None,
        sink=x.sink,
        map_params=map_params,
        positions_q=positions[0],
        positions_k=positions[1],
        document_ids_q=document_ids,
        document_ids_k=document_ids,
        limits_q=limits_q,
        limits_k=limits_k,
        mask=x.mask,
        seed=seed,
        rate=rate,
        window=x.window,
        ranges=ranges,
        size=block or 0,
        num_queries=queries,
        maps=maps,
        position_windows=position_windows,
    )
    arrays, rest = partition(whole)
    arrays = vary_alike(arrays, rest)
    out = _attend(return_lse, jax.tree.map(reverse_only, arrays), rest)
    return out if return_lse else (out, None)


def added_logits(x: AttentionInputs) -> Float[Array, "#B #H #Lq #Lk"] | None:
    """Return all that is added to the products of queries and keys, None if nothing is."""
    ways = _by_computation(x)
    if ways["rotation"] or ways["none"]:
        added = naive.added_logits(x)
    else:
        added = [] if x.added is None else [x.added]
        added += [naive.evaluated(terms, x.allowed) for terms in x.logit_terms]
        added += [naive.evaluated(naive.bias(term), None) for term in ways["added"]]
        by_offset = tables(ways["tables"], x.scale)
        positions = x.context.positions_q, x.context.positions_k
        offset = offsets(*positions) if x.context.shift is None else x.context.shift
        content_k = repeat_heads(x.content_k, x.q.shape[2])
        added += table_logits(by_offset, x.content_q, content_k, offset)
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
    frequencies = terms.frequencies(params), terms.value_frequencies(params)
    clip, most = terms.max_distance, farthest(context)
    if clip is None or (most is not None and most <= clip):
        return Rotation(*frequencies)
    vectors = [
        hook(params, np.array([clip, -clip]), context)
        for hook in (terms.key_vectors, terms.value_vectors)
    ]
    return Rotation(*frequencies, clip, *vectors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    return_lse: bool, arrays: AttentionBlock, rest: AttentionBlock
) -> Array | tuple[Array, Array]:
    return _attend_forward(return_lse, arrays, rest)[0]


def _attend_forward(return_lse, arrays, rest):
    x = combine(arrays, rest)
    if not x.size:  # The weights are saved, which is quicker where they fit.
        out, saved, log_total = softmax.forward(x)
    else:
        out, saved = blocks.forward(x)
        log_total = join_axis(saved, 2, x.num_queries) if return_lse else None
    results = (out, log_total[..., 0].swapaxes(1, 2)) if return_lse else out
    return results, (x, out, saved)


@standard_promotion()
def _attend_backward(return_lse, residuals, g):
    x, out, saved = residuals
    module = blocks if x.size else softmax
    g, g_lse = g if return_lse else (g, None)
    g_log_total = None if g_lse is None else g_lse.swapaxes(1, 2)[..., None]
    return module.backward(x, saved, out, g, g_log_total), None


_attend.defvjp(_attend_forward, _attend_backward)
