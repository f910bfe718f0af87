"""The kernels as calls: blocks of the arrays, memory on the chip, and what the work costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pe_jax.attention.tpu_kernel import kernels
from pe_jax.attention.tpu_kernel.kernels import (
    BackwardState,
    Batched,
    ForwardState,
    Shared,
)
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig

_TEMPORARIES = 12 * 2**20  # Bytes on the chip for intermediate results of a tile of 512 × 512.

_ANY, _IN_TURN = pltpu.GridDimensionSemantics.PARALLEL, pltpu.GridDimensionSemantics.ARBITRARY

Shape = jax.ShapeDtypeStruct


class KernelProgram(NamedTuple):
    """A kernel and all that its call needs besides the inputs.

    Attributes:
      body: takes the config, inputs, outputs and state.
      inputs, outputs: block specs in the structure of the arrays.
      shapes: of the outputs.
      state: scratch memory.
      parallel: how many of the grid's axes may run in any order, from the first.
      products: of queries and keys that attend, for the cost, as are the following.
      key_products, value_products: of queries and a table.
      logit_unskews, value_unskews: how many times bands are unskewed.
    """

    body: Callable
    inputs: tuple
    outputs: tuple
    shapes: tuple
    state: ForwardState | BackwardState
    parallel: int
    products: int
    key_products: int
    value_products: int
    logit_unskews: int
    value_unskews: int


def forward(config: KernelConfig, shared: Shared, rows: Batched) -> tuple[jax.Array, jax.Array]:
    """The output [B, Lq, H · d], and `log_sum` of `Batched`."""
    return _run(_forward_program(config, rows), config, shared, rows)


def backward(config: KernelConfig, shared: Shared, rows: Batched) -> tuple[Shared, Batched]:
    """Gradients for rows that have `out`, `log_sum` and `grad` as well.

    Those of the tables are [B, 1 or H, width, d], of the bias [B, H / group, group, width].
    """
    return _run(_backward_program(config, rows), config, shared, rows)


def on_chip_bytes(config: KernelConfig, dtype: DTypeLike) -> int:
    """Memory on the chip that the backward kernel needs, the larger of the two."""
    shared, rows = _abstract_inputs(config, jnp.dtype(dtype))
    return _memory(_backward_program(config, rows), config, (shared, rows))


def _forward_program(config: KernelConfig, rows: Batched) -> KernelProgram:
    specs, per_head = _Specs(config), functools.partial(_scratch, config.group, config.queries)
    return KernelProgram(
        body=kernels.forward_kernel,
        inputs=(specs.shared, specs.rows._replace(out=None, log_sum=None, grad=None)),
        outputs=(specs.queries, specs.log_sum),
        shapes=(Shape(rows.q.shape, rows.v.dtype), _log_sum(config, len(rows.q))),
        state=ForwardState(
            top=per_head(LANES),
            total=per_head(LANES),
            out=per_head(config.size),
            terms=per_head(config.width + LANES) if config.logit_terms else None,
            bands=per_head(config.width + LANES) if config.value_terms else None,
        ),
        parallel=3,
        products=2,
        key_products=1,
        value_products=1,
        logit_unskews=0,
        value_unskews=1,
    )


def _backward_program(config: KernelConfig, rows: Batched) -> KernelProgram:
    specs, per_head = _Specs(config), functools.partial(_scratch, config.group, config.queries)
    logit_terms = per_head(config.width + LANES) if config.logit_terms else None
    value_terms = per_head(config.width + LANES) if config.value_terms else None
    all_keys = _scratch(config.key_tiles * config.keys, config.group * config.size)
    shared, _ = _abstract_inputs(config, rows.q.dtype)

    def by_row(x: Shape) -> Shape:
        """A gradient for each row of the batch: the kernel runs on some rows, others elsewhere."""
        return Shape((len(rows.q), *x.shape), jnp.float32)

    dshared = jax.tree.map(by_row, shared._replace(seed=None))
    q, k, v = (Shape(x.shape, x.dtype) for x in (rows.q, rows.k, rows.v))
    return KernelProgram(
        body=kernels.backward_kernel,
        inputs=(specs.shared, specs.rows),
        outputs=(specs.dshared, specs.drows),
        shapes=(dshared, Batched(None, None, q, k, v)),
        state=BackwardState(
            dq=per_head(config.size),
            dk=all_keys,
            dv=all_keys,
            log_sum=per_head(LANES),
            mean=per_head(LANES),
            logit_terms=logit_terms,
            value_terms=value_terms,
            logit_bands=logit_terms,
            value_bands=value_terms,
        ),
        parallel=1,
        products=5,
        key_products=3,
        value_products=2,
        logit_unskews=1,
        value_unskews=1,
    )


def _run(program: KernelProgram, config: KernelConfig, shared: Shared, rows: Batched) -> tuple:
    """Runs a kernel for each (row of the batch, group of heads, tile of queries, of keys)."""
    grid = len(rows.q), config.heads // config.group, config.query_tiles, config.key_steps
    order = [_ANY if axis < program.parallel else _IN_TURN for axis in range(len(grid))]
    return pl.pallas_call(
        functools.partial(program.body, config),
        grid=grid,
        in_specs=program.inputs,
        out_specs=program.outputs,
        out_shape=program.shapes,
        scratch_shapes=[program.state],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order,
            vmem_limit_bytes=_memory(program, config, (shared, rows)),
        ),
        cost_estimate=_cost(program, config, shared, rows),
        interpret=config.interpret,
    )(shared, rows)


class _Specs:
    """Which block of each array a program gets."""

    def __init__(self, config: KernelConfig):
        lanes, all_keys = config.group * config.size, config.key_tiles * config.keys
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)

        def key_tile(i, j):
            """Past the last tile of the window it stays, and so is not loaded again."""
            first, end = config.window(i)
            return jnp.clip(jnp.minimum(first + j, end - 1), 0, config.key_tiles - 1)

        def table(count: int) -> tuple[pl.BlockSpec | None, pl.BlockSpec | None]:
            """Of a table, and of its gradient."""
            if not count:
                return None, None
            block = min(count, config.group), config.width, config.size
            at = lambda h: (h if count > 1 else 0, 0, 0)
            return (
                pl.BlockSpec(block, lambda b, h, i, j: at(h)),
                pl.BlockSpec((1, *block), lambda b, h, i, j: (b, *at(h))),
            )

        bias = dbias = None
        if config.bias:
            block = 1, config.group, config.width
            bias = pl.BlockSpec(block, lambda b, h, i, j: (h, 0, 0))
            dbias = pl.BlockSpec((1, *block), lambda b, h, i, j: (b, h, 0, 0))
        key_table, dkey_table = table(config.key_tables)
        value_table, dvalue_table = table(config.value_tables)
        self.queries = pl.BlockSpec((1, config.queries, lanes), lambda b, h, i, j: (b, i, h))
        self.log_sum = pl.BlockSpec(
            (1, 1, config.group, config.queries), lambda b, h, i, j: (b, h, 0, i)
        )
        keys = pl.BlockSpec((1, config.keys, lanes), lambda b, h, i, j: (b, key_tile(i, j), h))
        mask = pl.BlockSpec((1, 1, config.keys), lambda b, h, i, j: (b, 0, key_tile(i, j)))
        whole = pl.BlockSpec((1, all_keys, lanes), lambda b, h, i, j: (b, 0, h))
        self.shared = Shared(scalars, key_table, bias, value_table)
        self.rows = Batched(
            scalars, mask, self.queries, keys, keys, self.queries, self.log_sum, self.queries
        )
        self.dshared = Shared(None, dkey_table, dbias, dvalue_table)
        self.drows = Batched(None, None, self.queries, whole, whole)


def _scratch(*shape: int) -> pl.MemoryRef:
    return pltpu.VMEM(shape, jnp.float32)


def _log_sum(config: KernelConfig, rows: int) -> Shape:
    groups = config.heads // config.group
    return Shape((rows, groups, config.group, config.query_tiles * config.queries), jnp.float32)


def _abstract_inputs(
    config: KernelConfig, dtype: DTypeLike, rows: int = 1
) -> tuple[Shared, Batched]:
    """The inputs' shapes."""

    def table(count: int) -> Shape | None:
        return Shape((count, config.width, config.size), dtype) if count else None

    of_keys = config.key_tiles * config.keys
    q = Shape((rows, config.query_tiles * config.queries, config.heads * config.size), dtype)
    k = Shape((rows, of_keys, config.heads * config.size), dtype)
    bias = Shape((config.heads // config.group, config.group, config.width), jnp.float32)
    shared = Shared(
        Shape((2,), jnp.uint32),
        table(config.key_tables),
        bias if config.bias else None,
        table(config.value_tables),
    )
    mask = Shape((rows, 1, of_keys), jnp.float32)
    return shared, Batched(Shape((rows,), jnp.uint32), mask, q, k, k, q, _log_sum(config, rows), q)


def _memory(program: KernelProgram, config: KernelConfig, inputs: tuple) -> int:
    """Bytes on the chip: scratch, two buffers for each block that comes or goes, temporaries."""
    blocks = zip(
        jax.tree.leaves((program.inputs, program.outputs)),
        jax.tree.leaves((inputs, program.shapes)),
        strict=True,
    )
    moving = sum(
        2 * _tiled_bytes(spec.block_shape, x.dtype) for spec, x in blocks if spec.block_shape
    )
    kept = sum(_tiled_bytes(x.shape, x.dtype) for x in jax.tree.leaves(program.state))
    has_terms = config.logit_terms or config.value_terms
    wide = 4 * config.queries * 4 * config.width * has_terms  # `skew`, `unskew` and their matmuls.
    return _TEMPORARIES + wide + kept + moving


def _tiled_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Memory of an array, the last two axes padded to registers."""
    size = jnp.dtype(dtype).itemsize
    rows, lanes = -(-shape[-2] // (32 // size)) * (32 // size), -(-shape[-1] // LANES) * LANES
    return math.prod(shape[:-2]) * rows * lanes * size


def _cost(
    program: KernelProgram, config: KernelConfig, shared: Shared, rows: Batched
) -> pl.CostEstimate:
    """What XLA's scheduler is told of a kernel."""
    tiles = config.attended_tiles
    heads = len(rows.q) * config.heads
    pairs = heads * sum(tiles) * config.queries * config.keys
    per_query = config.value_terms * program.value_unskews * 2 * LANES
    per_query += config.logit_terms * program.logit_unskews * 2 * LANES
    per_query += bool(config.key_tables) * program.key_products * config.size
    per_query += config.value_terms * program.value_products * config.size
    flops = program.products * pairs * config.size
    flops += heads * config.query_tiles * config.queries * config.width * per_query
    # Tiles of keys are loaded for each tile of queries, but for one that is all there is.
    loaded = sum(tiles) / config.key_tiles if config.key_tiles > 1 else 1
    arrays = jax.tree.leaves((shared, rows._replace(k=None, v=None), program.shapes))
    size = lambda x: x.size * x.dtype.itemsize
    return pl.CostEstimate(
        flops=2 * flops,
        bytes_accessed=sum(map(size, arrays)) + int(loaded * (size(rows.k) + size(rows.v))),
        transcendentals=pairs,
    )
