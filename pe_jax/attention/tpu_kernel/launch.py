"""Calls of the kernels: blocks of the arrays, memory on the chip, and the cost."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pe_jax.attention.tpu_kernel.kernels import Batched, Shared, backward_kernel, forward_kernel
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig

_TEMPORARIES = 12 * 2**20  # Bytes on the chip for intermediate results of a tile of 512 × 512.

_ANY, _IN_TURN = pltpu.GridDimensionSemantics.PARALLEL, pltpu.GridDimensionSemantics.ARBITRARY

Shape = jax.ShapeDtypeStruct
# Of a kernel: block specs of the inputs and of the outputs in the structure of the arrays, shapes
# of the outputs, scratch memory.
Layout = tuple[Any, Any, Any, tuple[pl.MemoryRef | None, ...]]


def forward(config: KernelConfig, shared: Shared, rows: Batched) -> tuple[jax.Array, jax.Array]:
    """The output [B, Lq, H · d], and `log_sum` of `Batched`."""
    return _run(config, shared, rows, backward=False)


def backward(config: KernelConfig, shared: Shared, rows: Batched) -> tuple[Shared, Batched]:
    """Gradients for rows that have `out`, `log_sum` and `grad` as well.

    Those of the tables are [B, 1 or H, width, d], of the bias [B, H / group, group, lanes].
    """
    return _run(config, shared._replace(sink=None), rows, backward=True)


def on_chip_bytes(config: KernelConfig, dtype: DTypeLike) -> int:
    """Memory on the chip that the backward kernel needs, the larger of the two."""
    inputs = _abstract_inputs(config, jnp.dtype(dtype))
    return _memory(config, inputs, _layout(config, inputs[1], backward=True))


def _run(config: KernelConfig, shared: Shared, rows: Batched, *, backward: bool) -> tuple:
    """Run a kernel for each (row of the batch, group of heads, tile of queries, of keys)."""
    layout = _layout(config, rows, backward)
    inputs, outputs, shapes, scratch = layout
    order = (_ANY, *[_IN_TURN if backward else _ANY] * 2, _IN_TURN)
    return pl.pallas_call(
        functools.partial(backward_kernel if backward else forward_kernel, config),
        grid=(len(rows.q), config.heads // config.group, config.query_tiles, config.key_steps),
        in_specs=inputs,
        out_specs=outputs,
        out_shape=shapes,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order,
            vmem_limit_bytes=_memory(config, (shared, rows), layout),
        ),
        cost_estimate=_cost(config, shared, rows, shapes, backward),
        interpret=config.interpret,
    )(shared, rows)


def _layout(config: KernelConfig, rows: Batched, backward: bool) -> Layout:
    lanes, kv_lanes = config.group * config.size, config.kv_group * config.size
    all_keys = config.key_tiles * config.keys

    def key_tile(i, j):
        """Past the last tile of the window it stays, and so is not loaded again."""
        first, end = config.window(i)
        return jnp.clip(jnp.minimum(first + j, end - 1), 0, config.key_tiles - 1)

    def table(count: int) -> tuple[pl.BlockSpec | None, pl.BlockSpec | None]:
        """The blocks of a table and of its gradient."""
        if not count:
            return None, None
        block = min(count, config.group), config.width, config.size
        return (
            pl.BlockSpec(block, lambda b, h, i, j: (h if count > 1 else 0, 0, 0)),
            pl.BlockSpec((1, *block), lambda b, h, i, j: (b, h if count > 1 else 0, 0, 0)),
        )

    bias = dbias = None
    if config.bias_lanes:
        block = 1, config.group, config.bias_lanes
        bias = pl.BlockSpec(block, lambda b, h, i, j: (h, 0, 0))
        dbias = pl.BlockSpec((1, *block), lambda b, h, i, j: (b, h, 0, 0))
    key_table, dkey_table = table(config.key_tables)
    value_table, dvalue_table = table(config.value_tables)
    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    queries = pl.BlockSpec((1, config.queries, lanes), lambda b, h, i, j: (b, i, h))
    keys = pl.BlockSpec((1, config.keys, kv_lanes), lambda b, h, i, j: (b, key_tile(i, j), h))
    whole = pl.BlockSpec((1, all_keys, kv_lanes), lambda b, h, i, j: (b, 0, h))
    mask = pl.BlockSpec((1, 1, config.keys), lambda b, h, i, j: (b, 0, key_tile(i, j)))
    document_ids: dict[str, pl.BlockSpec] = {}
    if config.packed:
        document_ids["document_ids_q"] = pl.BlockSpec(
            (1, 1, config.queries), lambda b, h, i, j: (b, 0, i)
        )
        document_ids |= {"document_ids_k": mask, "tiles": scalars}
    sums = pl.BlockSpec((1, 1, config.group, config.queries), lambda b, h, i, j: (b, h, 0, i))

    def scratch(*shape: int) -> pl.MemoryRef:
        return pltpu.VMEM(shape, jnp.float32)

    per_head = functools.partial(scratch, config.group, config.queries)
    logit_terms = per_head(config.width + LANES) if config.logit_terms else None
    value_terms = per_head(config.width + LANES) if config.value_terms else None
    column = scratch(config.queries, LANES) if config.packed else None
    long_bias = scratch(config.group, LANES, config.bias_lanes) if config.long_bias else None
    shared_specs = Shared(scalars, key_table, bias, value_table)
    if not backward:
        return (
            (
                shared_specs._replace(sink=scalars if config.sink else None),
                Batched(scalars, mask, queries, keys, keys, **document_ids),
            ),
            (queries, sums),
            (Shape(rows.q.shape, rows.v.dtype), _log_sum(config, len(rows.q))),
            (
                per_head(LANES),
                per_head(LANES),
                per_head(config.size),
                logit_terms,
                value_terms,
                column,
            ),
        )
    shared, _ = _abstract_inputs(config, rows.q.dtype)
    # A gradient for each row of the batch: the kernel runs on some rows, others elsewhere.
    dshared = jax.tree.map(
        lambda x: Shape((len(rows.q), *x.shape), jnp.float32), shared._replace(seed=None)
    )
    q, k, v = (Shape(x.shape, x.dtype) for x in (rows.q, rows.k, rows.v))
    all_kv = scratch(all_keys, kv_lanes)
    return (
        (
            shared_specs,
            Batched(scalars, mask, queries, keys, keys, queries, sums, queries, **document_ids),
        ),
        (Shared(None, dkey_table, dbias, dvalue_table), Batched(None, None, queries, whole, whole)),
        (dshared, Batched(None, None, q, k, v)),
        (
            per_head(config.size),
            all_kv,
            all_kv,
            per_head(LANES),
            per_head(LANES),
            *(logit_terms, value_terms) * 2,
            long_bias,
            column,
        ),
    )


def _log_sum(config: KernelConfig, rows: int) -> Shape:
    groups = config.heads // config.group
    return Shape((rows, groups, config.group, config.query_tiles * config.queries), jnp.float32)


def _abstract_inputs(config: KernelConfig, dtype: DTypeLike) -> tuple[Shared, Batched]:
    """The inputs' shapes, of one row."""

    def table(count: int) -> Shape | None:
        return Shape((count, config.width, config.size), dtype) if count else None

    all_keys = config.key_tiles * config.keys
    q = Shape((1, config.query_tiles * config.queries, config.heads * config.size), dtype)
    k = Shape((1, all_keys, config.kv_heads * config.size), dtype)
    bias = Shape((config.heads // config.group, config.group, config.bias_lanes), jnp.float32)
    shared = Shared(
        Shape((2,), jnp.uint32),
        table(config.key_tables),
        bias if config.bias_lanes else None,
        table(config.value_tables),
    )
    mask = Shape((1, 1, all_keys), jnp.float32)
    rows = Batched(Shape((1,), jnp.uint32), mask, q, k, k, q, _log_sum(config, 1), q)
    if config.packed:
        rows = rows._replace(
            document_ids_q=Shape((1, 1, q.shape[1]), jnp.float32),
            document_ids_k=mask,
            tiles=Shape((1, 2, config.query_tiles), jnp.int32),
        )
    return shared, rows


def _memory(config: KernelConfig, inputs: tuple[Shared, Batched], layout: Layout) -> int:
    """Bytes on the chip: scratch, two buffers for each block that comes or goes, temporaries."""
    specs, out_specs, shapes, scratch = layout
    blocks, arrays = jax.tree.leaves((specs, out_specs)), jax.tree.leaves((inputs, shapes))
    moving = sum(
        2 * _tiled_bytes(spec.block_shape, x.dtype)
        for spec, x in zip(blocks, arrays, strict=True)
        if spec.block_shape
    )
    scratch_bytes = sum(_tiled_bytes(x.shape, x.dtype) for x in scratch if x is not None)
    has_terms = config.logit_terms or config.value_terms
    wide = 4 * config.queries * 4 * config.width * has_terms  # `skew`, `unskew` and their matmuls.
    return _TEMPORARIES + wide + scratch_bytes + moving


def _tiled_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Memory of an array, the last two axes padded to registers."""
    size = jnp.dtype(dtype).itemsize
    rows, lanes = -(-shape[-2] // (32 // size)) * (32 // size), -(-shape[-1] // LANES) * LANES
    return math.prod(shape[:-2]) * rows * lanes * size


def _cost(
    config: KernelConfig, shared: Shared, rows: Batched, shapes: Any, backward: bool
) -> pl.CostEstimate:
    """The cost that is reported to XLA's scheduler."""
    tiles = config.attended_tiles
    heads = len(rows.q) * config.heads
    pairs = heads * sum(tiles) * config.queries * config.keys
    # Of products of queries and a table, and of bands that are unskewed.
    per_query = bool(config.key_tables) * (3 if backward else 1) * config.size
    per_query += config.logit_terms * (1 if backward else 0) * 2 * LANES
    per_query += config.value_terms * ((2 if backward else 1) * config.size + 2 * LANES)
    flops = (5 if backward else 2) * pairs * config.size
    flops += heads * config.query_tiles * config.queries * config.width * per_query
    # Tiles of keys are loaded for each tile of queries, but for one that is all there is.
    loaded = sum(tiles) / config.key_tiles if config.key_tiles > 1 else 1

    def size(*arrays: Any) -> int:
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))

    return pl.CostEstimate(
        flops=2 * flops,
        bytes_accessed=size(shared, rows._replace(k=None, v=None), shapes)
        + int(loaded * size(rows.k, rows.v)),
        transcendentals=pairs,
    )
