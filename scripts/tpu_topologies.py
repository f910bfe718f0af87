"""Shapes of TPU slices: which exist, their hosts, and their names in Google Cloud's interfaces."""

from __future__ import annotations

import math
from typing import NamedTuple

GRID = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
CUBE = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16"


class Generation(NamedTuple):
    """A generation of TPUs.

    Attributes:
      label: value of the label cloud.google.com/gke-tpu-accelerator of its nodes in GKE.
      one_host: the most chips of a slice of one host; larger ones have four chips a host.
      topologies: one for each number of chips.
      prefix: of accelerator types in the Cloud TPU API; empty if it is not there.
      cores: that an accelerator type counts for each chip.
      runtime: version of the image in the Cloud TPU API.
    """

    label: str
    one_host: int
    topologies: str
    prefix: str = ""
    cores: int = 1
    runtime: str = ""


# By their names in benchmarks/compile_for.py.
GENERATIONS = {
    "v4": Generation("tpu-v4-podslice", 4, CUBE, "v4", 2, "tpu-ubuntu2204-base"),
    "v5e": Generation(
        "tpu-v5-lite-podslice", 8, GRID, "v5litepod", 1, "v2-alpha-tpuv5-lite"
    ),
    "v5p": Generation("tpu-v5p-slice", 4, CUBE, "v5p", 2, "v2-alpha-tpuv5"),
    "v6e": Generation("tpu-v6e-slice", 8, GRID, "v6e", 1, "v2-alpha-tpuv6e"),
    "tpu7x": Generation("tpu7x", 4, CUBE),
}


class Shape(NamedTuple):
    """A slice by its generation and its chips along each axis, such as 4x4."""

    generation: str
    axes: str

    @property
    def topology(self) -> str:
        """Its name in benchmarks/compile_for.py, such as v5e:4x4."""
        return f"{self.generation}:{self.axes}"

    def several(self, slices: int) -> str:
        """The name there of so many slices, such as 2xv5e:4x4."""
        return self.topology if slices == 1 else f"{slices}x{self.topology}"

    @property
    def chips(self) -> int:
        return math.prod(int(axis) for axis in self.axes.split("x"))

    @property
    def hosts(self) -> int:
        one_host = GENERATIONS[self.generation].one_host
        return 1 if self.chips <= one_host else self.chips // 4

    @property
    def runtime(self) -> str:
        return GENERATIONS[self.generation].runtime


def shape_of_type(accelerator_type: str) -> Shape:
    """Return the slice of an accelerator type of the Cloud TPU API, such as v5litepod-16.

    Raises:
      ValueError: if there is none.
    """
    prefix = accelerator_type.partition("-")[0]
    for name, generation in GENERATIONS.items():
        if not generation.prefix or generation.prefix != prefix:
            continue
        sizes = []
        for axes in generation.topologies.split():
            shape = Shape(name, axes)
            sizes.append(f"{prefix}-{shape.chips * generation.cores}")
            if sizes[-1] == accelerator_type:
                return shape
        raise ValueError(
            f"--type={accelerator_type} is not a slice. Sizes: {', '.join(sizes)}."
        )
    prefixes = [each.prefix for each in GENERATIONS.values() if each.prefix]
    raise ValueError(
        f"--type must be {', '.join(prefixes)} and a size, such as v5litepod-16, got "
        f"{accelerator_type!r}. TPU7x is in GKE only: scripts/tpu_jobset.py."
    )


def shape_of_topology(topology: str) -> Shape:
    """Return the slice of a topology such as tpu7x:2x2x1.

    Raises:
      ValueError: if there is none.
    """
    name, _, axes = topology.partition(":")
    if name not in GENERATIONS:
        raise ValueError(
            f"--topology must be {', '.join(GENERATIONS)} and chips along each axis, such as "
            f"tpu7x:2x2x1, got {topology!r}."
        )
    known = GENERATIONS[name].topologies.split()
    if axes not in known:
        raise ValueError(
            f"--topology={topology} is not a slice. For {name}: {', '.join(known)}."
        )
    return Shape(name, axes)
