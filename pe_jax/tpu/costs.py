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
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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
    link = _sending(tpu, shape)
    total = dict.fromkeys(("estimated", "kernels", "unestimated", "collectives"), 0.0)
    for one in work:
        total[_SOURCE[one.kind]] += _seconds(one, tpu, link)
    return total


def parts(work: Iterable[Work], tpu: Tpu, shape: tuple[int, ...]) -> dict[str, float]:
    """The same seconds by what they are spent on: the names of `PARTS`."""
    link = _sending(tpu, shape)
    total = dict.fromkeys(PARTS, 0.0)
    for one in work:
        total[next(name for name, holds in PARTS.items() if holds(one))] += _seconds(one, tpu, link)
    return total


# What a step's time is spent on: the first that holds of its work.
PARTS: dict[str, Callable[[Work], bool]] = {
    "collectives": lambda one: one.kind == "collective",
    "kernels of attention": lambda one: one.kind == "kernel",
    "products, and what is fused with them": lambda one: one.product,
    "blocks: all other passes": lambda one: bool(re.search(r"/layer_\d+", one.scope)),
    "heads and losses": lambda one: bool(
        re.search(r"/(masked_lm|pooler|next_sentence)|jvp\(\)|jvp\(jit", one.scope)
    ),
    "embeddings": lambda one: "jvp(" in one.scope,
    "optimizer and norms": lambda one: bool(one.scope),
    "copies": lambda one: True,
}

_SOURCE = {
    "estimated": "estimated",
    "kernel": "kernels",
    "collective": "collectives",
    "memory": "unestimated",
    "copy": "unestimated",
}


class _Link(NamedTuple):
    """How many chips exchange something, and the bytes/s that each sends."""

    chips: int
    bandwidth: float


def _sending(tpu: Tpu, shape: tuple[int, ...]) -> _Link:
    axes = sum(n > 1 for n in shape)
    torus = all(n % tpu.torus == 0 for n in shape)
    return _Link(math.prod(shape), tpu.link_bandwidth * max(axes, 1) * (2 if torus else 1))


def _seconds(one: Work, tpu: Tpu, link: _Link) -> float:
    """Of all times that it runs."""
    if one.overlapped:
        return 0.0
    if one.kind == "estimated":
        once = one.cycles / tpu.clock
    elif one.kind == "kernel":
        once = max(one.flops / tpu.peak, one.bytes / tpu.hbm_bandwidth)
    elif one.kind == "collective":
        sent = _PASSES.get(one.name, 1) * one.bytes * (link.chips - 1) / link.chips
        once = sent / link.bandwidth
    else:
        once = one.bytes / tpu.hbm_bandwidth
    return one.times * once


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
