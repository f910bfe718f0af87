"""Attention as its formula stands: ordinary JAX, one operation after the other.

Every encoding, every derivative: forward mode, Hessians, `vmap` of everything. It is the reference
in the code, what `implementation="naive"` runs, and what attention falls back to for terms that
`xla` cannot compute. Vectors of offsets are made for each pair of query and key, [Lq, Lk, d].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from pe_jax.attention.inputs import AttentionInputs, Term, evaluated, repeat_heads
from pe_jax.attention.masks import combine_masks, masked_logits, masked_softmax
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.product import head_product
from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.encodings.part import HookContext, LogitTerms, OffsetVectors, Params
from pe_jax.encodings.positions import offsets


def attend(
    x: AttentionInputs, drop: Callable[[Array], Array]
) -> Float[Array, "B Lq H f"]:
    """Softmax attention with all terms of all parts, float32; `drop` is dropout of the weights."""
    weights = drop(masked_softmax(logits(x), x.whole_mask, x.sink))
    out = head_product(
        "bhqk,bkhf->bqhf", weights, x.v, x.q.shape[2], multiply=_products
    )
    for term, params, context in x.terms:
        if term.value_vectors:
            vectors, axes = _vectors(term.value_vectors, params, context)
            out += _products(f"bhqk,{axes}f->bqhf", weights, vectors).astype(out.dtype)
    return out


def log_denominator(x: AttentionInputs) -> Float[Array, "B Lq H"]:
    """The logarithm of the softmax's denominator, in which a sink is a summand."""
    total = jax.nn.logsumexp(masked_logits(logits(x), x.whole_mask), axis=-1)
    if x.sink is not None:
        total = jnp.logaddexp(total, x.sink[:, None])
    return total.swapaxes(1, 2)


def logits(x: AttentionInputs) -> Float[Array, "B H Lq Lk"]:
    """Logits with all terms, before the mask; float32."""
    total = head_product("bqhe,bkhe->bhqk", x.q, x.k, x.q.shape[2], multiply=_products)
    terms = [term.astype(total.dtype) for term in added_logits(x)]
    if not x.maps:
        return functools.reduce(jnp.add, terms, total)
    added = jnp.broadcast_to(sum(terms, jnp.zeros((), total.dtype)), total.shape)
    return mapped_logits(x.maps, total, added, x.whole_mask)


def mapped_logits(
    maps: Sequence[tuple[Callable[..., jax.Array], Params]],
    content: Float[Array, "B H Lq Lk"],
    terms: Float[Array, "B H Lq Lk"],
    mask: Bool[Array, "#B #H #Lq Lk"] | None,
) -> Float[Array, "B H Lq Lk"]:
    """Apply maps of the finished logits, with their parameters, one after the other.

    A key that a term of -inf forbids stays forbidden, and is masked for the maps.
    """
    allowed = terms > -jnp.inf
    mask = combine_masks(mask, allowed)
    terms = jnp.where(allowed, terms, 0.0)
    for function, params in maps:
        content = function(params, content, terms, mask)
        terms = jnp.zeros_like(content)  # The first map has added them.
    return jnp.where(allowed, content, -jnp.inf)


def added_logits(x: AttentionInputs) -> list[Float[jax.Array, "#B #H #Lq #Lk"]]:
    """The terms that are added to the products of queries and keys."""
    added = []
    for term in x.terms:
        terms, params, context = term
        if terms.key_vectors:
            vectors, axes = _vectors(terms.key_vectors, params, context)
            added.append(_products(f"bqhd,{axes}d->bhqk", x.content.queries, vectors))
        if terms.query_vectors:
            vectors, axes = _vectors(terms.query_vectors, params, context)
            scale = jnp.swapaxes(x.scale, 1, 2) if jnp.ndim(x.scale) else x.scale
            content_k = repeat_heads(x.content.keys, x.q.shape[2])
            added.append(scale * _products(f"bkhd,{axes}d->bhqk", content_k, vectors))
        if terms.bias:
            added.append(evaluated(bias(term), None))
    added += [evaluated(terms, x.masks.allowed) for terms in x.added.terms]
    return added if x.added.array is None else [*added, x.added.array]


def bias(term: Term) -> LogitTerms:
    """The bias of every pair of query and key."""
    terms, params, context = term
    assert terms.bias is not None
    positions_q, positions_k = context.rows()
    return LogitTerms(
        function=functools.partial(_bias, terms.bias),
        query_arrays=positions_q,
        key_arrays=positions_k,
        shared=params,
    )


def _bias(
    hook: Callable[..., Array], i: Array, j: Array, params: Params, mask: Array | None
) -> Float[Array, "#B #H #Lq #Lk"]:
    offset = offsets(i, j)
    biases = hook(params, offset, HookContext(positions_q=i, positions_k=j))
    if biases.ndim == offset.ndim:  # Shared by the heads.
        biases = biases[..., None]
    return jnp.moveaxis(biases, -1, 1)


def _vectors(
    vectors: OffsetVectors, params: Params, context: HookContext
) -> tuple[Array, str]:
    """Vectors of every pair of query and key, and the names of their axes but the last."""
    offset = offsets(context.positions_q, context.positions_k)
    pairs = vectors(params, offset, context)
    batch_axis = "b" * (offset.ndim - 2)
    head_axis = "h" * (pairs.ndim - offset.ndim - 1)
    return pairs, f"{batch_axis}qk{head_axis}"


def _products(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, preferred_element_type=wide_dtype(a, b))
