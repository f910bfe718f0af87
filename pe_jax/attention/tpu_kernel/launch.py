"""Calls of the kernels: blocks of the arrays, memory on the chip, and the cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pe_jax.attention.tpu_kernel.kernels import (
    Batched,
    Documents,
    Shared,
    backward_kernel,
    forward_kernel,
)
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig

# Bytes on the chip for intermediate results of a tile of 512 × 512.
_TEMPORARIES = 12 * 2**20

_ANY = pltpu.GridDimensionSemantics.PARALLEL
_IN_TURN = pltpu.GridDimensionSemantics.ARBITRARY


@dataclasses.dataclass(frozen=True)
class _Operand:
    """An array of a kernel, and the block of it that each program sees; None: scalars, all of it.

    `place` is the block's index by row of the batch, group of heads, tile of queries and of keys.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...] | None = None
    place: Callable[..., tuple] | None = None
    dtype: DTypeLike = jnp.float32

    @property
    def array(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def spec(self) -> pl.BlockSpec:
        if self.block is None:
            return pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.BlockSpec(self.block, self.place)


class _Layout(NamedTuple):
    """Operands of a kernel.

    Attributes:
      inputs, outputs: in the structure of the arrays.
      scratch: memory on the chip.
    """

    inputs: Any
    outputs: Any
    scratch: tuple[pl.MemoryRef | None, ...]


def on_chip_bytes(config: KernelConfig, dtype: DTypeLike) -> int:
    """Memory on the chip that the backward kernel needs, the larger of the two."""
    return _memory(config, _layout(config, dtype, 1, backward=True))


def run(
    config: KernelConfig, shared: Shared, rows: Batched, *, backward: bool
) -> tuple:
    """Run a kernel for each (row of the batch, group of heads, tile of queries, of keys).

    Forward, it returns the output [B, Lq, H · d] and `log_sum` of `Batched`. Backward, `rows` have
    these and `grad` as well, and it returns gradients, a `Shared` without a sink and a `Batched`:
    those of the tables are [B, 1 or H, width, d], of the bias [B, H / group, group, lanes].
    """
    kernel: Callable[..., None] = forward_kernel
    order = _ANY, _ANY, _ANY, _IN_TURN
    if backward:
        shared = shared._replace(sink=None)
        kernel = backward_kernel
        order = _ANY, _IN_TURN, _IN_TURN, _IN_TURN
    layout = _layout(config, rows.q.dtype, len(rows.q), backward)
    return pl.pallas_call(
        functools.partial(kernel, config),
        grid=(
            len(rows.q),
            config.heads.total // config.heads.group,
            config.tiling.query_tiles,
            config.tiling.key_steps,
        ),
        in_specs=jax.tree.map(lambda operand: operand.spec, layout.inputs),
        out_specs=jax.tree.map(lambda operand: operand.spec, layout.outputs),
        out_shape=jax.tree.map(lambda operand: operand.array, layout.outputs),
        scratch_shapes=layout.scratch,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order, vmem_limit_bytes=_memory(config, layout)
        ),
        cost_estimate=_cost(config, layout, backward),
        interpret=config.interpret,
    )(shared, rows)


def _layout(
    config: KernelConfig, dtype: DTypeLike, rows: int, backward: bool
) -> _Layout:
    """Layout of a kernel for so many rows of the batch."""
    heads, tiling, terms = config.heads, config.tiling, config.terms
    shared = _shared_operands(config, dtype)
    batched = _batched_operands(config, dtype, rows)

    def scratch(*shape: int) -> pl.MemoryRef:
        return pltpu.VMEM(shape, jnp.float32)

    def per_head(lanes: int) -> pl.MemoryRef:
        return scratch(heads.group, tiling.queries, lanes)

    # Terms per query and offset, and their bands.
    by_offset = per_head(terms.width + LANES)
    logit_terms = by_offset if terms.has_logit_terms else None
    value_terms = by_offset if terms.has_value_terms else None
    document_ids = scratch(tiling.queries, LANES) if config.packed else None
    if not backward:
        top, total, sums = per_head(LANES), per_head(LANES), per_head(heads.size)
        return _Layout(
            inputs=(shared, batched._replace(out=None, log_sum=None, grad=None)),
            outputs=(batched.out, batched.log_sum),
            scratch=(top, total, sums, logit_terms, value_terms, document_ids),
        )
    shared = shared._replace(sink=None)

    def of_each_row(operand: _Operand) -> _Operand:
        """A gradient for each row of the batch: the kernel runs on some, others elsewhere."""
        block, place = operand.block, operand.place
        assert block is not None and place is not None
        in_row = lambda b, *steps: (b, *place(b, *steps))
        return _Operand((rows, *operand.shape), (1, *block), in_row)

    all_keys = tiling.key_tiles * tiling.keys
    kv_lanes = heads.kv_group * heads.size
    dk = dataclasses.replace(
        batched.k, block=(1, all_keys, kv_lanes), place=lambda b, h, i, j: (b, 0, h)
    )
    dshared = jax.tree.map(of_each_row, shared._replace(seed=None))
    dq_sum = per_head(heads.size)
    dk_sum = scratch(all_keys, kv_lanes)
    log_sum = mean = per_head(LANES)
    bias_band = None
    if terms.long_bias:
        bias_band = scratch(heads.group, LANES, config.bias_lanes)
    terms_and_bands = logit_terms, value_terms, logit_terms, value_terms
    drows = Batched(
        numbers=None, mask=None, q=batched.q, k=dk, v=dk, content=batched.content
    )
    return _Layout(
        inputs=(shared, batched),
        outputs=(dshared, drows),
        scratch=(
            *(dq_sum, dk_sum, dk_sum, log_sum, mean),
            *terms_and_bands,
            bias_band,
            document_ids,
        ),
    )


def _shared_operands(config: KernelConfig, dtype: DTypeLike) -> Shared:
    heads, terms = config.heads, config.terms

    def table(count: int, rows: int) -> _Operand | None:
        if not count:
            return None
        table_shape = rows, heads.size
        return _Operand(
            shape=(count, *table_shape),
            block=(min(count, heads.group), *table_shape),
            place=lambda b, h, i, j: (h if count > 1 else 0, 0, 0),
            dtype=dtype,
        )

    bias = None
    if config.bias_lanes:
        block = heads.group, config.bias_lanes
        bias = _Operand(
            shape=(heads.total // heads.group, *block),
            block=(1, *block),
            place=lambda b, h, i, j: (h, 0, 0),
        )
    return Shared(
        seed=_Operand((2,), dtype=jnp.uint32),
        key_table=table(terms.key_tables, terms.width),
        bias=bias,
        value_table=table(terms.value_tables, terms.width),
        query_table=table(terms.query_tables, config.all_offsets),
        sink=_Operand((heads.total,)) if config.sink else None,
    )


def _batched_operands(config: KernelConfig, dtype: DTypeLike, rows: int) -> Batched:
    """Inputs of the backward kernel; the forward kernel's outputs are among them."""
    heads, tiling = config.heads, config.tiling
    all_queries = tiling.query_tiles * tiling.queries
    all_keys = tiling.key_tiles * tiling.keys

    def key_tile(i, j):
        """Past the last tile of the window it stays, and so is not loaded again."""
        first, end = tiling.key_tile_range(i)
        return jnp.clip(jnp.minimum(first + j, end - 1), 0, tiling.key_tiles - 1)

    queries = _Operand(
        shape=(rows, all_queries, heads.total * heads.size),
        block=(1, tiling.queries, heads.group * heads.size),
        place=lambda b, h, i, j: (b, i, h),
        dtype=dtype,
    )
    keys = _Operand(
        shape=(rows, all_keys, heads.kv_total * heads.size),
        block=(1, tiling.keys, heads.kv_group * heads.size),
        place=lambda b, h, i, j: (b, key_tile(i, j), h),
        dtype=dtype,
    )
    per_query = _Operand(
        shape=(rows, 1, all_queries),
        block=(1, 1, tiling.queries),
        place=lambda b, h, i, j: (b, 0, i),
    )
    per_key = _Operand(
        shape=(rows, 1, all_keys),
        block=(1, 1, tiling.keys),
        place=lambda b, h, i, j: (b, 0, key_tile(i, j)),
    )
    log_sum = _Operand(
        shape=(rows, heads.total // heads.group, heads.group, all_queries),
        block=(1, 1, heads.group, tiling.queries),
        place=lambda b, h, i, j: (b, h, 0, i),
    )
    documents = None
    if config.packed:
        tiles = _Operand((rows, 2, tiling.query_tiles), dtype=jnp.int32)
        documents = Documents(ids_q=per_query, ids_k=per_key, tiles=tiles)
    return Batched(
        numbers=_Operand((rows,), dtype=jnp.uint32),
        mask=per_key,
        q=queries,
        k=keys,
        v=keys,
        content=queries if config.content else None,
        out=queries,
        log_sum=log_sum,
        grad=queries,
        documents=documents,
    )


def _memory(config: KernelConfig, layout: _Layout) -> int:
    """Bytes on the chip: scratch, two buffers for each block that comes or goes, temporaries."""
    moving = sum(
        2 * _tiled_bytes(operand.block, operand.dtype)
        for operand in jax.tree.leaves((layout.inputs, layout.outputs))
        if operand.block
    )
    scratch = sum(
        _tiled_bytes(x.shape, x.dtype) for x in layout.scratch if x is not None
    )
    skewed = 0
    if config.terms.has_logit_terms or config.terms.has_value_terms:
        # Four arrays in float32: `skew`, `unskew` and their matmuls.
        skewed = 4 * 4 * config.tiling.queries * config.terms.width
    if config.terms.query_tables:
        # As many of `key_terms` and its transpose.
        tile_offsets = config.tiling.queries + config.tiling.keys
        skewed += 4 * 4 * config.tiling.keys * tile_offsets
    return _TEMPORARIES + skewed + scratch + moving


def _tiled_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Memory of an array, the last two axes padded to registers."""
    size = jnp.dtype(dtype).itemsize
    sublanes = 32 // size
    *others, rows, lanes = shape
    padded_rows = -(-rows // sublanes) * sublanes
    padded_lanes = -(-lanes // LANES) * LANES
    return math.prod(others) * padded_rows * padded_lanes * size


def _cost(config: KernelConfig, layout: _Layout, backward: bool) -> pl.CostEstimate:
    """The cost that is reported to XLA's scheduler."""
    shared, rows = layout.inputs
    heads, tiling, terms = config.heads, config.tiling, config.terms
    tiles = sum(tiling.attended_tiles)
    programs = rows.q.shape[0] * heads.total
    pairs = programs * tiles * tiling.queries * tiling.keys
    # Of products of queries and a table, and of bands that are unskewed.
    per_query = 0
    if terms.key_tables:
        per_query += (3 if backward else 1) * heads.size
    if terms.has_logit_terms and backward:
        per_query += 2 * LANES
    if terms.has_value_terms:
        per_query += (2 if backward else 1) * heads.size + 2 * LANES
    products = (5 if backward else 2) * pairs * heads.size
    if terms.query_tables:
        # Of keys and the table, and three times 128 rows that are reversed.
        tile_offsets = tiling.queries + tiling.keys
        per_offset = programs * tiles * tiling.keys * tile_offsets * heads.size
        products += (3 if backward else 1) * per_offset
        if backward:
            per_key = tiling.queries + 2 * heads.size
            products += programs * tiles * tiling.keys * LANES * per_key
    products += programs * tiling.query_tiles * tiling.queries * terms.width * per_query
    # Tiles of keys are loaded for each tile of queries, but for one that is all there is.
    loaded = tiles / tiling.key_tiles if tiling.key_tiles > 1 else 1

    def size(*operands: Any) -> int:
        arrays = [operand.array for operand in jax.tree.leaves(operands)]
        return sum(x.size * x.dtype.itemsize for x in arrays)

    loaded_bytes = int(loaded * size(rows.k, rows.v))
    other_bytes = size(shared, rows._replace(k=None, v=None), layout.outputs)
    return pl.CostEstimate(
        flops=2 * products,
        bytes_accessed=other_bytes + loaded_bytes,
        transcendentals=pairs,
    )
