"""Peak rates of accelerators, and memory, clocks and links of TPUs, for estimates.

Bandwidths are the published ones of Google's Cloud TPU pages. The memory is what the TPU compiler
lets a program use. The clock of v4 is published; the others are those at which the compiler's
cycles agree with the published figures: its estimates of a large matmul are at 70 to 93 % of the
peak, and those of a large element-wise sum at 72 to 81 % of the memory's bandwidth, on all four.
"""

from __future__ import annotations

from typing import NamedTuple

GIB = 2**30

# Dense bfloat16 FLOP/s by JAX's `device_kind`, as the vendors publish them: Google's Cloud TPU
# pages, NVIDIA's data sheets.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
}


class Tpu(NamedTuple):
    """One TPU chip.

    Attributes:
      kind: JAX's `device_kind`; a device is a whole chip in each of these.
      hbm: bytes of memory that a program may use; the system reserves the rest of the chip's.
      hbm_bandwidth: bytes/s.
      clock: Hz, of the compiler's cycles.
      link_bandwidth: bytes/s of one link to another chip, one way.
      torus: slices whose axes are all multiples of this wrap around at the edges.
      options: of `jax.experimental.topologies.get_topology_desc`.
    """

    kind: str
    hbm: float
    hbm_bandwidth: float
    clock: float
    link_bandwidth: float
    torus: int
    options: dict[str, str]

    @property
    def peak(self) -> float:
        """bfloat16 FLOP/s."""
        return PEAKS[self.kind]


# Keys are the first part of a slice's name: v5e in v5e:2x4.
TPUS: dict[str, Tpu] = {
    # Its two cores are one device, as JAX shows them on the machine itself.
    "v4": Tpu("TPU v4", 30.75 * GIB, 1200e9, 1.05e9, 50e9, 4, {"chip_config_name": "megacore"}),
    "v5e": Tpu("TPU v5 lite", 15.75 * GIB, 819e9, 1.5e9, 50e9, 16, {}),
    "v5p": Tpu("TPU v5", 95.74 * GIB, 2765e9, 1.75e9, 100e9, 4, {}),
    "v6e": Tpu("TPU v6 lite", 31.25 * GIB, 1638e9, 1.75e9, 100e9, 16, {}),
}
