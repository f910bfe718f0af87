"""TPU slices to compile for, which need not be attached: rates, memory, clocks and links.

Bandwidths are the published ones of Google's Cloud TPU pages. The memory is what the TPU compiler
lets a program use. The clock of v4 is published; with those of v5e, v5p and v6e the compiler's
cycles agree with the published figures: its estimates of a large matmul are at 70 to 93 % of the
peak, and those of a large element-wise sum at 72 to 81 % of the memory's bandwidth. No clock gives
both for tpu7x (at 1.9 GHz, 70 and 42 %), so its cycles are not converted to seconds.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.metrics import PEAKS

GIB = 2**30
EXAMPLES = "v5e:2x4, v5e:16x16, v6e:4x4, v4:2x2x2, v5p:4x4x4 or tpu7x:2x2x1"
SEVERAL = "2xv5e:16x16"  # Two slices.


class Tpu(NamedTuple):
    """One TPU chip, or one of the two devices of a chip of tpu7x, with half of its rates.

    Attributes:
      kind: JAX's `device_kind`.
      hbm: bytes of memory that a program may use; the system reserves the rest of the chip's.
      hbm_bandwidth: bytes/s.
      clock: Hz, of the compiler's cycles; None if it is not known.
      link_bandwidth: bytes/s of one link to another chip, one way.
      torus: slices whose axes are all multiples of this wrap around at the edges.
      options: of `jax.experimental.topologies.get_topology_desc`.
      devices: of a chip.
      network_bandwidth: bytes/s of a chip's share of the network between slices, one way; None
        where none is published.
    """

    kind: str
    hbm: float
    hbm_bandwidth: float
    clock: float | None
    link_bandwidth: float
    torus: int
    options: dict[str, str]
    devices: int = 1
    network_bandwidth: float | None = None

    def seconds(self, cycles: float) -> float:
        """Return the seconds of the compiler's cycles.

        Raises:
          ValueError: if the clock is not known.
        """
        if self.clock is None:
            raise ValueError(
                f"The clock of {self.kind} is not published, so the compiler's cycles give no "
                "time. Use benchmarks/compile_for.py, which prints memory and lower bounds."
            )
        return cycles / self.clock

    @property
    def peak(self) -> float:
        """bfloat16 FLOP/s."""
        return PEAKS[self.kind]


# Keys are the first part of a slice's name: v5e in v5e:2x4.
TPUS: dict[str, Tpu] = {
    # Its two cores are one device, as JAX shows them on the machine itself.
    "v4": Tpu(
        "TPU v4", 30.75 * GIB, 1200e9, 1.05e9, 50e9, 4, {"chip_config_name": "megacore"}
    ),
    "v5e": Tpu(
        "TPU v5 lite",
        15.75 * GIB,
        819e9,
        1.5e9,
        50e9,
        16,
        {},
        network_bandwidth=3.125e9,
    ),
    "v5p": Tpu(
        "TPU v5", 95.74 * GIB, 2765e9, 1.75e9, 100e9, 4, {}, network_bandwidth=6.25e9
    ),
    "v6e": Tpu(
        "TPU v6 lite",
        31.25 * GIB,
        1638e9,
        1.75e9,
        100e9,
        16,
        {},
        network_bandwidth=12.5e9,
    ),
    # Published of a chip: 7,380 GB/s of memory, 1,200 GB/s in and out by six links.
    "tpu7x": Tpu("TPU7x", 94.75 * GIB, 3690e9, None, 50e9, 4, {}, devices=2),
}


class Slice(NamedTuple):
    """A grid of chips of one kind, or several, `slices`, with a network between them.

    `shape` has the chips along each axis of a grid. Programs can be compiled for the devices of
    `mesh`, but not run on them.
    """

    name: str
    tpu: Tpu
    shape: tuple[int, ...]
    mesh: Mesh
    slices: int = 1

    @property
    def untimed_reason(self) -> str:
        """The rate without which there is no estimate of times; empty if all are known."""
        if self.tpu.clock is None:
            return f"the clock of {self.tpu.kind} is not published"
        if self.slices > 1 and self.tpu.network_bandwidth is None:
            return f"the bandwidth between slices of {self.tpu.kind} is not published"
        return ""

    @property
    def link_bandwidth(self) -> float:
        """Bytes/s that a chip in a corner of the slice sends: over a link along each axis, over two
        where the slice is a torus."""
        axes = sum(n > 1 for n in self.shape)
        torus = all(n % self.tpu.torus == 0 for n in self.shape)
        return self.tpu.link_bandwidth * max(axes, 1) * (2 if torus else 1)


def make_slice(name: str) -> Slice:
    """Return the slice of a name such as v5e:2x4: a chip and its grid. 2xv5e:2x4 are two slices.

    Raises:
      ValueError: if there is no such slice, or the TPU compiler is not installed.
    """
    match = re.fullmatch(r"(?:(\d+)x)?([a-z]\w*):(\d+(?:x\d+){1,2})", name)
    count = int(match[1] or 1) if match else 0
    if not match or match[2] not in TPUS or not count:
        raise ValueError(
            f"No TPU slice {name!r}. Give a chip ({', '.join(TPUS)}) and a grid, as in {EXAMPLES}; "
            f"several slices as in {SEVERAL}."
        )
    chip, grid = match[2], match[3]
    tpu, shape = TPUS[chip], tuple(map(int, grid.split("x")))
    _stay_off_the_machine()
    host = (*(min(n, 2) for n in shape[:2]), 1)  # Chips of a host.
    try:
        devices = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{chip}:{grid}",
            chips_per_host_bounds=host,
            num_slices=count,
            **tpu.options,
        ).devices
    except jax.errors.JaxRuntimeError:
        raise ValueError(
            f"No TPU slice {name!r}: {chip} has no slice of {grid} chips. Use, for "
            f"example, {EXAMPLES}."
        ) from None
    except RuntimeError as error:  # JAX raises this if libtpu is missing.
        raise ValueError(
            f"Compiling for a TPU needs its compiler: pip install '.[tpu]' ({error})."
        ) from None
    return Slice(name, tpu, shape, sharding.data_mesh(list(devices)), count)


def _stay_off_the_machine() -> None:
    """Use the TPU library as a compiler only: it does not look for TPUs of this machine."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update(
        "jax_enable_compilation_cache", False
    )  # These cannot be loaded here.
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # Any type; without one it warns.
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # Another process may train or compile.
    }.items():
        os.environ.setdefault(name, value)
