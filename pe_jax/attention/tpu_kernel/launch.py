"""Calls of the kernels: blocks of the arrays, memory on the chip, and the cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pe_jax.attention.tpu_kernel.kernels import (
    Batched,
    Shared,
    backward_kernel,
    forward_kernel,
)
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig

_TEMPORARIES = (
    12 * 2**20
)  # Bytes on the chip for intermediate results of a tile of 512 × 512.

_ANY, _IN_TURN = (
    pltpu.GridDimensionSemantics.PARALLEL,
    pltpu.GridDimensionSemantics.ARBITRARY,
)


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


# Of a kernel: inputs and outputs, in the structure of the arrays, and scratch memory.
_Layout = tuple[Any, Any, tuple[pl.MemoryRef | None, ...]]


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
    shared = shared._replace(sink=None) if backward else shared
    layout = _layout(config, rows.q.dtype, len(rows.q), backward)
    inputs, outputs, scratch = layout
    order = (_ANY, *[_IN_TURN if backward else _ANY] * 2, _IN_TURN)
    return pl.pallas_call(
        functools.partial(backward_kernel if backward else forward_kernel, config),
        grid=(
            len(rows.q),
            config.heads // config.group,
            config.query_tiles,
            config.key_steps,
        ),
        in_specs=jax.tree.map(lambda operand: operand.spec, inputs),
        out_specs=jax.tree.map(lambda operand: operand.spec, outputs),
        out_shape=jax.tree.map(lambda operand: operand.array, outputs),
        scratch_shapes=scratch,
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
    shared, batched = (
        _shared_operands(config, dtype),
        _batched_operands(config, dtype, rows),
    )

    def scratch(*shape: int) -> pl.MemoryRef:
        return pltpu.VMEM(shape, jnp.float32)

    per_head = functools.partial(scratch, config.group, config.queries)
    logit_terms = per_head(config.width + LANES) if config.logit_terms else None
    value_terms = per_head(config.width + LANES) if config.value_terms else None
    column = scratch(config.queries, LANES) if config.packed else None
    if not backward:
        running = per_head(LANES), per_head(LANES), per_head(config.size)
        inputs = shared, batched._replace(out=None, log_sum=None, grad=None)
        outputs = batched.out, batched.log_sum
        return inputs, outputs, (*running, logit_terms, value_terms, column)
    shared = shared._replace(sink=None)

    def of_each_row(operand: _Operand) -> _Operand:
        """A gradient for each row of the batch: the kernel runs on some, others elsewhere."""
        block, place = operand.block, operand.place
        assert block is not None and place is not None
        in_row = lambda b, *steps: (b, *place(b, *steps))
        return _Operand((rows, *operand.shape), (1, *block), in_row)

    all_keys, kv_lanes = config.key_tiles * config.keys, config.kv_group * config.size
    block, place = (1, all_keys, kv_lanes), lambda b, h, i, j: (b, 0, h)
    dk = dataclasses.replace(batched.k, block=block, place=place)
    dshared = jax.tree.map(of_each_row, shared._replace(seed=None))
    sums = (
        per_head(config.size),
        *[scratch(all_keys, kv_lanes)] * 2,
        *[per_head(LANES)] * 2,
    )
    long_bias = (
        scratch(config.group, LANES, config.bias_lanes) if config.long_bias else None
    )
    return (
        (shared, batched),
        (dshared, Batched(None, None, batched.q, dk, dk)),
        (*sums, *(logit_terms, value_terms) * 2, long_bias, column),
    )


def _shared_operands(config: KernelConfig, dtype: DTypeLike) -> Shared:
    def table(count: int) -> _Operand | None:
        if not count:
            return None
        width, size = config.width, config.size
        block = min(count, config.group), width, size
        place = lambda b, h, i, j: (h if count > 1 else 0, 0, 0)
        return _Operand((count, width, size), block, place, dtype)

    bias = None
    if config.bias_lanes:
        block = config.group, config.bias_lanes
        shape = config.heads // config.group, *block
        bias = _Operand(shape, (1, *block), lambda b, h, i, j: (h, 0, 0))
    return Shared(
        seed=_Operand((2,), dtype=jnp.uint32),
        key_table=table(config.key_tables),
        bias=bias,
        value_table=table(config.value_tables),
        sink=_Operand((config.heads,)) if config.sink else None,
    )


def _batched_operands(config: KernelConfig, dtype: DTypeLike, rows: int) -> Batched:
    """Inputs of the backward kernel; the forward kernel's outputs are among them."""
    all_queries, all_keys = (
        config.query_tiles * config.queries,
        config.key_tiles * config.keys,
    )
    groups, lanes = config.heads // config.group, config.group * config.size

    def key_tile(i, j):
        """Past the last tile of the window it stays, and so is not loaded again."""
        first, end = config.key_tile_range(i)
        return jnp.clip(jnp.minimum(first + j, end - 1), 0, config.key_tiles - 1)

    queries = _Operand(
        (rows, all_queries, config.heads * config.size),
        (1, config.queries, lanes),
        lambda b, h, i, j: (b, i, h),
        dtype,
    )
    keys = _Operand(
        (rows, all_keys, config.kv_heads * config.size),
        (1, config.keys, config.kv_group * config.size),
        lambda b, h, i, j: (b, key_tile(i, j), h),
        dtype,
    )
    mask = _Operand(
        (rows, 1, all_keys),
        (1, 1, config.keys),
        lambda b, h, i, j: (b, 0, key_tile(i, j)),
    )
    log_sum = _Operand(
        (rows, groups, config.group, all_queries),
        (1, 1, config.group, config.queries),
        lambda b, h, i, j: (b, h, 0, i),
    )
    batched = Batched(
        _Operand((rows,), dtype=jnp.uint32),
        mask,
        queries,
        keys,
        keys,
        queries,
        log_sum,
        queries,
    )
    if not config.packed:
        return batched
    return batched._replace(
        document_ids_q=_Operand(
            (rows, 1, all_queries), (1, 1, config.queries), lambda b, h, i, j: (b, 0, i)
        ),
        document_ids_k=mask,
        tiles=_Operand((rows, 2, config.query_tiles), dtype=jnp.int32),
    )


def _memory(config: KernelConfig, layout: _Layout) -> int:
    """Bytes on the chip: scratch, two buffers for each block that comes or goes, temporaries."""
    inputs, outputs, scratch = layout
    moving = sum(
        2 * _tiled_bytes(operand.block, operand.dtype)
        for operand in jax.tree.leaves((inputs, outputs))
        if operand.block
    )
    scratch_bytes = sum(
        _tiled_bytes(x.shape, x.dtype) for x in scratch if x is not None
    )
    has_terms = config.logit_terms or config.value_terms
    wide = (
        4 * config.queries * 4 * config.width * has_terms
    )  # `skew`, `unskew` and their matmuls.
    return _TEMPORARIES + wide + scratch_bytes + moving


def _tiled_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Memory of an array, the last two axes padded to registers."""
    size = jnp.dtype(dtype).itemsize
    rows, lanes = (
        -(-shape[-2] // (32 // size)) * (32 // size),
        -(-shape[-1] // LANES) * LANES,
    )
    return math.prod(shape[:-2]) * rows * lanes * size


def _cost(config: KernelConfig, layout: _Layout, backward: bool) -> pl.CostEstimate:
    """The cost that is reported to XLA's scheduler."""
    (shared, rows), outputs, _ = layout
    tiles = config.attended_tiles
    heads = rows.q.shape[0] * config.heads
    pairs = heads * sum(tiles) * config.queries * config.keys
    # Of products of queries and a table, and of bands that are unskewed.
    per_query = bool(config.key_tables) * (3 if backward else 1) * config.size
    per_query += config.logit_terms * (1 if backward else 0) * 2 * LANES
    per_query += config.value_terms * ((2 if backward else 1) * config.size + 2 * LANES)
    flops = (5 if backward else 2) * pairs * config.size
    flops += heads * config.query_tiles * config.queries * config.width * per_query
    # Tiles of keys are loaded for each tile of queries, but for one that is all there is.
    loaded = sum(tiles) / config.key_tiles if config.key_tiles > 1 else 1

    def size(*operands: Any) -> int:
        arrays = [operand.array for operand in jax.tree.leaves(operands)]
        return sum(x.size * x.dtype.itemsize for x in arrays)

    return pl.CostEstimate(
        flops=2 * flops,
        bytes_accessed=size(shared, rows._replace(k=None, v=None), outputs)
        + int(loaded * size(rows.k, rows.v)),
        transcendentals=pairs,
    )
