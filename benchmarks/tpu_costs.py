"""Seconds and bytes of a program compiled for a TPU, from the compiler's output (`hlo`).

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

from hlo import Work
from tpu_slices import Slice

from pe_jax.common.files import Json

# How often the payload crosses a chip's links in a ring: once to be reduced, once to be gathered.
_PASSES = {"all-reduce": 2}


def seconds(work: Iterable[Work], chips: Slice) -> dict[str, float]:
    """Estimate the time of one run by kind of work; the step takes their sum.

    Args:
      work: see `hlo.read`.

    Returns:
      `estimated` by the compiler; lower bounds for custom `kernels`, for `unestimated` instructions
      and for `collectives`.
    """
    total = dict.fromkeys(("estimated", "kernels", "unestimated", "collectives"), 0.0)
    for one in work:
        total[_SOURCE[one.kind]] += _seconds(one, chips)
    return total


def parts(work: Iterable[Work], chips: Slice) -> dict[str, float]:
    """Return the same seconds by what they are spent on: the names of `PARTS`."""
    total = dict.fromkeys(PARTS, 0.0)
    for one in work:
        total[next(name for name, holds in PARTS.items() if holds(one))] += _seconds(
            one, chips
        )
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


def _seconds(one: Work, chips: Slice) -> float:
    """Return the seconds of all times that it runs."""
    tpu, count = chips.tpu, math.prod(chips.shape)
    if one.overlapped:
        return 0.0
    if one.kind == "estimated":
        once = tpu.seconds(one.cycles)
    elif one.kind == "kernel":
        once = max(one.flops / tpu.peak, one.bytes / tpu.hbm_bandwidth)
    elif one.kind == "collective":
        sent = _PASSES.get(one.name, 1) * one.bytes * (count - 1) / count
        once = sent / chips.link_bandwidth
    else:
        once = one.bytes / tpu.hbm_bandwidth
    return one.times * once


def collectives(work: Iterable[Work]) -> list[Json]:
    """Return count and payload bytes of each kind of collective, overlapped ones separately."""
    found: dict[tuple[str, bool], Json] = {}
    for one in work:
        if one.kind == "collective":
            row = found.setdefault(
                (one.name, one.overlapped),
                {
                    "name": one.name,
                    "overlapped": one.overlapped,
                    "count": 0,
                    "bytes": 0,
                },
            )
            row["count"] += one.times
            row["bytes"] += one.times * one.bytes
    return list(found.values())
