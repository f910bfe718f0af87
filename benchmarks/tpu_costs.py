"""Seconds and bytes of a program compiled for a TPU, from the compiler's output (`hlo`).

The time is an estimate: nothing has run. Most of it is the compiler's own, in cycles. What the
compiler does not estimate is bounded from below by the chip's published rates:

- a custom kernel takes max(FLOPs / peak, bytes / memory bandwidth);
- any other instruction, such as a gather, the time to read its operands and write its result once;
- a collective, the bytes that each chip of a ring sends, over the bandwidth of the links that a
  chip in a corner of the slice has: one along each axis, two where the slice is a torus;
- what is sent to another slice, its bytes over a chip's share of the network between them.

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


def link_seconds(work: Iterable[Work], chips: Slice) -> float:
    """Return the seconds that the links, and the network between slices, need for all that the
    program sends, whether the computation hides them or not."""
    sent = [one for one in work if one.kind in ("collective", "send")]
    return sum(_seconds(one._replace(overlapped=False), chips) for one in sent)


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
    "collectives": lambda one: one.kind in ("collective", "send"),
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
    "send": "collectives",
    "memory": "unestimated",
    "copy": "unestimated",
}


def _seconds(one: Work, chips: Slice) -> float:
    """Return the seconds of all times that it runs."""
    tpu = chips.tpu
    if one.overlapped:
        return 0.0
    if one.kind == "estimated":
        once = tpu.seconds(one.cycles)
    elif one.kind == "kernel":
        once = max(one.flops / tpu.peak, one.bytes / tpu.hbm_bandwidth)
    elif one.kind == "collective":
        count = one.group or math.prod(chips.shape)
        sent = _PASSES.get(one.name, 1) * one.bytes * (count - 1) / count
        once = sent / chips.link_bandwidth
    elif one.kind == "send":
        assert tpu.network_bandwidth is not None  # See `Slice.untimed_reason`.
        once = one.bytes / tpu.network_bandwidth
    else:
        once = one.bytes / tpu.hbm_bandwidth
    return one.times * once


def collectives(work: Iterable[Work]) -> list[Json]:
    """Return count and payload bytes of each kind of collective, overlapped ones separately, and of
    what is sent to other slices."""
    found: dict[tuple[str, bool], Json] = {}
    for one in work:
        if one.kind in ("collective", "send"):
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
