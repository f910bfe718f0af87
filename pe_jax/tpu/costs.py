"""Seconds and bytes of a program compiled for a TPU, from the compiler's output.

The time is an estimate: nothing has run. Most of it is the compiler's own, in cycles. What the
compiler does not estimate is bounded from below by the chip's published rates:

- a custom kernel takes max(FLOPs / peak, bytes / memory bandwidth);
- any other instruction, such as a gather, the time to read its operands and write its result once;
- a collective, the bytes that each chip of a ring sends, over the bandwidth of the links that a
  chip in a corner of the slice has: one along each axis, two where the slice is a torus.

Collectives and copies that overlap with the computation are counted but take no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax

from pe_jax.files import Json
from pe_jax.tpu.hlo import Work
from pe_jax.training.chips import Tpu
from pe_jax.training.pytrees import PyTree
from pe_jax.training.step import TrainState

# How often the payload crosses a chip's links in a ring: once to be reduced, once to be gathered.
_PASSES = {"all-reduce": 2}


def seconds(work: Iterable[Work], tpu: Tpu, shape: tuple[int, ...]) -> dict[str, float]:
    """Estimated time of one run by kind of work; the step takes their sum.

    Args:
      work: see `hlo.read`.
      shape: chips along the axes of the slice.

    Returns:
      `estimated` by the compiler; lower bounds for custom `kernels`, for `unestimated` instructions
      and for `collectives`.
    """
    chips, axes = math.prod(shape), sum(n > 1 for n in shape)
    torus = all(n % tpu.torus == 0 for n in shape)
    sending = tpu.link_bandwidth * max(axes, 1) * (2 if torus else 1)
    total = dict.fromkeys(("estimated", "kernels", "unestimated", "collectives"), 0.0)
    for one in work:
        if one.overlapped:
            continue
        if one.kind == "estimated":
            total["estimated"] += one.times * one.cycles / tpu.clock
        elif one.kind == "kernel":
            bound = max(one.flops / tpu.peak, one.bytes / tpu.hbm_bandwidth)
            total["kernels"] += one.times * bound
        elif one.kind == "collective":
            sent = _PASSES.get(one.name, 1) * one.bytes * (chips - 1) / chips
            total["collectives"] += one.times * sent / sending
        else:
            total["unestimated"] += one.times * one.bytes / tpu.hbm_bandwidth
    return total


def collectives(work: Iterable[Work]) -> list[Json]:
    """Count and payload bytes of each kind of collective in one run, overlapped ones separately."""
    found: dict[tuple[str, bool], Json] = {}
    for one in work:
        if one.kind == "collective":
            row = found.setdefault(
                (one.name, one.overlapped),
                {"name": one.name, "overlapped": one.overlapped, "count": 0, "bytes": 0},
            )
            row["count"] += one.times
            row["bytes"] += one.times * one.bytes
    return list(found.values())


def memory(stats: Any, state: TrainState, batch: PyTree) -> dict[str, int]:
    """Bytes on each chip by kind; the program needs their sum.

    Args:
      stats: `compiled.memory_analysis()`.
      state: shapes with shardings of the state that the program updates in place.
      batch: those of its other arguments.
    """
    parameters, optimizer = shard_bytes(state.params), shard_bytes(state.opt_state)
    rows = shard_bytes(batch)
    arguments = (
        stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    )
    return {
        "parameters": parameters,
        "optimizer state": optimizer,
        "batch": rows,
        "temporaries": stats.temp_size_in_bytes,
        "generated code": stats.generated_code_size_in_bytes,
        "padding, metrics": arguments - parameters - optimizer - rows,
    }


def shard_bytes(tree: PyTree) -> int:
    """Bytes of `tree`, shapes with shardings, on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
