"""The kernels of `flash`, in Pallas: one forward, one backward.

How relative terms meet a tile of queries × keys. A query's dot products with the table are one
matmul a block of queries. Laid out with a period of `width` ≥ 2·clip offsets, they come into the
order of the keys by rotating row i by i lanes (`_skew`), one instruction a register: afterwards
lane j mod `width` of row i holds offset j − i, for all tiles. Sums of weights per offset, which the
values and the tables' gradients need, go the same way back: tiles are added up modulo `width`, and
rotated back once a block of queries (`_unskew`). No gather, no scatter.

Offsets of clip and beyond cost nothing: the softmax does not change if q·P_clip is taken from all
logits of a query, so the kernels see P − P_clip; and R_clip joins the values before, so they see
R − R_clip. Offsets of −clip and beyond share one number a query.

Numbers per query are kept in 128 equal lanes, as operands of tiles; heads whose size is less than
128 lie side by side in the lanes, as the projections leave them, and go to one program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.attention.dropout import keep
from pe_jax.attention.dropout import scale as scale_of_kept

LANES = 128
MASKED = -2e30  # The logit of a key not to be looked at.
_UNSEEN = (
    -1e30
)  # Where a running maximum starts: above it, so that such a key never weighs anything.
_LOG2_E = math.log2(math.e)  # Inside, exponentials and logarithms are of base 2, as in hardware.
_TILES = 16 * 2**20  # Bytes of on-chip memory for tiles.


class Plan(NamedTuple):
    """What the kernels know when compiling."""

    heads: int
    size: int  # of a head
    group: int  # heads a program, side by side in the lanes
    queries: int  # of a tile
    keys: int  # of a tile
    length: int  # of the queries, before padding
    clip: int
    width: int  # period of the offsets, in lanes
    offset: int
    scale: float
    rate: float
    interpret: bool

    @property
    def lanes(self) -> list[slice]:
        """Where each head of a program lies."""
        return [slice(h * self.size, (h + 1) * self.size) for h in range(self.group)]

    @property
    def dropout_scale(self) -> float:
        return scale_of_kept(self.rate)

    @property
    def far(self) -> int:
        """The lane of offset −clip, before any rotation."""
        return (-self.clip - self.offset) % self.width


def forward(plan: Plan, shared: tuple, rows: tuple) -> Sequence[jax.Array]:
    """The output [B, Lq, H · d], and the base-2 log-sum-exp of the logits.

    Args:
      shared: seed, and the tables as [width, d] or None, offset m at row (m − offset) mod width.
      rows: numbers of the rows of the batch, bias [B, 1, Lk], and q, k, v as [B, L, H · d].
    """
    _, key_terms, value_terms = shared
    _, _, q, _, v = rows
    per_head = functools.partial(_scratch, plan.group, plan.queries)
    bands = per_head(plan.width + LANES)
    state = _Forward(
        top=per_head(LANES),
        total=per_head(LANES),
        out=per_head(plan.size),
        terms=None if key_terms is None else bands,
        bands=None if value_terms is None else bands,
    )
    sums = (len(q), plan.heads // plan.group, plan.group, q.shape[1])
    outputs = {
        "queries": jax.ShapeDtypeStruct(q.shape, v.dtype),
        "sums": jax.ShapeDtypeStruct(sums, jnp.float32),
    }
    work = _Work(products=2, key_products=1, value_products=1, key_turns=0, value_turns=1)
    return _call(_forward_kernel, plan, shared, rows, list(outputs.items()), state, work, 3)


def backward(plan: Plan, shared: tuple, rows: tuple) -> Sequence[Any]:
    """Gradients of q, k, v, and of the tables for each row of the batch.

    Args:
      shared, rows: those of `forward`; the rows are followed by its results and the gradient of the
        first.
    """
    _, key_terms, value_terms = shared
    _, _, q, k, v, *_ = rows
    per_head = functools.partial(_scratch, plan.group, plan.queries)
    bands = per_head(plan.width + LANES)
    keys = _scratch(k.shape[1], plan.group * plan.size)
    state = _Backward(
        dq=per_head(plan.size),
        dk=keys,
        dv=keys,
        sums=per_head(LANES),
        mean=per_head(LANES),
        key_terms=None if key_terms is None else bands,
        key_bands=None if key_terms is None else bands,
        value_terms=None if value_terms is None else bands,
        value_bands=None if value_terms is None else bands,
    )
    terms = jax.ShapeDtypeStruct((len(q), plan.width, plan.size), jnp.float32)
    outputs = [
        ("queries", jax.ShapeDtypeStruct(q.shape, q.dtype)),
        ("all keys", jax.ShapeDtypeStruct(k.shape, k.dtype)),
        ("all keys", jax.ShapeDtypeStruct(v.shape, v.dtype)),
        ("terms", None if key_terms is None else terms),
        ("terms", None if value_terms is None else terms),
    ]
    work = _Work(products=5, key_products=3, value_products=2, key_turns=1, value_turns=1)
    return _call(_backward_kernel, plan, shared, rows, outputs, state, work, 1)


class _Work(NamedTuple):
    """Matrix products: of all queries and keys, of all queries and a table, and for `_unskew`."""

    products: int
    key_products: int
    value_products: int
    key_turns: int
    value_turns: int


def _scratch(*shape: int) -> Any:
    return pltpu.VMEM(shape, jnp.float32)


def _call(
    kernel: Callable,
    plan: Plan,
    shared: tuple,
    rows: tuple,
    outputs: list[tuple[str, Any]],
    state: tuple,
    work: _Work,
    parallel: int,
) -> Any:
    """Runs a kernel for each (row of the batch, group of heads, block of queries, of keys); the
    first `parallel` of these in any order."""
    _, _, q, k, *_ = rows
    keys, lanes = k.shape[1], plan.group * plan.size
    grid = len(q), plan.heads // plan.group, q.shape[1] // plan.queries, keys // plan.keys
    specs = {
        "scalars": pl.BlockSpec(memory_space=pltpu.SMEM),
        "bias": pl.BlockSpec((1, 1, plan.keys), lambda b, h, i, j: (b, 0, j)),
        "queries": pl.BlockSpec((1, plan.queries, lanes), lambda b, h, i, j: (b, i, h)),
        "keys": pl.BlockSpec((1, plan.keys, lanes), lambda b, h, i, j: (b, j, h)),
        "all keys": pl.BlockSpec((1, keys, lanes), lambda b, h, i, j: (b, 0, h)),
        "sums": pl.BlockSpec((1, 1, plan.group, plan.queries), lambda b, h, i, j: (b, h, 0, i)),
        "table": pl.BlockSpec((plan.width, plan.size), lambda b, h, i, j: (0, 0)),
        "terms": pl.BlockSpec((1, plan.width, plan.size), lambda b, h, i, j: (b, 0, 0)),
    }
    names = "scalars", "bias", "queries", "keys", "keys", "queries", "sums", "queries"
    tables = [None if table is None else specs["table"] for table in shared[1:]]
    kept = sum(4 * math.prod(x.shape) for x in jax.tree.leaves(state))
    # Gradients of all keys leave through two buffers.
    leaving = sum(2 * keys * lanes * x.dtype.itemsize for n, x in outputs if n == "all keys")
    return pl.pallas_call(
        functools.partial(kernel, plan),
        grid=grid,
        in_specs=((specs["scalars"], *tables), tuple(specs[n] for n in names[: len(rows)])),
        out_specs=tuple(None if x is None else specs[name] for name, x in outputs),
        out_shape=tuple(x for _, x in outputs),
        scratch_shapes=[state],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=[
                "parallel" if axis < parallel else "arbitrary" for axis in range(len(grid))
            ],
            vmem_limit_bytes=_TILES + kept + leaving,
        ),
        cost_estimate=_cost(plan, shared, rows, outputs, work),
        interpret=plan.interpret,
    )(shared, rows)


def _cost(plan: Plan, shared: tuple, rows: tuple, outputs: list, work: _Work) -> pl.CostEstimate:
    """What XLA's scheduler is told of a kernel."""
    _, _, q, k, v, *_ = rows
    _, key_table, value_table = shared
    queries, keys = len(q) * plan.heads * q.shape[1], k.shape[1]
    flops = work.products * queries * keys * plan.size
    for table, products, turns in (
        (key_table, work.key_products, work.key_turns),
        (value_table, work.value_products, work.value_turns),
    ):
        if table is not None:
            flops += queries * plan.width * (products * plan.size + turns * 2 * LANES)
    # Blocks of keys come again for each block of queries, but for one that is all there is.
    again = (q.shape[1] // plan.queries - 1) if keys > plan.keys else 0
    arrays = jax.tree.leaves((shared, rows, [x for _, x in outputs])) + again * [k, v]
    return pl.CostEstimate(
        flops=2 * flops,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
        transcendentals=queries * keys,
    )


class _Forward(NamedTuple):
    """What the forward kernel keeps of a block of queries while it goes over the keys, per head."""

    top: Any  # The largest logit so far, and relative to it the sums
    total: Any  # of the weights,
    out: Any  # of the weighted values,
    bands: Any  # of the weights per offset.
    terms: Any  # q·P per offset.


def _forward_kernel(plan, shared, rows, out, sums, state):
    (_, key_terms, value_terms), (batch, bias, q, k, v) = shared, rows
    tile = _Tile(plan, shared)

    @pl.when(pl.program_id(3) == 0)
    def begin():
        state.top[...] = jnp.full_like(state.top, _UNSEEN)
        _clear(state.total, state.out, state.bands)
        if key_terms is not None:
            for h, lanes in enumerate(plan.lanes):
                state.terms[h] = _skew(_dot(q[0, :, lanes], key_terms[...], 1, 1), plan)

    @tile.each
    def attend(near):
        for h, lanes in enumerate(plan.lanes):
            logits = _dot(q[0, :, lanes], k[0, :, lanes], 1, 1)
            if key_terms is not None:
                logits += tile.spread(state.terms.at[h], near)
            logits = logits * (plan.scale * _LOG2_E) + bias[0]
            top = jnp.maximum(state.top[h], jnp.max(logits, axis=1, keepdims=True))
            weights = jnp.exp2(logits - _wide(top, plan.keys))
            decay = jnp.exp2(state.top[h] - top)
            state.top[h] = top
            state.total[h] = decay * state.total[h] + sum(_parts(weights))
            (weights,) = tile.drop(batch, h, weights)
            product = _dot(weights.astype(v.dtype), v[0, :, lanes], 1, 0)
            state.out[h] = _wide(decay, plan.size) * state.out[h] + product
            if value_terms is not None:
                state.bands[h] *= _wide(decay, state.bands.shape[-1])
                tile.collect(state.bands.at[h], weights, near)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish():
        for h, lanes in enumerate(plan.lanes):
            result = state.out[h]
            if value_terms is not None:
                bands = _unskew(state.bands[h], plan, v.dtype)
                result += _dot(bands, value_terms[...], 1, 0)
            total = jnp.sum(state.total[h], axis=1, keepdims=True)
            total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
            out[0, :, lanes] = (result * (plan.dropout_scale / total)).astype(out.dtype)
            # Queries go from sublanes to lanes, where they take no more than their bytes.
            sums[0, 0, h : h + 1] = jnp.transpose(state.top[h] + jnp.log2(total))[:1]


class _Backward(NamedTuple):
    """What the backward kernel keeps of a block of queries, per head, and of all keys."""

    dq: Any
    dk: Any
    dv: Any
    sums: Any  # The softmax's log-sum-exp.
    mean: Any  # The weights' gradients, averaged by the weights.
    key_terms: Any  # q·P and grad·R per offset.
    value_terms: Any
    key_bands: Any  # Gradients of the logits, and weights, summed per offset.
    value_bands: Any


def _backward_kernel(plan, shared, rows, dq, dk, dv, dkey_terms, dvalue_terms, state):
    (_, key_terms, value_terms), (batch, bias, q, k, v, out, sums, grad) = shared, rows
    tile = _Tile(plan, shared)
    # What all logit gradients and weights have in common goes to the sums at the end.
    logit_scale, weight_scale = plan.scale * plan.dropout_scale, plan.dropout_scale
    first_query = pl.program_id(2) == 0
    last_query = pl.program_id(2) == pl.num_programs(2) - 1
    first_key, last_key = pl.program_id(3) == 0, pl.program_id(3) == pl.num_programs(3) - 1

    @pl.when(first_key & first_query & (pl.program_id(1) == 0))
    def begin_row():
        _clear(dkey_terms, dvalue_terms)

    @pl.when(first_key & first_query)
    def begin_head():
        _clear(state.dk, state.dv)

    @pl.when(first_key)
    def begin():
        _clear(state.dq, state.key_bands, state.value_bands)
        for h, lanes in enumerate(plan.lanes):
            row = jnp.broadcast_to(sums[0, 0, h : h + 1], (LANES, plan.queries))
            state.sums[h] = jnp.transpose(row)
            product = grad[0, :, lanes].astype(jnp.float32) * out[0, :, lanes].astype(jnp.float32)
            mean = jnp.sum(product, axis=1, keepdims=True) / plan.dropout_scale
            state.mean[h] = jnp.broadcast_to(mean, (plan.queries, LANES))
            if key_terms is not None:
                state.key_terms[h] = _skew(_dot(q[0, :, lanes], key_terms[...], 1, 1), plan)
            if value_terms is not None:
                terms = _dot(grad[0, :, lanes], value_terms[...], 1, 1)
                state.value_terms[h] = _skew(terms, plan)

    here = pl.ds(pl.multiple_of(tile.key, LANES), plan.keys)

    @tile.each
    def differentiate(near):
        for h, lanes in enumerate(plan.lanes):
            logits = _dot(q[0, :, lanes], k[0, :, lanes], 1, 1)
            if key_terms is not None:
                logits += tile.spread(state.key_terms.at[h], near)
            logits = logits * (plan.scale * _LOG2_E) + bias[0]
            weights = jnp.exp2(logits - _wide(state.sums[h], plan.keys))
            dweights = _dot(grad[0, :, lanes], v[0, :, lanes], 1, 1)
            if value_terms is not None:
                dweights += tile.spread(state.value_terms.at[h], near)
            dropped, dweights = tile.drop(batch, h, weights, dweights)
            dlogits = weights * (dweights - _wide(state.mean[h], plan.keys))
            state.dv[here, lanes] += _dot(dropped.astype(v.dtype), grad[0, :, lanes], 0, 0)
            state.dk[here, lanes] += _dot(dlogits.astype(q.dtype), q[0, :, lanes], 0, 0)
            state.dq[h] += _dot(dlogits.astype(k.dtype), k[0, :, lanes], 1, 0)
            if key_terms is not None:
                tile.collect(state.key_bands.at[h], dlogits, near)
            if value_terms is not None:
                tile.collect(state.value_bands.at[h], dropped, near)

    @pl.when(last_key)
    def finish():
        for h, lanes in enumerate(plan.lanes):
            result = state.dq[h]
            if key_terms is not None:
                bands = _unskew(state.key_bands[h], plan, q.dtype)
                result += _dot(bands, key_terms[...], 1, 0)
                dkey_terms[0] += _dot(bands, q[0, :, lanes], 0, 0) * logit_scale
            if value_terms is not None:
                bands = _unskew(state.value_bands[h], plan, v.dtype)
                dvalue_terms[0] += _dot(bands, grad[0, :, lanes], 0, 0) * weight_scale
            dq[0, :, lanes] = (result * logit_scale).astype(dq.dtype)

    @pl.when(last_key & last_query)
    def finish_head():
        dk[0] = (state.dk[...] * logit_scale).astype(dk.dtype)
        dv[0] = (state.dv[...] * weight_scale).astype(dv.dtype)


class _Tile:
    """What a program's queries and keys have to do with each other, in parts of 128 keys."""

    def __init__(self, plan: Plan, shared: tuple):
        self.seed, *self.tables = shared
        self.plan, self.row, self.head = plan, pl.program_id(0), pl.program_id(1) * plan.group
        self.query = pl.program_id(2) * plan.queries
        self.key = pl.program_id(3) * plan.keys
        self.offset = plan.offset + self.key - self.query  # From query 0 to key 0 of the tile.
        first, last = self.offset - (plan.queries - 1), self.offset + plan.keys - 1
        self.near = (first < plan.clip) & (last > -plan.clip)

    def each(self, body: Callable[[bool], None]) -> None:
        """Runs `body(near)`: whether any offset of the tile lies within ±clip."""
        if all(table is None for table in self.tables):
            return body(False)
        pl.when(self.near)(functools.partial(body, True))
        pl.when(~self.near)(functools.partial(body, False))

    def sides(self, part: int) -> tuple[jax.Array, jax.Array]:
        """Which offsets are −clip or less, and which are clip or more."""
        shape = self.plan.queries, LANES
        query, key = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        first, clip = self.offset + part * LANES, self.plan.clip
        return key - query <= -clip - first, key - query >= clip - first

    def lanes(self, part: int) -> Any:
        """Where in the period the keys of a part lie."""
        lane = (self.key - self.query + part * LANES) % self.plan.width
        return pl.ds(pl.multiple_of(lane, LANES), LANES)

    def spread(self, terms: Any, near: bool) -> jax.Array:
        """Numbers per query and offset, skewed, to [queries, keys]."""
        left, spread = terms[:, self.plan.width :], []
        if not near:
            return _wide(jnp.where(self.offset > 0, 0.0, left), self.plan.keys)
        for n in range(self.plan.keys // LANES):
            before, after = self.sides(n)
            inner = jnp.where(after, 0.0, terms[:, self.lanes(n)])
            spread.append(jnp.where(before, left, inner))
        return jnp.concatenate(spread, axis=1)

    def collect(self, bands: Any, x: jax.Array, near: bool) -> None:
        """Adds [queries, keys] to numbers per query and offset: the transpose of `spread`."""
        left = slice(self.plan.width, None)
        if not near:
            bands[:, left] += jnp.where(self.offset > 0, 0.0, sum(_parts(x)))
            return
        for n, part in enumerate(_parts(x)):
            before, after = self.sides(n)
            bands[:, left] += jnp.where(before, part, 0.0)
            bands[:, self.lanes(n)] += jnp.where(before | after, 0.0, part)

    def drop(self, batch: Any, head: int, *tiles: jax.Array) -> tuple[jax.Array, ...]:
        """Dropout, without its scale, of a head's weights; rows are those of [B, H, Lq, Lk]."""
        plan = self.plan
        if not plan.rate:
            return tiles
        first = batch[self.row] * np.uint32(plan.heads) + (self.head + head).astype(jnp.uint32)
        first = first * np.uint32(plan.length) + self.query.astype(jnp.uint32)
        rows = first + jax.lax.broadcasted_iota(jnp.uint32, (plan.queries, LANES), 0)
        columns = jax.lax.broadcasted_iota(jnp.uint32, (1, LANES), 1)
        columns = columns + self.key.astype(jnp.uint32)
        words = jnp.stack([jnp.full((1, LANES), self.seed[n]) for n in (0, 1)])
        kept = [
            keep(words, rows, columns + np.uint32(n), plan.rate) for n in range(0, plan.keys, LANES)
        ]
        return tuple(
            jnp.concatenate([jnp.where(k, x, 0.0) for k, x in zip(kept, _parts(tile))], axis=1)
            for tile in tiles
        )


def _clear(*refs: Any) -> None:
    for ref in refs:
        if ref is not None:
            ref[...] = jnp.zeros_like(ref)


def _parts(x: jax.Array) -> list[jax.Array]:
    """[queries, n · 128] as n registers' worth of lanes each."""
    return jnp.split(x, x.shape[1] // LANES, axis=1)


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """[queries, 128] of equal lanes, as many as wished."""
    return jnp.concatenate([x] * -(-lanes // LANES), axis=1)[:, :lanes]


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _skew(terms: jax.Array, plan: Plan) -> jax.Array:
    """From offsets to keys: rotates row i to the right by i lanes, and appends 128 lanes of the
    number of offset −clip."""
    turned = pltpu.roll(terms, 0, axis=1, stride=1, stride_axis=0)
    last = terms[:, plan.far : plan.far + 1]
    return jnp.concatenate([turned, jnp.broadcast_to(last, (len(last), LANES))], axis=1)


def _unskew(bands: jax.Array, plan: Plan, dtype: Any) -> jax.Array:
    """From keys to offsets: the transpose of `_skew`, rotating row i to the left by i lanes.

    Strided rotations go to the right only. To the left by i is to the right by what is left, which
    grows with the row number when rows are in reverse order; the matrix unit puts them there.
    """
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), n) for n in (0, 1))
    reverse = (row + column == LANES - 1).astype(dtype)
    turned = []
    for n in range(0, plan.queries, LANES):
        x = _dot(reverse, bands[n : n + LANES, : plan.width].astype(dtype), 1, 0)
        shift = (1 - n - LANES) % plan.width
        x = pltpu.roll(x, shift, axis=1, stride=1, stride_axis=0).astype(dtype)
        turned.append(_dot(reverse, x, 1, 0))
    inner = jnp.concatenate(turned)
    lane = jax.lax.broadcasted_iota(jnp.int32, inner.shape, 1)
    last = jnp.sum(bands[:, plan.width :], axis=1, keepdims=True)
    return jnp.where(lane == plan.far, last, inner).astype(dtype)
