"""Softmax attention with a backward pass of its own, all queries at once or in blocks.

The backward pass needs what every flash-style attention needs and no more: with a the weights, w
what dropout leaves of them, g the gradient of the output o = w·v + values(w),

    dw = g·vᵀ + (transpose of values)(g)         ds = a (drop(dw) - sum(g o))

as sum_j w_j dw_j = g·o for whatever is linear in w. In blocks, a is recomputed from q, k and the
logarithm of the softmax's denominator, and dropout from its counter, so nothing of size Lq·Lk is
saved: memory is linear in the length, forward and backward. Terms of hooks (`LogitTerms`) and maps
of the finished logits are computed for a block of queries at a time as well, and again in the
backward pass. With a window, a block of queries meets the keys within reach of it and no others, so
time is linear as well.

Shapes: B batch, Lq and Lk lengths, H heads of queries, G of keys and values, e and f head sizes of
keys and values. float32 inside the softmax, whatever the dtype of q, k and v.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.attention import dropout as dropouts
from pe_jax.attention.forms import FORMS, Form
from pe_jax.attention.masks import both, masked_logits, masked_weights, reach_mask
from pe_jax.attention.offset_terms import (
    rotated_logits,
    rotated_values,
    table_logits,
    table_values,
)
from pe_jax.attention.operands import Operands, Term, farthest, limited, repeat_heads, tables
from pe_jax.attention.plain import bias, evaluated
from pe_jax.attention.product import head_product
from pe_jax.attention.reverse_only import reverse_only
from pe_jax.encodings.part import LogitTerms
from pe_jax.encodings.positions import Reach, as_array, offsets
from pe_jax.shapes import Array, Float, Size


class Arrays(NamedTuple):
    """The arrays that are differentiated; None where one is absent.

    Attributes:
      q, k, v: queries are mapped and scaled already.
      content_q, content_k: what vectors meet, where that is not q and k themselves.
      tables: of terms of the offset, see `operands.tables`.
      rotations: of terms that are sinusoids, see `offset_terms.rotated_logits`.
      added: `[#B, #H, Lq, Lk]`, to the logits as it is.
      sink: `[H]`, logits in the denominator.
      of_queries, of_keys, shared: of `LogitTerms`, their inexact arrays, with None for the others.
      maps: parameters of the maps of the finished logits.
    """

    q: Float[Array, "B Lq H e"]
    k: Float[Array, "B Lk G e"]
    v: Float[Array, "B Lk G f"]
    content_q: Array | None = None
    content_k: Array | None = None
    tables: dict[str, Array] | None = None
    rotations: tuple[dict[str, Array], ...] = ()
    added: Array | None = None
    sink: Array | None = None
    of_queries: tuple = ()
    of_keys: tuple = ()
    shared: tuple = ()
    maps: tuple = ()


# The axes of queries and of keys.
_QUERIES = {"q": 1, "content_q": 1, "added": 2, "of_queries": 1}
_KEYS = {"k": 1, "v": 1, "content_k": 1, "added": 3, "of_keys": 1}

# An array, or what JAX puts in its place while it builds a tree.
Leaf = Any


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "positions_q positions_k mask seed of_queries of_keys shared limits_q limits_k first"
    ).split(),
    meta_fields=(
        "clip rotation_clips pairs rate reach ranges block num_queries functions maps limits"
    ).split(),
)
@dataclasses.dataclass(frozen=True)
class Fixed:
    """The settings and arrays that are not differentiated, of all queries and keys or of a block.

    Attributes:
      clip: of the tables; they have 2·clip + 1 rows.
      rotation_clips: of each rotation; None if no key is beyond it.
      pairs: the row of each pair of query and key is looked up.
      rate: of dropout.
      reach: how far queries attend, over ranges.
      ranges: positions of queries and keys, where they are ranges.
      block: queries at a time; None takes all at once and saves their weights.
      num_queries: before they are cut into blocks, by which dropout numbers its rows.
      functions: of `LogitTerms`, each with arrays at its place in `of_queries` and so on.
      maps: of the finished logits, see `Part.logit_map`.
      limits: reaches over positions that are no ranges, each with positions at its place in
        `limits_q` `[#B, Lq]` and `limits_k` `[#B, Lk]`.
      positions_q, positions_k: `[L]` or `[B, L]`, where they are no ranges and terms need them.
      mask: `[B or 1, H or 1, Lq or 1, Lk]`.
      seed: of dropout, see `dropout.seed`.
      of_queries, of_keys, shared: of `LogitTerms`, the arrays that `Arrays` has not.
      first: numbers of the first query and key of a block among all.
    """

    clip: int
    rotation_clips: tuple[int | None, ...]
    pairs: bool
    rate: float
    reach: Reach | None
    ranges: tuple[range, range] | None
    block: int | None
    num_queries: Size
    functions: tuple
    maps: tuple
    limits: tuple[Reach, ...]
    positions_q: Leaf
    positions_k: Leaf
    mask: Leaf
    seed: Leaf
    of_queries: Leaf
    of_keys: Leaf
    shared: Leaf
    limits_q: Leaf
    limits_k: Leaf
    first: Leaf = None

    @property
    def shift(self) -> ArrayLike:
        """Position of the first key minus that of the first query, of ranges."""
        assert self.ranges is not None
        query, key = self.first or (0, 0)
        return self.ranges[1].start + key - (self.ranges[0].start + query)

    def positions(self, x: Arrays) -> tuple[Array, Array]:
        """Positions of queries and keys."""
        if self.ranges is None:
            return self.positions_q, self.positions_k
        (of_q, of_k), (query, key) = self.ranges, self.first or (0, 0)
        q = of_q.start + query + np.arange(x.q.shape[1])
        return q, of_k.start + key + np.arange(x.k.shape[1])

    def offset(self, x: Arrays) -> ArrayLike:
        """Offset from queries to keys, as `offset_terms` takes it."""
        return self.shift if self.ranges is not None else offsets(*self.positions(x))

    def whole_mask(self, x: Arrays) -> Array | None:
        """The mask, with all reaches."""
        mask = limited(self.mask, list(zip(self.limits, self.limits_q, self.limits_k)))
        if self.reach is None:
            return mask
        return both(mask, reach_mask(self.reach, x.q.shape[1], x.k.shape[1], self.shift))

    def drop(self, x: Float[Array, "B H Lq Lk"]) -> Array:
        """Dropout of `x`, a row for each query of each head."""
        if self.seed is None:
            return x
        rows, heads, lq, lk = x.shape
        first_query, first_key = (jnp.asarray(n, jnp.uint32) for n in self.first or (0, 0))
        head = jax.lax.iota(jnp.uint32, rows * heads).reshape(rows, heads, 1, 1)
        query = jax.lax.iota(jnp.uint32, lq)[:, None] + first_query
        row = head * np.uint32(self.num_queries) + query  # As rows of [B, H, Lq, Lk].
        key = jax.lax.iota(jnp.uint32, lk) + first_key
        mask = dropouts.keep(self.seed, row, key, self.rate)
        return jnp.where(mask, x * dropouts.scale(self.rate), 0.0)


def computation(
    term: Term, x: Operands, form: Form = FORMS["buckets"]
) -> Literal["rotation", "tables", "added", "none"]:
    """Return the way in which terms of the offset are computed.

    - `"rotation"`: sinusoids whose tables would have all offsets, whose positions are no ranges, or
      that `form` wants rotated.
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
        isinstance(p, range) or np.issubdtype(jnp.result_type(p), np.integer) for p in positions
    ):
        sinusoids = terms.frequencies and not terms.queries and not terms.bias
        if sinusoids and (terms.clip is None or not consecutive or form.rotation):
            return "rotation"
        scaled_by_query = terms.queries and jnp.ndim(x.scale)
        if (consecutive or terms.clip is not None) and not scaled_by_query:
            return "tables"
    return "none" if any((terms.keys, terms.queries, terms.values)) else "added"


def obstacle(x: Operands, form: str | Form = "auto") -> str:
    """Return a description of the inputs that this module needs and `x` is not; empty if it is."""
    named = FORMS["rotation" if form == "rotation" else "buckets"]
    ways = {computation(term, x, named) for term in x.terms}
    if form == "rotation" and ways - {"rotation"}:
        return "terms that are sinusoids of the offset, at integer positions"
    if "none" in ways:
        return (
            "vectors at integer positions that are ranges or are clipped, and no temperature of "
            "each query where they join the queries"
        )
    return ""


def attend(x: Operands, seed: Array | None, rate: float, form: Form) -> Float[Array, "B Lq H f"]:
    """Attention of operands without an `obstacle`.

    Args:
      seed, rate: of dropout; no seed, no dropout.
    """
    queries = x.q.shape[1]
    ways: dict[str, list[Term]] = {"rotation": [], "tables": [], "added": []}
    for term in x.terms:
        ways[computation(term, x, form)].append(term)
    block = None if form.block is None or form.block >= queries else form.block
    logit_terms = [*x.logit_terms, *map(bias, ways["added"])]
    added = [] if x.added is None else [x.added]
    if block is None:  # What the backward pass needs of them is saved, like the weights.
        added += [evaluated(terms, x.mask) for terms in logit_terms]
        logit_terms = []
    trees = {name: tuple(getattr(terms, name) for terms in logit_terms) for name in _TREES}
    maps = [(part.logit_map, params) for part, params, _ in x.parts if part.logit_map]
    clip, rows = tables(ways["tables"], x.scale)
    rotations = [_rotation(term) for term in ways["rotation"]]
    mapped = x.q is not x.content_q
    arrays = Arrays(
        x.q,
        x.k,
        x.v,
        x.content_q if mapped and (rows or rotations) else None,
        x.content_k if mapped and rows else None,
        rows,
        tuple(rotation for rotation, _ in rotations),
        functools.reduce(jnp.add, added).astype(jnp.float32) if added else None,
        x.sink,
        **{name: _leaves(tree, differentiable=True) for name, tree in trees.items()},
        maps=tuple(params for _, params in maps),
    )
    q, k = x.context.positions_q, x.context.positions_k
    ranges = (q, k) if isinstance(q, range) and isinstance(k, range) else None
    needed = ranges is None and (rows or rotations)
    fixed = Fixed(
        clip=clip,
        rotation_clips=tuple(clip for _, clip in rotations),
        pairs=form.pairs,
        rate=rate,
        reach=x.reach,
        ranges=ranges,
        block=block,
        num_queries=queries,
        functions=tuple(terms.function for terms in logit_terms),
        maps=tuple(function for function, _ in maps),
        limits=tuple(reach for reach, _, _ in x.limits),
        limits_q=tuple(positions_q for _, positions_q, _ in x.limits),
        limits_k=tuple(positions_k for _, _, positions_k in x.limits),
        **{name: _leaves(tree, differentiable=False) for name, tree in trees.items()},
        positions_q=jnp.asarray(as_array(q)) if needed else None,
        positions_k=jnp.asarray(as_array(k)) if needed else None,
        mask=x.mask,
        seed=seed,
    )
    return _attend(jax.tree.map(reverse_only, arrays), fixed)


_TREES = "of_queries", "of_keys", "shared"  # Of `LogitTerms`.


def _leaves(tree: Leaf, *, differentiable: bool) -> Leaf:
    """`tree` with None for the leaves that are not inexact, or for those that are."""

    def chosen(x: Array) -> Array | None:
        return x if jnp.issubdtype(jnp.result_type(x), jnp.inexact) == differentiable else None

    return jax.tree.map(chosen, tree)


def _rotation(term: Term) -> tuple[dict[str, Array], int | None]:
    """A sinusoidal term as arrays, and its clip unless no key is beyond it."""
    terms, params, context = term
    assert terms.frequencies and terms.value_frequencies and terms.keys and terms.values
    rotation = {
        "frequencies": terms.frequencies(params),
        "value_frequencies": terms.value_frequencies(params),
    }
    clip, most = terms.clip, farthest(context)
    if clip is None or (most is not None and most <= clip):
        return rotation, None
    ends = np.array([clip, -clip])
    rotation["ends"] = terms.keys(params, ends, context)
    rotation["value_ends"] = terms.values(params, ends, context)
    return rotation, clip


@jax.custom_vjp
def _attend(arrays: Arrays, fixed: Fixed) -> Float[Array, "B Lq H f"]:
    return _attend_forward(arrays, fixed)[0]


def _attend_forward(arrays, fixed):
    if fixed.block is None:  # The weights are saved, which is quicker where they fit.
        out, saved, _ = _forward(arrays, fixed)
    else:
        out, saved = _in_blocks(arrays, fixed)
    return out, (arrays, fixed, out, saved)


def _attend_backward(residuals, g):
    arrays, fixed, out, saved = residuals
    backward = _backward if fixed.block is None else _in_blocks_backward
    return backward(arrays, fixed, saved, out, g), None


_attend.defvjp(_attend_forward, _attend_backward)


# --- some queries and some keys -------------------------------------------------------------------


def _logits(x: Arrays, fixed: Fixed) -> Float[Array, "B H Lq Lk"]:
    content, terms = _summands(x, fixed)
    return masked_logits(_finished(x.maps, content, terms, x, fixed), fixed.whole_mask(x))


def _summands(x: Arrays, fixed: Fixed) -> tuple[Array, Array | None]:
    """Products of queries and keys, and what is added to them."""
    content = head_product("bqhd,bkhd->bhqk", x.q, x.k, x.q.shape[2])
    return content, _term_logits(x, fixed) if _adds_logits(x, fixed) else None


def _finished(
    params: tuple, content: Array, terms: Array | None, x: Arrays, fixed: Fixed
) -> Float[Array, "B H Lq Lk"]:
    """The logits before masks: the sum, or what maps make of it."""
    for function, of_map in zip(fixed.maps, params, strict=True):
        terms = jnp.zeros_like(content) if terms is None else terms
        content, terms = function(of_map, content, terms, fixed.whole_mask(x)), None
    return content if terms is None else content + terms


def _adds_logits(x: Arrays, fixed: Fixed) -> bool:
    vectors = (x.tables or {}).keys() - {"values"} or x.rotations
    return bool(vectors or fixed.functions) or x.added is not None


def _term_logits(x: Arrays, fixed: Fixed) -> Float[Array, "B H Lq Lk"]:
    """All that is added to q·k, float32."""
    q = x.q if x.content_q is None else x.content_q
    k = x.k if x.content_k is None else x.content_k
    terms = []
    if x.tables:
        k = repeat_heads(k, q.shape[2]) if "queries" in x.tables else k
        terms += table_logits(x.tables, fixed.clip, q, k, fixed.offset(x), pairs=fixed.pairs)
    for rotation, clip in zip(x.rotations, fixed.rotation_clips, strict=True):
        terms.append(rotated_logits(rotation, clip, q, *fixed.positions(x)))
    if x.added is not None:
        terms.append(x.added)
    trees = [
        jax.tree.map(
            lambda a, b: b if a is None else a,
            getattr(x, name),
            getattr(fixed, name),
            is_leaf=lambda leaf: leaf is None,
        )
        for name in _TREES
    ]
    for function, *arrays in zip(fixed.functions, *trees, strict=True):
        terms.append(evaluated(LogitTerms(function, *arrays), fixed.mask))
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    return jnp.broadcast_to(functools.reduce(jnp.add, terms), shape).astype(jnp.float32)


def _adds_values(x: Arrays) -> bool:
    return bool(x.rotations) or "values" in (x.tables or {})


def _term_values(
    x: Arrays, weights: Float[Array, "B H Lq Lk"], fixed: Fixed
) -> Float[Array, "B Lq H f"]:
    """All that is added to weights·v, float32."""
    terms = []
    if x.tables and "values" in x.tables:
        table, offset = x.tables["values"], fixed.offset(x)
        terms.append(table_values(table, fixed.clip, weights, offset, pairs=fixed.pairs))
    for rotation, clip in zip(x.rotations, fixed.rotation_clips, strict=True):
        terms.append(rotated_values(rotation, clip, weights, *fixed.positions(x)))
    return functools.reduce(jnp.add, terms)


def _forward(x: Arrays, fixed: Fixed) -> tuple[Array, Array, Array]:
    """Outputs, weights and the logarithm of the softmax's denominator [B, H, Lq, 1]."""
    logits = _logits(x, fixed)
    greatest = logits.max(-1, keepdims=True)
    sink = None if x.sink is None else x.sink[:, None, None]
    greatest = greatest if sink is None else jnp.maximum(greatest, sink)
    exp = jnp.exp(logits - greatest)
    total = exp.sum(-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - greatest)
    weights = masked_weights(exp / total, fixed.whole_mask(x))
    dropped = fixed.drop(weights).astype(x.v.dtype)
    out = head_product("bhqk,bkhd->bqhd", dropped, x.v, x.q.shape[2])
    if _adds_values(x):
        out += _term_values(x, dropped, fixed)
    return out.astype(x.v.dtype), weights, greatest + jnp.log(total)


def _backward(x: Arrays, fixed: Fixed, weights: Array, out: Array, g: Array) -> Arrays:
    """Gradients."""
    dropped = fixed.drop(weights).astype(x.v.dtype)
    heads = x.q.shape[2]
    dw = head_product("bqhd,bkhd->bhqk", g, x.v, heads)
    dv = head_product("bhqk,bqhd->bkhd", dropped, g, x.v.shape[2])
    gradients = jax.tree.map(jnp.zeros_like, x)
    if _adds_values(x):
        _, transpose = jax.vjp(lambda x, weights: _term_values(x, weights, fixed), x, dropped)
        gradients, dw_more = transpose(g.astype(jnp.float32))
        dw += dw_more
    inner = (g * out).astype(jnp.float32).sum(-1).swapaxes(1, 2)[..., None]  # [B, H, Lq, 1]
    ds = weights * (fixed.drop(dw) - inner)
    if x.sink is not None:  # Its weight is the rest of the others, and its value 0.
        rest = 1 - weights.sum(-1, keepdims=True)
        gradients = gradients._replace(sink=-(rest * inner).sum((0, 2, 3)))
    dterms: Array | None = ds
    if fixed.maps:
        finished = functools.partial(_finished, x=x, fixed=fixed)
        _, transpose = jax.vjp(finished, x.maps, *_summands(x, fixed))
        dmaps, ds, dterms = transpose(ds)
        gradients = gradients._replace(maps=dmaps)
    if _adds_logits(x, fixed):
        _, transpose = jax.vjp(lambda x: _term_logits(x, fixed), x)
        gradients = jax.tree.map(jnp.add, gradients, *transpose(dterms))
    ds = ds.astype(x.q.dtype)
    dq = head_product("bhqk,bkhd->bqhd", ds, x.k, heads)
    dk = head_product("bhqk,bqhd->bkhd", ds, x.q, x.k.shape[2])
    return gradients._replace(
        q=(dq + gradients.q).astype(x.q.dtype),
        k=(dk + gradients.k).astype(x.k.dtype),
        v=dv.astype(x.v.dtype),
    )


# --- in blocks: outputs and one number a query are saved, the weights recomputed ------------------


def _in_blocks(arrays: Arrays, fixed: Fixed) -> tuple[Array, Array]:
    def attend(_: None, block: tuple) -> tuple[None, tuple[Array, Array]]:
        out, _, log_total = _forward(*_block(arrays, fixed, *block))
        return None, (out, log_total)

    _, (out, log_total) = jax.lax.scan(attend, None, _by_block(arrays, fixed))
    return _join(out, 1, fixed.num_queries), log_total


def _in_blocks_backward(
    arrays: Arrays, fixed: Fixed, log_total: Array, out: Array, g: Array
) -> Arrays:
    def differentiate(sums: Arrays, block: tuple) -> tuple[Arrays, dict[str, Array]]:
        cut, out, g, log_total = block
        x, here = _block(arrays, fixed, *cut)
        weights = masked_weights(jnp.exp(_logits(x, here) - log_total), here.whole_mask(x))
        grads = _backward(x, here, weights, out, g)
        _, key = here.first
        rows: dict[str, Leaf] = {name: getattr(grads, name) for name in by_query}
        if "added" in rows:
            rows["added"] = _put(jnp.zeros_like(by_query["added"][0]), rows["added"], key, 3)
        grads = _with(grads, absent)
        by_key = {
            name: jax.tree.map(functools.partial(_put, key=key, axis=axis), x, getattr(grads, name))
            for name, axis in _KEYS.items()
            if (x := getattr(sums, name)) is not None
        }
        rest = dict.fromkeys(by_key)
        others = jax.tree.map(jnp.add, _with(sums, rest), _with(grads, rest))
        return _with(others, by_key), rows

    cuts = _by_block(arrays, fixed)
    _, by_query, _ = cuts
    absent = dict.fromkeys(by_query)
    shared = _with(arrays, absent)
    # Sums over many blocks, so in float32 whatever the dtype of the parts.
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shared)
    blocks = cuts, _blocks(out, fixed.block, 1), _blocks(g, fixed.block, 1), log_total
    sums, rows = jax.lax.scan(differentiate, zero, blocks)
    sums = jax.tree.map(lambda x, like: x.astype(like.dtype), sums, shared)
    joined = {
        name: jax.tree.map(
            functools.partial(_join, axis=_QUERIES[name], length=fixed.num_queries), x
        )
        for name, x in rows.items()
    }
    return _with(sums, joined)


def _with(x: Arrays, changes: dict[str, Any]) -> Arrays:
    return Arrays(**{**x._asdict(), **changes})


def _by_block(arrays: Arrays, fixed: Fixed) -> tuple[Array, dict[str, Leaf], dict[str, Leaf]]:
    """Numbers of the blocks, and the rows of `arrays` and of `fixed` that differ between blocks."""

    def cut(x: Leaf, axis: int) -> Leaf:
        # Rows of padding repeat the last query: zeros might be where a function has no derivative.
        return jax.tree.map(lambda x: _blocks(x, fixed.block, axis, "edge"), x)

    by_query = {
        name: cut(x, axis)
        for name, axis in _QUERIES.items()
        if (x := getattr(arrays, name)) is not None and (isinstance(x, tuple) or x.shape[axis] > 1)
    }
    fixed_rows = {name: cut(getattr(fixed, name), 1) for name in ("of_queries", "limits_q")}
    if fixed.positions_q is not None:
        axis = fixed.positions_q.ndim - 1
        fixed_rows["positions_q"] = _blocks(fixed.positions_q, fixed.block, axis)
    if fixed.mask is not None and fixed.mask.shape[2] > 1:
        fixed_rows["mask"] = _blocks(fixed.mask, fixed.block, 2)
    return jnp.arange(len(by_query["q"]), dtype=jnp.int32), by_query, fixed_rows


def _block(
    arrays: Arrays,
    fixed: Fixed,
    number: Array,
    by_query: dict[str, Leaf],
    fixed_rows: dict[str, Leaf],
) -> tuple[Arrays, Fixed]:
    """A block of queries with the keys that it can reach."""
    arrays, fixed = _with(arrays, by_query), dataclasses.replace(fixed, **fixed_rows)
    assert fixed.block is not None
    query, mask = number * fixed.block, fixed.mask
    key: ArrayLike = 0
    left, right = fixed.reach or Reach()
    if left is not None and right is not None and fixed.ranges is not None:
        keys = arrays.k.shape[1]
        width = min(keys, fixed.block + left + right)
        first = query + fixed.ranges[0].start - fixed.ranges[1].start - left
        key = jnp.clip(first, 0, keys - width)

        def near(x: Leaf, axis: int) -> Leaf:
            return jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), key, width, axis), x
            )

        by_key = {name: near(getattr(arrays, name), axis) for name, axis in _KEYS.items()}
        arrays = _with(arrays, by_key)
        fixed = dataclasses.replace(
            fixed, of_keys=near(fixed.of_keys, 1), limits_k=near(fixed.limits_k, 1)
        )
        mask = near(mask, 3)
    return arrays, dataclasses.replace(fixed, mask=mask, first=(query, key))


def _put(total: Array, x: Array, key: ArrayLike, axis: int) -> Array:
    """Add `x` to the keys of `total` from `key` on."""
    if x.shape[axis] == total.shape[axis]:
        return total + x
    slice_ = jax.lax.dynamic_slice_in_dim(total, key, x.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(total, slice_ + x, key, axis)


def _blocks(x: Array, block: int | None, axis: int, mode: str = "constant") -> jax.Array:
    """Blocks of an axis in front: `[B, L, ...] -> [N, B, block, ...]`, the last one padded."""
    assert block is not None
    count = -(-x.shape[axis] // block)
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, count * block - x.shape[axis])
    parts = jnp.pad(x, pad, mode).reshape(*x.shape[:axis], count, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)


def _join(parts: Array, axis: int, length: int) -> jax.Array:
    """Blocks in front to one axis again: `[N, B, block, ...] -> [B, length, ...]`."""
    x = jnp.moveaxis(parts, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)
