"""Fused attention with clipped relative terms for TPUs: one Pallas kernel forward, one backward.

    logits_ij = scale · q_i·(k_j + P_{j−i})        out_i = Σ_j dropout(softmax(logits)_ij) (v_j + R_{j−i})

Logits, weights and dropout bits exist only as tiles of block × block in on-chip memory: what is read
and written grows with L, not with L². P and R are tables of 2·clip + 1 rows (Shaw et al. 2018).

How the relative terms meet a tile. A query's dot products with the table, T[i, j − i], come from one
matmul a block of queries. Stored with period `width` ≥ 2·clip − 1 over the offsets, they are turned
into key order by rotating row i by i lanes (*skew*), which the hardware does in one instruction a
register, once a block of queries: afterwards lane j mod `width` of row i holds the offset j − i of
every tile. Keys at ±clip and beyond share one number a side and query. The weights' sums per offset,
which the values and all table gradients need, go the same way back: tiles are folded modulo `width`,
and rotated once a block of queries (*unskew*). No gather, no scatter.

Work and traffic of one layer, BERT-base, 8 rows of L = 512, bfloat16, clip 64, forward and backward:
TODO
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from pe_jax.attention.dropout import keep
from pe_jax.attention.dropout import scale as scale_of_kept
from pe_jax.shapes import Array, Bool, Float

_LANES = 128
_VMEM = 16 * 2**20  # Bytes of on-chip memory for tiles.
_LOG2_E = math.log2(math.e)  # Inside, exponentials and logarithms are of base 2, as in hardware.
_MASKED = -2e30  # The logit of a key not to be looked at.
_UNSEEN = (
    -1e30
)  # Where a running maximum starts: above it, so that such a key never weighs anything.


class _Plan(NamedTuple):
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


def flash_attention(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    v: Float[Array, "B Lk H d"],
    key_table: Float[Array, "Rk d"] | None = None,
    value_table: Float[Array, "Rv d"] | None = None,
    *,
    offset: int = 0,
    valid: Bool[Array, "B Lk"] | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    seed: Array | None = None,
    block: tuple[int, int] | None = None,
    interpret: bool = False,
) -> Float[Array, "B Lq H d"]:
    """Multi-head attention with relative terms, differentiable in q, k, v and both tables.

    Under `jit` over several devices, call it inside `jax.set_mesh(mesh)`: a kernel cannot be split
    by the compiler, so each device runs it on its rows of the batch.

    Args:
      key_table, value_table: row `clip + m` is the vector of offset m = key's position minus
        query's; offsets beyond ±clip have that of ±clip. None: no such term.
      offset: position of key 0 minus position of query 0.
      valid: True for keys that may be looked at. Where there is none, outputs and gradients are 0.
      scale: of the logits; default 1/sqrt(d).
      dropout_rate, seed: dropout of the weights with the bits of `dropout.keep`, rows numbered as
        those of weights [B, H, Lq, Lk]; seed uint32 [2]. No seed, no dropout.
      block: queries and keys of a tile, multiples of 128; default up to 512, by the lengths.
      interpret: run as ordinary JAX operations, on any device.

    Returns:
      `[B, Lq, H, d]` in the dtype of `v`. Products are of the inputs' dtype, sums float32.

    Raises:
      ValueError: for tables of an even number of rows, of fewer than 3, or of unlike numbers; for
        q, k, v of unlike dtypes; for a block that does not fit.
    """
    tables = [t for t in (key_table, value_table) if t is not None]
    if len({x.dtype for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}: cast.")
    rows = {len(t) for t in tables}
    if any(n % 2 == 0 or n < 3 for n in rows) or len(rows) > 1:
        raise ValueError(f"Tables have 2·clip + 1 rows, clip at least 1, got {sorted(rows)}.")
    batch, length, heads, size = q.shape
    keys = k.shape[1]
    # Offsets that cannot occur are cut off: a table may be far longer than the sequences.
    reach = max(1, length - 1 - offset, keys - 1 + offset)
    clip = min(max(rows, default=3) // 2, reach)
    width = _ceil(2 * clip, _LANES)
    cut = slice(max(rows, default=3) // 2 - clip, max(rows, default=3) // 2 + clip + 1)
    key_table, value_table = (None if t is None else t[cut] for t in (key_table, value_table))
    plan = _Plan(
        heads=heads,
        size=size,
        group=_group(heads, size),
        queries=_block(length) if block is None else block[0],
        keys=_block(keys) if block is None else block[1],
        length=length,
        clip=clip,
        width=width,
        offset=offset,
        scale=size**-0.5 if scale is None else scale,
        rate=0.0 if seed is None else dropout_rate,
        interpret=interpret,
    )
    if min(plan.queries, plan.keys) < 1 or plan.queries % _LANES or plan.keys % _LANES:
        raise ValueError(f"A block has a multiple of 128 queries and of keys, got {block}.")

    def flat(x, block):
        x = x.reshape(*x.shape[:2], heads * size)
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0)))

    bias = jnp.zeros((batch, keys)) if valid is None else jnp.where(valid, 0.0, _MASKED)
    bias = jnp.pad(bias, ((0, 0), (0, -keys % plan.keys)), constant_values=_MASKED)
    out = _flash(
        plan,
        flat(q, plan.queries),
        flat(k, plan.keys),
        flat(v if value_table is None else v + value_table[-1].astype(v.dtype), plan.keys),
        _periodic(key_table, plan),
        _periodic(value_table, plan),
        bias.astype(jnp.float32)[:, None],
        jax.lax.iota(jnp.uint32, batch),
        jnp.zeros(2, jnp.uint32) if seed is None else seed,
    )
    return out[:, :length].reshape(q.shape)


def _ceil(x: int, to: int) -> int:
    return -(-x // to) * to


def _group(heads: int, size: int) -> int:
    """The fewest heads that fill whole registers of 128 lanes; all of them where none do."""
    fitting = (n for n in range(1, heads) if heads % n == 0 and n * size % _LANES == 0)
    return next(fitting, heads)


def _block(length: int) -> int:
    """The largest up to 512 that divides the length, padded to 128."""
    padded = _ceil(length, _LANES)
    return next(n for n in (512, 384, 256, _LANES) if padded % n == 0)


def _periodic(table: Array | None, plan: _Plan) -> jax.Array | None:
    """Differences to the vector of clip and beyond, offset m at row (m − offset) mod width."""
    if table is None:
        return None
    table = jnp.pad(table[:-1] - table[-1:], ((0, plan.width - 2 * plan.clip), (0, 0)))
    return jnp.roll(table, -plan.clip - plan.offset, axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(plan, q, k, v, key_terms, value_terms, bias, batch, seed):
    return _forward_pass(plan, q, k, v, key_terms, value_terms, bias, batch, seed)[0]


def _forward_pass(plan, q, k, v, key_terms, value_terms, bias, batch, seed):
    # Cast here and not before, so that the tables' gradients are summed as wide as the tables.
    terms = [None if t is None else t.astype(q.dtype) for t in (key_terms, value_terms)]
    args = (seed, *terms), (batch, bias, q, k, v)
    out, sums = _by_rows(functools.partial(_forward_call, plan), *args)
    return out, (*args, out, sums, key_terms, value_terms)


def _backward_pass(plan, saved, grad):
    shared, rows, out, sums, *tables = saved
    dq, dk, dv, *terms = _by_rows(
        functools.partial(_backward_call, plan), shared, (*rows, out, sums, grad)
    )
    # The sum over the batch is all that devices exchange.
    terms = [None if t is None else t.sum(0).astype(x.dtype) for t, x in zip(terms, tables)]
    return dq, dk, dv, *terms, None, None, None


_flash.defvjp(_forward_pass, _backward_pass)


def _by_rows(call: Callable, shared: tuple, rows: tuple) -> Any:
    """`call(shared, rows)` on every device's own rows of the batch, where a mesh is set."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.auto_axes:
        return call(shared, rows)
    whole, split = PartitionSpec(), PartitionSpec(mesh.auto_axes)
    if len(rows[0]) % np.prod([mesh.shape[axis] for axis in mesh.auto_axes]):
        split = whole  # Too few rows to share out.
    return jax.shard_map(
        call,
        in_specs=(whole, split),
        out_specs=split,
        axis_names=set(mesh.auto_axes),
        check_vma=False,
    )(shared, rows)


def _forward_call(plan, shared, rows):
    _, key_terms, value_terms = shared
    _, _, q, k, v = rows
    groups = plan.heads // plan.group
    per_head = functools.partial(_scratch, plan.group, plan.queries)
    bands = per_head(plan.width + _LANES)
    state = _Forward(
        top=per_head(_LANES),
        total=per_head(_LANES),
        out=per_head(plan.size),
        terms=None if key_terms is None else bands,
        bands=None if value_terms is None else bands,
    )
    return pl.pallas_call(
        functools.partial(_forward_kernel, plan),
        out_shape=(
            jax.ShapeDtypeStruct(q.shape, v.dtype),
            jax.ShapeDtypeStruct((len(q), groups, plan.group, q.shape[1]), jnp.float32),
        ),
        out_specs=_specs(plan, "queries", "sums"),
        scratch_shapes=[state],
        **_launch(plan, shared, rows, parallel=3),
    )(shared, rows)


def _backward_call(plan, shared, rows):
    _, key_terms, value_terms = shared
    _, _, q, k, v, *_ = rows
    per_head = functools.partial(_scratch, plan.group, plan.queries)
    bands = per_head(plan.width + _LANES)
    keys = _scratch(*k.shape[1:2], plan.group * plan.size)
    state = _Backward(
        dq=per_head(plan.size),
        dk=keys,
        dv=keys,
        sums=per_head(_LANES),
        mean=per_head(_LANES),
        key_terms=None if key_terms is None else bands,
        key_bands=None if key_terms is None else bands,
        value_terms=None if value_terms is None else bands,
        value_bands=None if value_terms is None else bands,
    )
    terms = jax.ShapeDtypeStruct((len(q), plan.width, plan.size), jnp.float32)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    specs = _specs(plan, "queries", "all keys", "all keys", "terms", "terms", keys=k.shape[1])
    # Gradients of all keys stay on the chip, in float32, next to the two buffers they leave by.
    resident = k.shape[1] * plan.group * plan.size * (2 * 4 + 4 * k.dtype.itemsize)
    here = [True, True, True, key_terms is not None, value_terms is not None]
    return pl.pallas_call(
        functools.partial(_backward_kernel, plan),
        out_shape=tuple(x if there else None for x, there in zip((*shapes, terms, terms), here)),
        out_specs=tuple(x if there else None for x, there in zip(specs, here)),
        scratch_shapes=[state],
        **_launch(plan, shared, rows, parallel=1, resident=resident),
    )(shared, rows)


def _scratch(*shape: int) -> Any:
    return pltpu.VMEM(shape, jnp.float32)


def _specs(plan: _Plan, *names: str, keys: int = 0) -> tuple[pl.BlockSpec, ...]:
    """What a program (row of the batch, group of heads, block of queries, of keys) sees."""
    lanes = plan.group * plan.size
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
    return tuple(specs[name] for name in names)


def _launch(
    plan: _Plan, shared: tuple, rows: tuple, parallel: int, resident: int = 0
) -> dict[str, Any]:
    """The arguments of `pallas_call` that both kernels have in common."""
    _, _, q, k, *_ = rows
    names = "scalars", "bias", "queries", "keys", "keys", "queries", "sums", "queries"
    tables = (None if table is None else _specs(plan, "table")[0] for table in shared[1:])
    order = ("parallel",) * parallel + ("arbitrary",) * (4 - parallel)
    return dict(
        grid=(
            len(q),
            plan.heads // plan.group,
            q.shape[1] // plan.queries,
            k.shape[1] // plan.keys,
        ),
        in_specs=((*_specs(plan, "scalars"), *tables), _specs(plan, *names[: len(rows)])),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order, vmem_limit_bytes=_VMEM + resident
        ),
        interpret=plan.interpret,
    )


class _Forward(NamedTuple):
    """What the forward kernel keeps of a block of queries while it goes over the keys, per head."""

    top: Any  # The largest logit so far, and relative to it the sums
    total: Any  # of the weights,
    out: Any  # of the weighted values,
    bands: Any  # of the weights per offset.
    terms: Any  # q·P per offset.


def _forward_kernel(plan, shared, rows, out, sums, state):
    (seed, key_terms, value_terms), (batch, bias, q, k, v) = shared, rows
    tile = _Tile(plan)

    @pl.when(pl.program_id(3) == 0)
    def _():
        state.top[...] = jnp.full_like(state.top, _UNSEEN)
        _clear(state.total, state.out, state.bands)
        if key_terms is not None:
            for h, lanes in enumerate(plan.lanes):
                state.terms[h] = _skew(_dot(q[0, :, lanes], key_terms[...], 1, 1), plan)

    @_each(tile.near)
    def _(near):
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
            (weights,) = tile.drop(seed, batch, h, weights)
            product = _dot(weights.astype(v.dtype), v[0, :, lanes], 1, 0)
            state.out[h] = _wide(decay, plan.size) * state.out[h] + product
            if value_terms is not None:
                state.bands[h] *= _wide(decay, state.bands.shape[-1])
                tile.collect(state.bands.at[h], weights, near)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def _():
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
    (seed, key_terms, value_terms), (batch, bias, q, k, v, out, sums, grad) = shared, rows
    tile = _Tile(plan)
    # What all logit gradients and weights have in common goes to the sums at the end.
    logit_scale, weight_scale = plan.scale * plan.dropout_scale, plan.dropout_scale
    first_query = pl.program_id(2) == 0
    last_query = pl.program_id(2) == pl.num_programs(2) - 1
    first_key, last_key = pl.program_id(3) == 0, pl.program_id(3) == pl.num_programs(3) - 1

    @pl.when(first_key & first_query & (pl.program_id(1) == 0))
    def _():
        _clear(dkey_terms, dvalue_terms)

    @pl.when(first_key & first_query)
    def _():
        _clear(state.dk, state.dv)

    @pl.when(first_key)
    def _():
        _clear(state.dq, state.key_bands, state.value_bands)
        for h, lanes in enumerate(plan.lanes):
            row = jnp.broadcast_to(sums[0, 0, h : h + 1], (_LANES, plan.queries))
            state.sums[h] = jnp.transpose(row)
            product = grad[0, :, lanes].astype(jnp.float32) * out[0, :, lanes].astype(jnp.float32)
            mean = jnp.sum(product, axis=1, keepdims=True) / plan.dropout_scale
            state.mean[h] = jnp.broadcast_to(mean, (plan.queries, _LANES))
            if key_terms is not None:
                state.key_terms[h] = _skew(_dot(q[0, :, lanes], key_terms[...], 1, 1), plan)
            if value_terms is not None:
                terms = _dot(grad[0, :, lanes], value_terms[...], 1, 1)
                state.value_terms[h] = _skew(terms, plan)

    here = pl.ds(pl.multiple_of(tile.key, _LANES), plan.keys)

    @_each(tile.near)
    def _(near):
        for h, lanes in enumerate(plan.lanes):
            logits = _dot(q[0, :, lanes], k[0, :, lanes], 1, 1)
            if key_terms is not None:
                logits += tile.spread(state.key_terms.at[h], near)
            logits = logits * (plan.scale * _LOG2_E) + bias[0]
            weights = jnp.exp2(logits - _wide(state.sums[h], plan.keys))
            dweights = _dot(grad[0, :, lanes], v[0, :, lanes], 1, 1)
            if value_terms is not None:
                dweights += tile.spread(state.value_terms.at[h], near)
            dropped, dweights = tile.drop(seed, batch, h, weights, dweights)
            dlogits = weights * (dweights - _wide(state.mean[h], plan.keys))
            state.dv[here, lanes] += _dot(dropped.astype(v.dtype), grad[0, :, lanes], 0, 0)
            state.dk[here, lanes] += _dot(dlogits.astype(q.dtype), q[0, :, lanes], 0, 0)
            state.dq[h] += _dot(dlogits.astype(k.dtype), k[0, :, lanes], 1, 0)
            if key_terms is not None:
                tile.collect(state.key_bands.at[h], dlogits, near)
            if value_terms is not None:
                tile.collect(state.value_bands.at[h], dropped, near)

    @pl.when(last_key)
    def _():
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
    def _():
        dk[0] = (state.dk[...] * logit_scale).astype(dk.dtype)
        dv[0] = (state.dv[...] * weight_scale).astype(dv.dtype)


class _Tile:
    """What a program's queries and keys have to do with each other, in parts of 128 keys."""

    def __init__(self, plan: _Plan):
        self.plan, self.row, self.head = plan, pl.program_id(0), pl.program_id(1) * plan.group
        self.query = pl.program_id(2) * plan.queries
        self.key = pl.program_id(3) * plan.keys
        self.offset = plan.offset + self.key - self.query  # From query 0 to key 0 of the tile.
        first, last = self.offset - (plan.queries - 1), self.offset + plan.keys - 1
        self.near = (first < plan.clip) & (last > -plan.clip)

    def sides(self, part: int) -> tuple[jax.Array, jax.Array]:
        """Which offsets are −clip or less, and which are clip or more."""
        shape = self.plan.queries, _LANES
        query, key = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        first, clip = self.offset + part * _LANES, self.plan.clip
        return key - query <= -clip - first, key - query >= clip - first

    def lanes(self, part: int) -> Any:
        """Where in the period the keys of a part lie."""
        lane = (self.key - self.query + part * _LANES) % self.plan.width
        return pl.ds(pl.multiple_of(lane, _LANES), _LANES)

    def spread(self, terms: Any, near: bool) -> jax.Array:
        """Numbers per query and offset, skewed, to [queries, keys]."""
        left, spread = terms[:, self.plan.width :], []
        if not near:
            return _wide(jnp.where(self.offset > 0, 0.0, left), self.plan.keys)
        for n in range(self.plan.keys // _LANES):
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

    def drop(self, seed: Any, batch: Any, head: int, *tiles: jax.Array) -> tuple[jax.Array, ...]:
        """Dropout, without its scale, of a head's weights; rows are those of [B, H, Lq, Lk]."""
        plan = self.plan
        if not plan.rate:
            return tiles
        first = batch[self.row] * np.uint32(plan.heads) + (self.head + head).astype(jnp.uint32)
        first = first * np.uint32(plan.length) + self.query.astype(jnp.uint32)
        rows = first + jax.lax.broadcasted_iota(jnp.uint32, (plan.queries, _LANES), 0)
        columns = jax.lax.broadcasted_iota(jnp.uint32, (1, _LANES), 1)
        columns = columns + self.key.astype(jnp.uint32)
        words = jnp.stack([jnp.full((1, _LANES), seed[n]) for n in (0, 1)])
        kept = [
            keep(words, rows, columns + np.uint32(n), plan.rate)
            for n in range(0, plan.keys, _LANES)
        ]
        return tuple(
            jnp.concatenate([jnp.where(k, x, 0.0) for k, x in zip(kept, _parts(tile))], axis=1)
            for tile in tiles
        )


def _each(near: jax.Array) -> Callable:
    """A decorator: runs `body(True)` or `body(False)`, whichever `near` is."""

    def run(body):
        pl.when(near)(functools.partial(body, True))
        pl.when(~near)(functools.partial(body, False))

    return run


def _clear(*refs: Any) -> None:
    for ref in refs:
        if ref is not None:
            ref[...] = jnp.zeros_like(ref)


def _parts(x: jax.Array) -> list[jax.Array]:
    """[queries, n · 128] as n registers' worth of lanes each."""
    return jnp.split(x, x.shape[1] // _LANES, axis=1)


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """[queries, 128] of equal lanes, as many as wished."""
    return jnp.concatenate([x] * -(-lanes // _LANES), axis=1)[:, :lanes]


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _skew(terms: jax.Array, plan: _Plan) -> jax.Array:
    """From offsets to keys: rotates row i to the right by i lanes, and appends 128 lanes of the
    number of offset −clip."""
    turned = pltpu.roll(terms, 0, axis=1, stride=1, stride_axis=0)
    last = terms[:, plan.far : plan.far + 1]
    return jnp.concatenate([turned, jnp.broadcast_to(last, (len(last), _LANES))], axis=1)


def _unskew(bands: jax.Array, plan: _Plan, dtype: Any) -> jax.Array:
    """From keys to offsets: the transpose of `_skew`, rotating row i to the left by i lanes.

    Strided rotations go to the right only. To the left by i is to the right by what is left, which
    grows with the row number when rows are in reverse order; the matrix unit puts them there.
    """
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (_LANES, _LANES), n) for n in (0, 1))
    reverse = (row + column == _LANES - 1).astype(dtype)
    turned = []
    for n in range(0, plan.queries, _LANES):
        x = _dot(reverse, bands[n : n + _LANES, : plan.width].astype(dtype), 1, 0)
        shift = (1 - n - _LANES) % plan.width
        x = pltpu.roll(x, shift, axis=1, stride=1, stride_axis=0).astype(dtype)
        turned.append(_dot(reverse, x, 1, 0))
    inner = jnp.concatenate(turned)
    lane = jax.lax.broadcasted_iota(jnp.int32, inner.shape, 1)
    last = jnp.sum(bands[:, plan.width :], axis=1, keepdims=True)
    return jnp.where(lane == plan.far, last, inner).astype(dtype)
